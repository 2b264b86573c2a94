"""Killed anywhere, the loop goes on to the very state of one that nobody has disturbed."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cheap_stages import Cheap, installed, to_the_end, wanted

from vidqa.core.problem import ProblemError
from vidqa.gaps.deft.commands import create
from vidqa.gaps.deft.context import STATE
from vidqa.gaps.deft.loop import Loop
from vidqa.gaps.deft.report import write_report

SEED, KILLS, COPIES = 39, 4, 40  # kill points of the default run; states on the disk that are gone on from
SETS = ("stop.rounds=2", "control=true", "augment=true")


def whole(folder: Path) -> None:
    """All of it, as a program that was started again does it."""
    try:
        loop = Loop(folder / "loop")
    except ProblemError:  # it was not begun
        loop = create(folder / "loop", wanted(folder, *SETS))[0]
    with loop.alone():
        to_the_end(loop)
        write_report(loop)


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a process that does it; -9 where it was killed."""
    child = os.fork()
    if not child:
        with contextlib.ExitStack() as stack:
            stack.push(lambda _kind, error, _trace: os._exit(_shown(error) if error else 0))
            work()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _shown(error: BaseException) -> int:
    traceback.print_exception(error)
    return 1


def killed_at(point: int, work: Callable[[], None]) -> Callable[[], None]:
    """The work, until its n-th write or rename, which is done or not done when the process dies."""

    def kill(number: int) -> None:
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return watched(kill, work)


def watched(at_point: Callable[[int], None], work: Callable[[], None]) -> Callable[[], None]:
    """The work, with a call before and after each write and rename, which gets their number from 1 on."""

    def followed() -> None:
        numbers = itertools.count(1)

        def between(inner: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object) -> object:
                at_point(next(numbers))
                result = inner(*arguments)
                at_point(next(numbers))
                return result

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", between(os.replace))
            patch.setattr(os, "fsync", between(lambda _: None))  # a kill loses nothing that was written, synced or not
            work()

    return followed


def files_of(folder: Path) -> dict[str, str]:
    """Every file of the loop but its log, which has times; unfinished ones have names that begin with a dot."""
    files = [path for path in (folder / "loop").rglob("[!.]*") if path.is_file() and "log" not in path.name]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


class Undisturbed(NamedTuple):
    """The folder in which an undisturbed loop ran, the files that it left there, and the numbers of its writes."""

    folder: Path
    files: dict[str, str]
    writes: list[int]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """It runs in this process, which then has imported all that children need."""
    folder, writes = tmp_path_factory.mktemp("kills"), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        installed(patch, Cheap())
        watched(writes.append, lambda: whole(folder))()
        files = files_of(folder)
        assert f"loop/{STATE}" in files and len(files) > 50
        yield Undisturbed(folder, files, writes)


@pytest.fixture
def expected(undisturbed: Undisturbed) -> Undisturbed:
    """The folder is empty again."""
    shutil.rmtree(undisturbed.folder / "loop", ignore_errors=True)
    return undisturbed


def test_killed_at_some_writes_it_ends_in_the_same_state(expected: Undisturbed) -> None:
    """Sampled points of all that there are; the slow test below goes on from more of them."""
    folder, files, writes = expected
    for point in random.Random(SEED).sample(writes, KILLS):
        assert in_child(killed_at(point, lambda: whole(folder))) == -signal.SIGKILL
        assert in_child(lambda: whole(folder)) == 0
        assert files_of(folder) == files, point
        shutil.rmtree(folder / "loop")


@pytest.mark.slow
def test_whatever_a_kill_leaves_at_a_write_it_ends_in_the_same_state(expected: Undisturbed, tmp_path: Path) -> None:
    """One loop is copied at each point, which is what a kill there would leave on the disk; some of the copies go on.
    Points between which nothing was written leave the same."""
    folder, files, _ = expected
    loop, copies = folder / "loop", tmp_path / "copies"
    last: dict[Path, bytes | None] = {}

    def copied(number: int) -> None:
        nonlocal last
        contents = {path: path.read_bytes() if path.is_file() else None for path in loop.rglob("*")}
        if contents and contents != last:
            shutil.copytree(loop, copies / f"{number:04}")
            last = contents

    watched(copied, lambda: whole(folder))()
    assert files_of(folder) == files
    points = sorted(copies.iterdir())
    assert len(points) > 200, len(points)
    for point in random.Random(SEED).sample(points, COPIES):
        shutil.rmtree(loop)
        point.rename(loop)
        whole(folder)
        assert files_of(folder) == files, point.name


def test_killed_again_and_again_no_finished_stage_is_repeated(expected: Undisturbed) -> None:
    """Each start gets a little further than the one before."""
    folder, files, _ = expected
    starts = 1
    while in_child(killed_at(150, lambda: whole(folder))) != 0:
        starts += 1
        assert starts < 20
    assert files_of(folder) == files
    finished = [event for event in Loop(folder / "loop").log.events if event["event"] == "finished"]
    assert len(finished) == len({(event["round"], event["stage"]) for event in finished})
