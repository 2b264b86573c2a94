"""The type of platforms: functions that render, submit, observe and cancel one job, and the types they share."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

from vidqa.core import environment, files
from vidqa.core.cli import FILE_REFUSED
from vidqa.core.problem import Problem, control_characters, raise_errors
from vidqa.core.run_folder import RunFolder
from vidqa.jobs.platforms.processes import ProcessIdentity
from vidqa.jobs.problems import PLATFORM_PATH

# Classes of failures that platforms detect; jobs/failure.py has the others.
INFRASTRUCTURE, IMAGE, OUT_OF_MEMORY = "infrastructure", "image", "out of memory"
# Files of a dry run: the job's spec, and the command of a platform without files.
SPEC_FILE, RUN_SCRIPT = "spec.toml", "run.sh"
# Prefix of the message of a job that its platform refused, or whose launcher died before starting it.
NOT_STARTED = "it was not started"
LAUNCHER_ENDED = f"{NOT_STARTED}: its launcher had ended before"


class State(StrEnum):
    """The state of a job. The last four are terminal: they never change."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    CANCELED = "CANCELED"
    STOPPED = "STOPPED"  # saved before the end: resumable

    @property
    def is_terminal(self) -> bool:
        return self not in (State.PENDING, State.RUNNING)


SUBMIT_SCRIPT = "submit.sh"  # beside them if only the cluster sees the run folder: it is run there


@dataclass(frozen=True)
class Job:
    """One run in the form for platforms: `processes` engine processes on `nodes` nodes of `gpus` GPUs (0: on the CPU).

    `reads` and `writes` are the absolute files and folders of the spec; they must exist at the same paths where the job
    runs. The paths in `to_come` exist once the commands of `fetch` have run, which a launch does first. `settings` are
    the platform's own, from site.toml, as its settings model.
    """

    job_id: str
    action: str
    run_dir: Path
    processes: int
    gpus: int
    devices: tuple[str, ...] | None = None  # indices of this machine's GPUs; None on other machines
    nodes: int = 1
    image: str | None = None
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    settings: Any = None
    spec_toml: str = ""  # the text of `spec`, for jobs whose run folder this machine does not see
    named: tuple[Path, ...] = ()  # folders of media that the annotations name by absolute paths
    needs: tuple[str, ...] = ()  # names of the secrets for the spec
    to_come: tuple[Path, ...] = ()
    fetch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise PLATFORM_PATH for paths that the platforms' scripts cannot contain, including the cache's."""
        paths = dict.fromkeys(map(str, (self.run_dir, *self.reads, *self.writes, environment.cache_folder())))
        odd = [(path, characters) for path in paths if (characters := control_characters(path))]
        raise_errors([PLATFORM_PATH.at(repr(path), f"it holds {characters}") for path, characters in odd])

    @property
    def processes_per_node(self) -> int:
        return self.processes // self.nodes

    @property
    def spec(self) -> Path:
        """The job's own copy of the spec."""
        return self.run_dir / SPEC_FILE

    @property
    def log(self) -> Path:
        return self.run_dir / "log.txt"


@dataclass(frozen=True)
class Rendered:
    """The exact command of a job. `environment` is set for the job; SECRET_NAMES are passed on by name if they are set.

    `files` are written into the run folder before the job is submitted: a batch script, a manifest, a container.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The files to submit; without any, an equivalent shell command in the foreground."""
        if self.files:
            return "\n".join(f"# {name}\n{text.rstrip()}" for name, text in self.files.items())
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join(["env", *settings, *self.command])


@dataclass(frozen=True)
class Submitted:
    """The part of a job's record by which its platform finds it again.

    `launcher` is the process that launched it, `reference` the result of `submit` (None: not yet), and `settings` the
    platform's settings as recorded (`site.settings_of`). `state`, `exit_code` and `message` are the last observed ones.
    In a log shared with earlier jobs, this job's part begins at byte `log_start`.
    """

    job_id: str
    run_dir: str
    created: str
    launcher: ProcessIdentity
    nodes: int = 1
    settings: dict[str, Any] | None = None
    reference: dict[str, Any] | None = None
    cancel_requested: str | None = None
    log_start: int = 0
    state: State = State.PENDING
    exit_code: int | None = None
    message: str = ""

    @property
    def run(self) -> RunFolder:
        return RunFolder(Path(self.run_dir))

    @property
    def log(self) -> Path:
        return self.run.path / "log.txt"


# The cause of a failure: a class of jobs/failure.py, and the problem or log line as evidence.
Failure = TypedDict("Failure", {"class": str, "evidence": str})


@dataclass(frozen=True)
class Observed:
    """The present state of a job on its platform. `exit_code` is the engine's, a `core.problem.Exit`, once known.

    `failure` is set if the platform itself knows the cause; otherwise the engine's status and the log decide.
    """

    state: State
    exit_code: int | None = None
    message: str = ""
    failure: Failure | None = None


def run_folder_log(job: Submitted, position: int) -> tuple[bytes, int]:
    """Bytes of the run folder's log.txt from `position` on (negative: the last bytes), and the position after them. Of
    a log that has become shorter, as by a rotation, all bytes. Raises FILE_REFUSED."""
    return read_log_file(job.log, position)


def read_log_file(path: Path, position: int) -> tuple[bytes, int]:
    """Read any file like `run_folder_log`."""
    try:
        with files.open_plain(path) as file:
            size = file.seek(0, 2)
            begin = position if position >= 0 else max(0, size + position)
            file.seek(begin if begin <= size else 0)
            gained = file.read()
            return gained, file.tell()
    except FileNotFoundError:
        return b"", max(position, 0)
    except OSError as failed:
        raise FILE_REFUSED.error(
            path, f"it cannot be read: {failed}", "look at the file; the job itself does not need it"
        ) from failed


def instant(text: str, otherwise: datetime) -> datetime:
    """Parse an ISO 8601 time, UTC if it has no offset; `otherwise` for other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return otherwise
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def copy_command(names: Iterable[str], folder: Path, run_dir: Path) -> str:
    """The shell command that copies files of `folder` into the run folder."""
    run, sources = shlex.quote(str(run_dir)), shlex.join([str(folder / name) for name in names])
    return f"mkdir -p {run} && cp {sources} {run}"


@dataclass(frozen=True)
class Platform:
    """The functions and properties of one platform.

    check(job)                  problems that keep the job from running here, and warnings
    render(job)                 the literal command and environment, and the files to submit
    submit(job, rendered)       starts it; returns the reference by which it is found again. Raises PLATFORM_SILENT
                                if it may have started although there was no answer
    status(submitted)           the present state; never inferred from an earlier observation
    cancel(submitted, grace_s)  asks the engine to save and stop, kills it after `grace_s`; returns when it is over
    visible_gpus(settings)      GPUs per node, None if the launcher cannot see them: then `--gpus` or the spec decides
    log(submitted, position)    the log's bytes from `position` (negative: from the end), and the new position
    sees_all(settings)          whether jobs see every folder of the machine, instead of only mounted ones
    needs_image(settings)       whether jobs run in a container image
    pin_image(image, settings, fetch)   the image pinned by digest; with `fetch` pulled first if necessary
    settings                    pydantic model of its table in site.toml
    submit_command(job, folder) the shell command that submits the files of a dry run in `folder`; "" if impossible
    away                        codes of problems of an unreachable platform, which a dry run tolerates
    has_queue                   whether jobs may wait long for their machines, without cost
    poll_s                      seconds between two observations while waiting
    """

    name: str
    check: Callable[[Job], list[Problem]]
    render: Callable[[Job], Rendered]
    submit: Callable[[Job, Rendered], dict[str, Any]]
    status: Callable[[Submitted], Observed]
    cancel: Callable[[Submitted, float], None]
    visible_gpus: Callable[[Any], int | None]
    log: Callable[[Submitted, int], tuple[bytes, int]] = run_folder_log
    sees_all: Callable[[Any], bool] = lambda settings: False
    needs_image: Callable[[Any], bool] = lambda settings: False
    pin_image: Callable[[str, Any, bool], str] = lambda image, settings, fetch: image
    settings: type | None = None
    submit_command: Callable[[Job, Path], str] = lambda job, folder: ""
    away: tuple[str, ...] = ()
    has_queue: bool = False
    poll_s: float = 0.2
