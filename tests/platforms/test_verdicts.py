"""What became of a job, from its exit code, the engine's last words and the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import Exit
from vidqa.core.run_folder import RunFolder
from vidqa.jobs.platforms import engine_process
from vidqa.jobs.platforms._base import State, Submitted, run_folder_log
from vidqa.jobs.platforms.engine_process import EngineStatus
from vidqa.jobs.platforms.processes import this_process


def submitted(run_dir: Path = Path("x"), **changes: Any) -> Submitted:
    return Submitted("x", run_dir, created="x", launcher=this_process(), **changes)


SAVED = EngineStatus(State.STOPPED, 6, "saved")
DONE = EngineStatus(State.COMPLETE, 0, "done")
BUSY = EngineStatus(State.RUNNING, None, "")


@pytest.mark.parametrize(
    ("exit_code", "said", "cancelled", "state", "kept"),
    [
        (0, DONE, False, State.COMPLETE, 0),
        (0, DONE, True, State.COMPLETE, 0),  # it was done before it heard
        (0, BUSY, False, State.ERROR, 5),
        (0, SAVED, False, State.STOPPED, 6),
        (0, SAVED, True, State.CANCELED, 6),
        (1, EngineStatus(State.ERROR, 3, "data"), False, State.ERROR, 3),
        (1, DONE, False, State.ERROR, 5),  # something went wrong after the engine's last word
        (6, DONE, False, State.COMPLETE, 0),  # torchrun was asked to stop after it
        (6, DONE, True, State.COMPLETE, 0),
        (143, DONE, True, State.COMPLETE, 0),
        (-9, DONE, False, State.COMPLETE, 0),
        (6, BUSY, False, State.STOPPED, 6),  # torchrun was asked to stop before the engine had begun
        (6, BUSY, True, State.CANCELED, 5),  # the same, but nothing was saved
        (-9, BUSY, True, State.CANCELED, 5),
        (137, BUSY, False, State.ERROR, 5),
    ],
)
def test_a_job_that_has_ended(exit_code: int, said: EngineStatus, cancelled: bool, state: State, kept: int) -> None:
    seen = engine_process.ended(submitted(cancel_requested="now" if cancelled else None), exit_code, said, "")
    assert (seen.state, seen.exit_code) == (state, kept)


def test_a_cancelled_job_that_could_not_save_says_why() -> None:
    full = EngineStatus(State.ERROR, 5, "No space left on device")
    seen = engine_process.ended(submitted(cancel_requested="now"), 1, full, "")
    assert seen.message == "it was terminated before it saved: No space left on device"


@pytest.mark.parametrize(
    ("exit_code", "log", "shown"),
    [
        (1, "failed (exitcode: -9) local_rank: 0", "SIGKILL"),
        (1, "failed (exitcode: -11) local_rank: 0", "SIGSEGV"),
        (143, "", "SIGTERM"),
        (-15, "", "SIGTERM"),
        (127, "", "127"),
        (255, "", "255"),
    ],
)
def test_how_processes_died(exit_code: int, log: str, shown: str) -> None:
    assert shown in engine_process.exit_reason(exit_code, log)


def test_a_job_of_which_nothing_is_left(tmp_path: Path) -> None:
    states = []
    for status in (DONE, SAVED, BUSY):
        assert status.state
        RunFolder(tmp_path).write_status(status.state, message=status.message, exit_code=status.exit_code)
        states.append((seen := engine_process.vanished(submitted(tmp_path), "gone")).state)
    assert states == [State.COMPLETE, State.STOPPED, State.ERROR]
    assert (seen.state, seen.exit_code, seen.message) == (State.ERROR, Exit.JOB_FAILED, "gone")


@pytest.mark.parametrize("status", [None, [], {}, {"state": "ODD"}, {"state": "ERROR", "exit_code": "3"}])
def test_a_broken_status_says_nothing_wrong(status: object) -> None:
    assert EngineStatus.parse(status).exit_code is None


def test_the_log_of_an_earlier_job_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"CUDA out of memory\nnow\n")
    assert engine_process.tail(run_folder_log, submitted(tmp_path, log_start=19)) == "now\n"
