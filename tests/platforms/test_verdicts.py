"""What became of a job, from its exit code, the engine's last words and the log; and of which class a failure is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.contract.problem import Exit, Problem
from vidqa.platforms import failure, verdict
from vidqa.platforms._base import State
from vidqa.platforms.records import JobRecord
from vidqa.platforms.verdict import Said


def record(**changes: object) -> JobRecord:
    names = ("job_id", "platform", "action", "spec", "spec_fingerprint", "inputs_fingerprint", "output_dir")
    texts = dict.fromkeys((*names, "run_dir", "model", "created"), "x")
    return JobRecord(**{**texts, "processes": 1, "launcher": {}, **changes})  # type: ignore[arg-type]


SAVED = Said(State.STOPPED, 6, "saved")
DONE = Said(State.COMPLETE, 0, "done")
BUSY = Said(State.RUNNING, None, "")


@pytest.mark.parametrize(
    ("exit_code", "said", "cancelled", "state", "kept"),
    [
        (0, DONE, False, State.COMPLETE, 0),
        (0, DONE, True, State.COMPLETE, 0),  # it was done before it heard
        (0, BUSY, False, State.ERROR, 5),
        (0, SAVED, False, State.STOPPED, 6),
        (0, SAVED, True, State.CANCELED, 6),
        (1, Said(State.ERROR, 3, "data"), False, State.ERROR, 3),
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
def test_a_job_that_has_ended(exit_code: int, said: Said, cancelled: bool, state: State, kept: int) -> None:
    seen = verdict.ended(record(cancel_requested="now" if cancelled else None), exit_code, said, "")
    assert (seen.state, seen.exit_code) == (state, kept)


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
    assert shown in verdict.how_it_died(exit_code, log)


def test_a_job_of_which_nothing_is_left() -> None:
    assert verdict.vanished(record(), DONE, "gone").state == State.COMPLETE
    assert verdict.vanished(record(), SAVED, "gone").state == State.STOPPED
    seen = verdict.vanished(record(), BUSY, "gone")
    assert (seen.state, seen.exit_code, seen.message) == (State.ERROR, Exit.JOB_FAILED, "gone")


@pytest.mark.parametrize("status", [None, [], {}, {"state": "ODD"}, {"state": "ERROR", "exit_code": "3"}])
def test_a_broken_status_says_nothing_wrong(status: object) -> None:
    assert Said.of(status).exit_code is None


def test_the_log_of_an_earlier_job_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"CUDA out of memory\nnow\n")
    job = record(run_dir=str(tmp_path), log_start=19)
    from vidqa.platforms._base import run_folder_log

    assert verdict.tail(run_folder_log, job) == "now\n"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SPEC_RANGE", "spec"),
        ("DATA_EMPTY", "data"),
        ("VIDEO_BROKEN", "data"),
        ("HUB_GATED", "credential"),
        ("HUB_UNREACHABLE", "infrastructure"),
        ("ENGINE_OUT_OF_MEMORY", "out of memory"),
        ("ENGINE_RESUME_MISMATCH", "spec"),
        ("ENGINE_OUTPUT_UNWRITABLE", "infrastructure"),
        ("ENGINE_NO_GRADIENT", "program"),
        ("INTERNAL", "program"),
        ("PLATFORM_DOCKER_IMAGE_MISSING", "image"),
        ("PLATFORM_DOCKER_NAME_TAKEN", "infrastructure"),
    ],
)
def test_a_problem_decides_the_class(code: str, kind: str) -> None:
    found = failure.classify(3, "", [Problem(code, "there", "what", "how")], "CUDA out of memory")
    assert found["class"] == kind and found["evidence"] == f"{code} at there: what"


KILLED = "an engine process was killed (SIGKILL), by someone or something outside of it"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("", "infrastructure"),
        ("RuntimeError: [gloo] Connection closed by peer", "infrastructure"),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may avoid OOM", "infrastructure"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "out of memory"),
        (
            "the kernel ended 1 process(es) for want of memory: oom_kill in /sys/fs/cgroup/memory.events",
            "out of memory",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
    ],
)
def test_memory_was_full_where_there_is_evidence(line: str, kind: str) -> None:
    assert verdict.how_it_died(137, "") == KILLED
    found = failure.classify(5, KILLED, [], f"step 1\n{line}\n")
    assert found == {"class": kind, "evidence": line if kind == "out of memory" else KILLED}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "image"),
        ("OSError: [Errno 28] No space left on device", "infrastructure"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroup", "infrastructure"),
        ("srun: error: Node failure on n2", "infrastructure"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-05-01 DUE TO NODE FAILURE ***", "infrastructure"),
        ("a node of the job no longer answers; SLURM is asked for another attempt", "infrastructure"),
        ("401 Client Error: Unauthorized for url", "credential"),
        ("KeyError: 'video'", "program"),
    ],
)
def test_a_line_of_the_log_decides_without_one(line: str, kind: str) -> None:
    log = f"step 1\nTraceback (most recent call last):\n  File ...\n{line}\n"
    found = failure.classify(1, "it ended with exit code 1", [], log)
    assert found == {"class": kind, "evidence": line}


def test_evidence_holds_no_secret_and_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    found = failure.classify(1, "", [], "ValueError: hf_planted_secret " + "x" * 1000)
    assert "planted" not in found["evidence"] and len(found["evidence"]) <= 300


def test_only_what_would_fail_again_is_refused() -> None:
    for kind in failure.CLASSES:
        reason = failure.why_not_again({"class": kind, "evidence": "because"})
        assert bool(reason) == (kind in ("spec", "data", "credential", "out of memory"))
    assert failure.why_not_again(None) is None
