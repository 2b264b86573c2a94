"""The end state of a job: from its exit code, the last status of the engine, and the end of its log.

Platforms differ in how they see that a job ended; what the end means is decided here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs.platforms._base import Observed, State, Submitted, run_folder_log

TAIL_BYTES = 20_000


@dataclass(frozen=True)
class EngineStatus:
    """The engine's last status.json; empty where the file is missing or broken."""

    state: State | None = None
    exit_code: int | None = None
    message: str = ""

    @staticmethod
    def parse(status: object) -> EngineStatus:
        """From the parsed status.json, whatever it holds."""
        if not isinstance(status, dict):
            return EngineStatus()
        try:
            state = State(status["state"])
        except (KeyError, ValueError):
            return EngineStatus()
        code = status.get("exit_code")
        return EngineStatus(state, code if isinstance(code, int) else None, str(status.get("message") or ""))


def tail(log: Callable[[Any, int], tuple[bytes, int]], job: Submitted) -> str:
    """The end of what this job wrote to its log, without the lines of earlier jobs of a resumed run. Empty where the
    log cannot be read."""
    try:
        written, end = log(job, -TAIL_BYTES)
    except ProblemError:
        return ""
    earlier = job.log_start - (end - len(written))
    return written[max(0, earlier) :].decode(errors="replace")


def ended(job: Submitted, exit_code: int, status: EngineStatus, log_tail: str) -> Observed:
    """The state of a job whose command ended with `exit_code`. A signal after the work is complete changes nothing."""
    if status.state == State.COMPLETE and (exit_code == 0 or was_signalled(exit_code)):
        return Observed(State.COMPLETE, 0, status.message)
    message = status.message
    if exit_code == 0 and status.state != State.STOPPED:
        message = f"it ended with exit code 0 but its status says {status.state}: {message}".removesuffix(": ")
    elif status.state == State.COMPLETE or not status.exit_code:
        message = how_it_died(exit_code, log_tail)
    # torchrun exits with 1 whatever its workers exited with; the engine's status is more exact.
    reported = status.exit_code if status.state != State.COMPLETE else None
    if not reported and exit_code == Exit.NOT_DONE and not job.cancel_requested:
        return Observed(State.STOPPED, int(Exit.NOT_DONE), "it was asked to stop before the engine had begun")
    return _unfinished(job, reported or int(Exit.JOB_FAILED), message)


def ended_here(job: Submitted, exit_code: int) -> Observed:
    """`ended` for a job whose run folder can be read from here."""
    return ended(job, exit_code, EngineStatus.parse(job.run.read_status()), tail(run_folder_log, job))


def was_signalled(exit_code: int) -> bool:
    """Whether the exit code is that of torchrun after a stop request, or of a command ended by a signal."""
    return exit_code == Exit.NOT_DONE or exit_code < 0 or 128 < exit_code <= 128 + signal.NSIG


def vanished(job: Submitted, message: str) -> Observed:
    """The state of a job that the platform no longer lists: the last status of the engine decides, if the run folder
    can be read from here."""
    status = EngineStatus.parse(job.run.read_status())
    if status.state == State.COMPLETE:
        return Observed(State.COMPLETE, 0, status.message)
    if status.exit_code:
        return _unfinished(job, status.exit_code, status.message)
    return _unfinished(job, int(Exit.JOB_FAILED), message)


def how_it_died(exit_code: int, log_tail: str) -> str:
    """How the processes ended, where the engine wrote nothing: torchrun's log has each worker's exit code."""
    numbers = [int(number) for number in re.findall(r"exit ?code:? -(\d+)", log_tail)]
    if not numbers:
        numbers = [-exit_code if exit_code < 0 else exit_code - 128]
    signals = [candidate for number in numbers for candidate in signal.Signals if candidate == number]
    if signal.SIGKILL in signals:
        return "an engine process was killed (SIGKILL), by someone or something outside of it"
    if signals:
        return f"an engine process was ended by signal {signals[0].name}"
    return f"it ended with exit code {exit_code}"


def _unfinished(job: Submitted, code: int, message: str) -> Observed:
    if job.cancel_requested:
        saved = code == Exit.NOT_DONE
        return Observed(State.CANCELED, code, message if saved else "it was ended before it had saved itself")
    return Observed(State.STOPPED if code == Exit.NOT_DONE else State.ERROR, code, message)
