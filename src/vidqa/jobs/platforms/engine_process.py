"""The engine's process for all platforms: its command, its environment, and the state of an ended job from the exit
code, the engine's last status and the end of its log.

Platforms detect the end of a job differently; its meaning is decided here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from vidqa.core import environment
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.jobs.platforms._base import LAUNCHER_ENDED, Job, Observed, State, Submitted, run_folder_log
from vidqa.jobs.problems import PLATFORM_NODES, PLATFORM_TOO_FEW_GPUS, SITE_SETTINGS

# Endpoints for the upload at the end of a job, unless the default ones.
ADDRESSES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_DEFAULT_REGION", "HF_ENDPOINT")
SAVE_S = 600  # seconds that torchrun gives its processes to write a checkpoint after a stop request
RENDEZVOUS_PORT = 29500
TORCHRUN = ("-m", "vidqa.engine.torchrun")
GO_ON = "--go-on"  # tells the engine to resume, if the platform restarts a job with the same command
# Packs differ in length: with expandable segments, memory freed by one is reusable for the next of any size. While CUDA
# pins host memory no kernel can be launched, so its pages are prepared before: those of a checkpoint take a minute.
ALLOCATOR = "expandable_segments:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8"
TAIL_BYTES = 20_000  # bytes of a log that are searched for the end


def engine_words(job: Job) -> tuple[str, ...]:
    """The command of each process of torchrun."""
    return ("-m", "vidqa.engine", job.action, "--spec", str(job.spec), "--run-dir", str(job.run_dir))


class Placeholder(str):
    """A word with placeholders for the node to expand, in its platform's syntax. It contains no text of the user; all
    other words are literal, whatever their characters."""


def torchrun(python: str, job: Job, first_node: str | None = None, node_rank: str | None = None) -> tuple[str, ...]:
    """The command of one node. Several nodes rendezvous at `first_node`, "HOST:PORT", the node of rank 0.

    Both arguments may contain placeholders; words with them are Placeholder. Raises PLATFORM_NODES without them.
    """
    start = (python, *TORCHRUN)
    share = f"--nproc-per-node={job.processes_per_node}"
    if job.nodes == 1:
        return (*start, "--standalone", share, *engine_words(job))
    if first_node is None or node_rank is None:
        raise PLATFORM_NODES.error("--nodes", f"this platform has one node, {job.nodes} are requested")
    host, _, port = first_node.rpartition(":")
    # Fixed ranks: a restarted job computes with the same ranks, so its sums are the same.
    meeting = (f"--node-rank={node_rank}", f"--master-addr={host}", f"--master-port={port}")
    return (*start, f"--nnodes={job.nodes}", *map(Placeholder, meeting), share, *engine_words(job))


def gpu_problems(job: Job, source: str) -> list[Problem]:
    """Problems of too few GPUs per node for its processes; a warning if none is `source` ("visible", "asked for")."""
    if job.gpus == 0:
        message = f"no GPU is {source}: {job.processes} CPU process(es) will run"
        return [PLATFORM_TOO_FEW_GPUS.at("gpus", message, severity="warning")]
    if job.processes_per_node > job.gpus:
        return [PLATFORM_TOO_FEW_GPUS.at("gpus", f"a node needs {job.processes_per_node}, {job.gpus} {source}")]
    return []


def engine_environment(job: Job, cores: int | None = None) -> dict[str, str]:
    """The environment of every job. Without a GPU, `cores` of a node, if known, are divided among processes.

    Raises SITE_SETTINGS for an address with a password: scripts, manifests and records show these values.
    """
    addresses = environment.values(ADDRESSES)
    for name, value in addresses.items():
        if value != (shown := environment.redacted(value)):
            raise SITE_SETTINGS.error(
                name,
                f"it contains a user, password or token, and would be written into the job's files: {shown}",
                f"set {name} without them; HF_TOKEN and the AWS_ keys are passed to the job without being written",
            )
    settings = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # no module is imported from the working folder
        **environment.OF_THE_ENGINE,
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVE_S),
        "PYTORCH_ALLOC_CONF": ALLOCATOR,
        **addresses,
        **environment.values(["PYTORCH_ALLOC_CONF"]),
    }
    interface = getattr(job.settings, "interface", "")
    if interface and job.nodes > 1:  # one node uses the loopback
        settings |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    if job.gpus == 0 and cores:
        settings["OMP_NUM_THREADS"] = str(max(1, cores // job.processes_per_node))
    return settings


@dataclass(frozen=True)
class EngineStatus:
    """The engine's last status.json; empty if the file is missing or broken."""

    state: State | None = None
    exit_code: int | None = None
    message: str = ""

    @staticmethod
    def parse(status: object) -> EngineStatus:
        """Parse status.json; any invalid value gives an empty status."""
        try:
            return msgspec.convert(status, EngineStatus)
        except msgspec.ValidationError:
            return EngineStatus()


def tail(log: Callable[[Any, int], tuple[bytes, int]], job: Submitted) -> str:
    """The end of this job's log, without the lines of earlier jobs of a resumed run. Empty if the log cannot be
    read."""
    try:
        written, end = log(job, -TAIL_BYTES)
    except ProblemError:
        return ""
    earlier = job.log_start - (end - len(written)) if job.log_start <= end else 0
    return written[max(0, earlier) :].decode(errors="replace")


def ended(job: Submitted, exit_code: int, status: EngineStatus, log_tail: str) -> Observed:
    """The state of a job whose command ended with `exit_code`. A signal after completion of the work has no effect."""
    if status.state == State.COMPLETE and (exit_code == 0 or was_signalled(exit_code)):
        return Observed(State.COMPLETE, 0, status.message)
    message = status.message
    if exit_code == 0 and status.state != State.STOPPED:
        message = f"it ended with exit code 0 but its status says {status.state}: {message}".removesuffix(": ")
    elif status.state == State.COMPLETE or not status.exit_code:
        message = exit_reason(exit_code, log_tail)
    # torchrun exits with 1 for any exit code of its workers; the engine's status is more exact.
    reported = status.exit_code if status.state != State.COMPLETE else None
    if not reported and exit_code == Exit.NOT_DONE and not job.cancel_requested:
        return Observed(State.STOPPED, int(Exit.NOT_DONE), "it was stopped before the engine started")
    return _unfinished(job, reported or int(Exit.JOB_FAILED), message)


def ended_locally(job: Submitted, exit_code: int) -> Observed:
    """Result of `ended` for a job whose run folder can be read from here."""
    return ended(job, exit_code, EngineStatus.parse(job.run.read_status()), tail(run_folder_log, job))


def was_signalled(exit_code: int) -> bool:
    """Whether the exit code is that of torchrun after a stop request, or of a command ended by a signal."""
    return exit_code == Exit.NOT_DONE or exit_code < 0 or 128 < exit_code <= 128 + signal.NSIG


def unlisted(job: Submitted, message: str, log: Callable[[Any, int], tuple[bytes, int]] = run_folder_log) -> Observed:
    """Result of `vanished`; without a reference and a line of the `log` the message is that it was never started."""
    return vanished(job, message if job.reference is not None or tail(log, job) else LAUNCHER_ENDED)


def vanished(job: Submitted, message: str) -> Observed:
    """The state of a job that the platform no longer lists: the last status of the engine decides, if the run folder
    can be read from here."""
    status = EngineStatus.parse(job.run.read_status())
    if status.state == State.COMPLETE:
        return Observed(State.COMPLETE, 0, status.message)
    if status.exit_code:
        return _unfinished(job, status.exit_code, status.message)
    return _unfinished(job, int(Exit.JOB_FAILED), message)


def exit_reason(exit_code: int, log_tail: str) -> str:
    """The way the processes ended, if the engine wrote no status: torchrun's log has each worker's exit code."""
    numbers = [int(number) for number in re.findall(r"exit ?code:? -(\d+)", log_tail)]
    if not numbers:
        numbers = [-exit_code if exit_code < 0 else exit_code - 128]
    signals = [candidate for number in numbers for candidate in signal.Signals if candidate == number]
    if signal.SIGKILL in signals:
        return "an engine process was killed (SIGKILL) from outside"
    if signals:
        return f"an engine process was ended by signal {signals[0].name}"
    return f"it ended with exit code {exit_code}"


def _unfinished(job: Submitted, code: int, message: str) -> Observed:
    if job.cancel_requested:
        unsaved = "it was terminated before it saved: " * (code != Exit.NOT_DONE)
        return Observed(State.CANCELED, code, f"{unsaved}{message}".removesuffix(": "))
    return Observed(State.STOPPED if code == Exit.NOT_DONE else State.ERROR, code, message)
