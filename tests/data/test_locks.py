"""Locks: one holder at a time, a bounded wait, and the system's reason where there are none."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.no_locks import without_locks
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.environment import child_environment, python_path
from vidqa.core.locks import locked, try_lock
from vidqa.core.problem import ProblemError

HOLDER = """
import sys, time
from pathlib import Path
from vidqa.core.locks import locked
with locked(Path(sys.argv[1]), wait_s=0):
    print("held", flush=True)
    time.sleep(60)
"""
WITHOUT = """
import errno, os, sys
from pathlib import Path
from tests.no_locks import without_locks
from vidqa.core.problem import ProblemError
from vidqa.automl.journal import only_controller
from vidqa.gaps.deft.loop import locked_folder
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.jobs.platforms import job_store as job_files
from vidqa.data.storage.staging import staging_lock
from vidqa.data.media_cache import in_use

folder = Path(sys.argv[1])
ways = {
    "deft": lambda: locked_folder(folder),
    "study": lambda: only_controller(folder),
    "stage": lambda: staging_lock(folder),
    "jobs": lambda: job_files.lock("launch"),
    "cache": lambda: FrameCache(folder, 1 << 20)._locked(),
    "archives": lambda: in_use(folder / "a"),
}
for error in sys.argv[2:]:
    if child := os.fork():  # its filter stays with it
        os.waitpid(child, 0)
        continue
    without_locks(getattr(errno, error))
    for name, way in ways.items():
        try:
            with way():
                print(error, name, "locked")
        except ProblemError as refused:
            print(error, name, refused.problems[0].code, refused.problems[0].where)
    sys.stdout.flush()
    os._exit(0)
"""
ERRORS = ("ENOLCK", "ENOSYS")


def python(program: str, *words: object) -> subprocess.Popen[str]:
    environment = child_environment(PYTHONPATH=f"{SKILL_ROOT}:{python_path()}")
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=SKILL_ROOT)


def test_a_wait_ends_and_names_the_file_and_a_dead_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = python(HOLDER, path)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    began = time.monotonic()
    with pytest.raises(ProblemError, match="LOCK_HELD") as refused, locked(path, wait_s=0.2):
        pass
    assert refused.value.problems[0].where == str(path) and 0.2 <= time.monotonic() - began < 10
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(path, wait_s=5.0) as handle, path.open("r+") as other:
        assert not try_lock(other.fileno(), path) and os.fstat(handle).st_ino == path.stat().st_ino


def test_a_file_system_without_locks_is_not_taken_for_a_busy_one(tmp_path: Path) -> None:
    told, _ = python(WITHOUT, tmp_path, *ERRORS).communicate(timeout=300)
    lines = [line.split(" ", 2) for line in told.splitlines()]
    ways = ("deft", "study", "stage", "jobs", "cache", "archives")
    assert [(error, way) for error, way, _ in lines] == [(error, way) for error in ERRORS for way in ways]
    assert all(what.startswith("ENV_FILE_REFUSED /") for _, _, what in lines), lines


def test_the_filter_takes_locks_alone() -> None:
    child = os.fork()
    if not child:
        without_locks(errno.ENOLCK)
        with open(__file__, "rb") as file:
            os._exit(0 if file.read(1) else 1)
    assert os.waitpid(child, 0)[1] == 0
