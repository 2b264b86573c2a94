"""Of which class a failure is, and whether the same job would fail again."""

from __future__ import annotations

import pytest

from vidqa.core.problem import Problem
from vidqa.jobs import failure
from vidqa.jobs.platforms import engine_process


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SPEC_VALUE", "spec"),
        ("DATA_EMPTY", "data"),
        ("VIDEO_BROKEN", "data"),
        ("STORAGE_DENIED", "credential"),
        ("STORAGE_UNREACHABLE", "infrastructure"),
        ("ENGINE_OUT_OF_MEMORY", "out of memory"),
        ("RESUME_MISMATCH", "spec"),
        ("ENV_FILE_REFUSED", "infrastructure"),
        ("ENGINE_NO_GRADIENT", "program"),
        ("INTERNAL", "program"),
        ("REWARD_CONSTANT", "spec"),
        ("ENGINE_QUANTIZE_GATE", "spec"),
        ("PLATFORM_IMAGE_UNUSABLE", "image"),
        ("PLATFORM_REFUSED", "infrastructure"),
    ],
)
def test_a_problem_decides_the_class(code: str, kind: str) -> None:
    found = failure.classify(3, "", [Problem(code, "there", "what", "how")], "CUDA out of memory")
    assert found["class"] == kind and found["evidence"] == f"{code} at there: what"


KILLED = "an engine process was killed (SIGKILL) from outside"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("", "infrastructure"),
        ("RuntimeError: [gloo] Connection closed by peer", "infrastructure"),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may avoid OOM", "infrastructure"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "out of memory"),
        (
            "the kernel ended 1 process(es) for lack of memory: oom_kill in /sys/fs/cgroup/memory.events",
            "out of memory",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("[rank0]: MemoryError", "out of memory"),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory",
            "out of memory",
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "out of memory"),
    ],
)
def test_memory_was_full_where_there_is_evidence(line: str, kind: str) -> None:
    assert engine_process.exit_reason(137, "") == KILLED
    found = failure.classify(5, KILLED, [], f"step 1\n{line}\n")
    assert found == {"class": kind, "evidence": line if kind == "out of memory" else KILLED}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "image"),
        ("OSError: [Errno 28] No space left on device", "infrastructure"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroup", "infrastructure"),
        ("RuntimeError: [gloo/transport] Timed out waiting 10000ms for send operation to complete", "infrastructure"),
        ("srun: error: Node failure on n2", "infrastructure"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-05-01 DUE TO NODE FAILURE ***", "infrastructure"),
        ("a node of the job no longer answers; SLURM is asked for another attempt", "infrastructure"),
        ("/runs/a/node.sh: line 11: /opt/venv/bin/python: No such file or directory", "image"),
        ("401 Client Error: Unauthorized for url", "credential"),
        ("KeyError: 'video'", "program"),
    ],
)
def test_a_line_of_the_log_decides_without_one(line: str, kind: str) -> None:
    log = f"step 1\nTraceback (most recent call last):\n  File ...\n{line}\n"
    found = failure.classify(1, "it ended with exit code 1", [], log)
    assert found == {"class": kind, "evidence": line}


@pytest.mark.parametrize(("line", "kind"), [("oom_kill in memory.events", "out of memory"), ("", "infrastructure")])
def test_the_log_says_why_a_rank_was_lost(line: str, kind: str) -> None:
    lost = Problem("ENGINE_RANK_LOST", "there", "[gloo/transport] Connection closed by peer", "how")
    found = failure.classify(5, f"{lost.code}: {lost.message}", [lost], f"{lost}\nreport: there\n{line}\n")
    assert found == {"class": kind, "evidence": line or lost.message}


def test_evidence_holds_no_secret_and_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    found = failure.classify(1, "", [], "ValueError: hf_planted_secret " + "x" * 1000)
    assert "planted" not in found["evidence"] and len(found["evidence"]) <= 300


def test_only_what_would_fail_again_is_refused() -> None:
    kinds = set(failure.CLASS_BY_CODE_PREFIX.values())
    assert len(kinds) == 7
    for kind in kinds:
        reason = failure.why_retry_fails({"class": kind, "evidence": "because"})
        assert bool(reason) == (kind in ("spec", "data", "credential", "out of memory"))
    assert failure.why_retry_fails(None) is None
