"""What a platform is: five functions that render, submit, observe and cancel one job."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from vidqa.problem import Problem

SECRETS = ("HF_TOKEN", "WANDB_API_KEY")  # a job gets them by name, from the environment of whoever launches it


class State(StrEnum):
    """What is known of a job. The last four are terminal: they never change."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    CANCELED = "CANCELED"
    STOPPED = "STOPPED"  # saved itself before the end: resumable

    @property
    def is_terminal(self) -> bool:
        return self not in (State.PENDING, State.RUNNING)


@dataclass(frozen=True)
class Job:
    """One run as a platform sees it: `processes` engine processes on `gpus` visible GPUs (0: on the CPU)."""

    job_id: str
    action: str
    run_dir: Path
    processes: int
    gpus: int

    @property
    def spec(self) -> Path:
        """The job's own copy of the spec."""
        return self.run_dir / "spec.toml"

    @property
    def log(self) -> Path:
        return self.run_dir / "log.txt"


@dataclass(frozen=True)
class Rendered:
    """Exactly what will run. `environment` is set for the job; `secrets` are inherited by name where they are set."""

    command: tuple[str, ...]
    environment: dict[str, str]
    secrets: tuple[str, ...] = SECRETS

    @property
    def shown(self) -> str:
        """One shell command that does the same in the foreground."""
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join(["env", *settings, *self.command])


@dataclass(frozen=True)
class Observed:
    """What the platform sees of a job now. `exit_code` is the engine's, as vidqa.problem.Exit, once it is known."""

    state: State
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True)
class Platform:
    """How one kind of machine runs jobs.

    check(job)                  what keeps the job from running here, and warnings
    render(job)                 the literal command and environment
    submit(job, rendered)       starts it; returns the reference that a record keeps
    status(record)              what is true now; never a guess from an earlier look
    cancel(record, grace_s)     asks the engine to save and stop, ends it by force after `grace_s`; returns when over
    """

    name: str
    check: Callable[[Job], list[Problem]]
    render: Callable[[Job], Rendered]
    submit: Callable[[Job, Rendered], dict[str, Any]]
    status: Callable[[Any], Observed]
    cancel: Callable[[Any, float], None]
