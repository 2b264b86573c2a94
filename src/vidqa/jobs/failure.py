"""Classification of job failures, with a line of evidence; the class decides whether a retry can succeed.

The code of the run's first error decides, else the log's lines, else the exit code. A failure is out-of-memory only if
the kernel, CUDA or the platform says so: a killed process alone is no evidence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vidqa.core import environment
from vidqa.core.problem import Exit, Problem
from vidqa.jobs.platforms._base import IMAGE, INFRASTRUCTURE, LAUNCHER_ENDED, OUT_OF_MEMORY, Failure

DATA, CREDENTIAL, SPEC, PROGRAM = "data", "credential", "spec", "program"
PERMANENT_CLASSES = (SPEC, DATA, CREDENTIAL, OUT_OF_MEMORY)  # the same job would fail again

# Prefixes of problem codes; the longest match decides.
CLASS_BY_CODE_PREFIX = {
    "SPEC": SPEC,
    "RESUME": SPEC,
    "ENGINE_NOTHING_TRAINS": SPEC,
    "ENGINE_NOT_FINITE": SPEC,
    "ENGINE_QUANTIZE_GATE": SPEC,
    "ENGINE_BAD_SAMPLE": DATA,
    "ENGINE_SAVE_FAILED": INFRASTRUCTURE,
    "ENGINE": PROGRAM,
    "DATA": DATA,
    "QUANTIZE": DATA,
    "REWARD": SPEC,
    "USER_FUNCTION": DATA,
    "MEDIA": DATA,
    "MEDIA_DECODER_KILLED": INFRASTRUCTURE,
    "VIDEO": DATA,
    "SAMPLE": DATA,
    "CHAT": DATA,
    "MODEL": SPEC,
    "STORAGE_NOT_FOUND": SPEC,
    "STORAGE_DENIED": CREDENTIAL,
    "STORAGE_UNREACHABLE": INFRASTRUCTURE,
    "HUB": INFRASTRUCTURE,
    "ENGINE_OUT_OF_MEMORY": OUT_OF_MEMORY,
    "INTERNAL": PROGRAM,
    "ENV": INFRASTRUCTURE,
    "PLATFORM_IMAGE_UNUSABLE": IMAGE,
    "PLATFORM": INFRASTRUCTURE,
}
# Patterns of log lines. The first pattern with a match wins, with its last matching line.
CLASS_BY_LOG_PATTERN = (
    (OUT_OF_MEMORY, r"OutOfMemoryError|CUDA out of memory|oom[-_]kill|OOMKilled|Out of memory: Killed"),
    (OUT_OF_MEMORY, r"\bMemoryError\b|std::bad_alloc|Cannot allocate memory|DefaultCPUAllocator: "),
    (
        IMAGE,
        r"exec \S+ failed: No such file|executable file not found in|node\.sh: line \d+: .*: (?:No such|command not)",
    ),
    (IMAGE, r"no kernel image is available|exec format error|manifest unknown|ImagePullBackOff|ErrImagePull"),
    (IMAGE, r"No module named '?vidqa|CUDA driver version is insufficient|forward compatibility was attempted"),
    (CREDENTIAL, r"\b401\b.*(?i:unauthori[sz]ed)|GatedRepoError|(?i:access to model .* is restricted)"),
    (INFRASTRUCTURE, r"No space left on device|Disk quota exceeded|Input/output error|Stale file handle"),
    (INFRASTRUCTURE, r"\bXid\b|uncorrectable ECC|CUDA error: .*(?:hardware|ECC|launch timed out)|fallen off the bus"),
    (
        INFRASTRUCTURE,
        r"NCCL (?:error|WARN).*|Connection (?:reset|refused|closed) by|RendezvousTimeoutError|Broken pipe"
        r"|Timed out waiting \d+ms|Watchdog caught collective operation timeout",
    ),
    (INFRASTRUCTURE, r"NODE_FAIL|PREEMPTED|BOOT_FAIL|(?i:node failure)|a node of the job no longer answers|Bus error"),
    (PROGRAM, r"^\w*(?:Error|Exception)\b.*"),
)
EVIDENCE_LENGTH = 300


def classify(exit_code: int | None, message: str, problems: Sequence[Problem], log_tail: str) -> Failure:
    """Classify a job that ended with `exit_code` (None: unknown) and `message`, the sentence of its platform or its
    status. `problems` are those that the run wrote. The evidence, a problem or a log line, is redacted and truncated to
    EVIDENCE_LENGTH characters."""
    # The log says why a rank was lost: the kernel may have ended it for lack of memory.
    errors = [problem for problem in problems if problem.severity == "error" and problem.code != "ENGINE_RANK_LOST"]
    if errors and (class_of_code := _class_of_code(errors[0].code)):
        return _failure(class_of_code, f"{errors[0].code} at {errors[0].where}: {errors[0].message}")
    lines, is_killed = log_tail.splitlines(), "SIGKILL" in message
    for failure_class, pattern in CLASS_BY_LOG_PATTERN:
        if is_killed and failure_class != OUT_OF_MEMORY:
            return _failure(INFRASTRUCTURE, message)  # the last log line of a killed process is no evidence
        matching_lines = [line.strip() for line in lines if re.search(pattern, line)]
        if matching_lines:
            return _failure(failure_class, matching_lines[-1])
    if exit_code == Exit.INPUT:
        return _failure(DATA, message)
    if exit_code == Exit.ENVIRONMENT or "vanished" in message or message == LAUNCHER_ENDED:
        return _failure(INFRASTRUCTURE, message)
    return _failure(PROGRAM, message or next((line.strip() for line in reversed(lines) if line.strip()), ""))


def why_retry_fails(failure: Failure | None) -> str | None:
    """The reason why a retry of the same job would fail again; None if it may succeed."""
    if failure is None or failure["class"] not in PERMANENT_CLASSES:
        return None
    return f"its failure class {failure['class']} does not change by a retry: {failure['evidence']}"


def _class_of_code(code: str) -> str | None:
    """The class of the longest matching prefix in CLASS_BY_CODE_PREFIX; None without one."""
    prefixes = [prefix for prefix in CLASS_BY_CODE_PREFIX if code == prefix or code.startswith(f"{prefix}_")]
    return CLASS_BY_CODE_PREFIX[max(prefixes, key=len)] if prefixes else None


def _failure(failure_class: str, evidence: str) -> Failure:
    return {"class": failure_class, "evidence": environment.redacted(evidence)[:EVIDENCE_LENGTH]}
