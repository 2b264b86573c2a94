"""Killed anywhere, the loop goes on to the very state of one that nobody has disturbed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from cheap_stages import Cheap, installed, to_the_end, wanted

from vidqa.contract.problem import ProblemError
from vidqa.deft.beginning import begin
from vidqa.deft.loop import Loop
from vidqa.deft.report import write_report
from vidqa.deft.turn import STATE

SETS = ("stop.rounds=2", "control=true", "augment=true")


def whole(folder: Path) -> None:
    """All of it, as a program that was started again does it."""
    try:
        loop = Loop(folder / "loop")
    except ProblemError:  # it was not begun
        loop = begin(folder / "loop", wanted(folder, *SETS))[0]
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

    def doomed() -> None:
        left = point

        def counting(inner: Callable[..., object]) -> Callable[..., object]:
            def call(*given: object) -> object:
                nonlocal left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                found = inner(*given)
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
                return found

            return call

        os.replace, os.fsync = counting(os.replace), counting(os.fsync)  # type: ignore[assignment]
        work()

    return doomed


def kept(folder: Path) -> dict[str, str]:
    """Every file of the loop but its log, which has times; unfinished ones have names that begin with a dot."""
    files = [path for path in (folder / "loop").rglob("[!.]*") if path.is_file() and "log" not in path.name]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.parametrize("step", [pytest.param(17, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_killed_at_any_write_it_ends_in_the_same_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int
) -> None:
    installed(monkeypatch, Cheap())
    assert in_child(lambda: whole(tmp_path)) == 0
    expected, point, kills = kept(tmp_path), 1, 0
    assert f"loop/{STATE}" in expected and len(expected) > 50
    while True:
        shutil.rmtree(tmp_path / "loop")
        status = in_child(killed_at(point, lambda: whole(tmp_path)))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert in_child(lambda: whole(tmp_path)) == 0
        assert kept(tmp_path) == expected, point
        kills, point = kills + 1, point + step
    assert kills > 200 // step


def test_killed_again_and_again_no_finished_stage_is_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each start gets a little further than the one before."""
    installed(monkeypatch, Cheap())
    assert in_child(lambda: whole(tmp_path)) == 0
    expected = kept(tmp_path)
    shutil.rmtree(tmp_path / "loop")
    starts = 1
    while in_child(killed_at(40, lambda: whole(tmp_path))) != 0:
        starts += 1
        assert starts < 60
    assert kept(tmp_path) == expected
    finished = [each for each in Loop(tmp_path / "loop").log.events if each["event"] == "finished"]
    assert len(finished) == len({(each["round"], each["stage"]) for each in finished})
