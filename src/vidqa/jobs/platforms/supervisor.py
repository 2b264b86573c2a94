"""Waits for a job's end and stores it: python -m vidqa.jobs.platforms.supervisor JOB EXIT_FILE COMMAND...

It outlives the launcher. It writes the exit code of COMMAND to EXIT_FILE (unless "-") and exits with it. With an
EXIT_FILE it waits for START on its standard input, and starts nothing if its launcher exits before. It passes SIGTERM
and SIGUSR1 on to the engine, which saves. When it ends, no process of the job is left.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vidqa.core import environment, files
from vidqa.jobs.platforms.processes import JOB_VARIABLE, ProcessIdentity, engine_processes, job_processes

START = b"\n"  # from the launcher, once it has found the supervisor in /proc
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LEFTOVER_GRACE_S = 30.0  # for child processes of the engine


def supervise(job_id: str, exit_file: Path | None, command: Sequence[str]) -> int:
    """Run the command and return its exit code, negative for a signal."""
    signaled: set[ProcessIdentity] = set()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: stop_engine(job_id, signaled))
    variables = environment.child_environment(**{JOB_VARIABLE: job_id})
    before = memory_kills()
    try:
        exit_code = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=variables, preexec_fn=ignore_sigusr1).wait()
    except OSError as failed:
        print(f"the job did not start: {failed}", flush=True)
        exit_code = 127
    end_leftovers(job_id)
    if exit_code and (evidence := memory_evidence(before, memory_kills())):
        print(evidence, flush=True)
    try:
        if exit_file:
            files.write_json(exit_file, {"exit_code": exit_code, "ended": files.now()})
    except OSError as failed:
        print(f"the job ended with exit code {exit_code}, which cannot be saved: {failed}", flush=True)
    return exit_code


def shell_exit_code(exit_code: int) -> int:
    """128 + n for signal n, as in a shell, since exit codes cannot be negative."""
    return exit_code if exit_code >= 0 else 128 - exit_code


def ignore_sigusr1() -> None:
    """Ignore SIGUSR1 in the child: a batch system may send its warning to every process, and torchrun would die of
    it."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def stop_engine(job_id: str, signaled: set[ProcessIdentity]) -> None:
    """Ask the engine to save and stop. If it has no processes yet, end those that would start them. Once its processes
    are `signaled`, torchrun is left alone: it ends with the last of them, which may be on another node."""
    engine = engine_processes(job_id)
    for process in engine or ([] if signaled else job_processes(job_id)):
        process.send_signal(signal.SIGTERM)
    signaled.update(engine)


def end_leftovers(job_id: str) -> None:
    """End processes that outlived the command: children of the engine's processes."""
    for process in engine_processes(job_id):
        process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    while engine_processes(job_id) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_job(job_id)


def kill_job(job_id: str) -> None:
    """Kill every process of the job, repeatedly until none is found, since one may start another meanwhile."""
    deadline = time.monotonic() + 10
    while (alive := job_processes(job_id)) and time.monotonic() < deadline:
        for process in alive:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.05)


def memory_kills(own: Path = OWN_CGROUP, cgroups: Path = CGROUPS) -> dict[Path, int]:
    """Numbers of processes in this one's control group that the kernel's OOM killer has killed, by the counter's file;
    empty without one."""
    for where in _counters(own, cgroups):
        try:
            match = re.search(r"^oom_kill (\d+)$", where.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            continue
        if match:
            return {where: int(match[1])}
    return {}


def memory_evidence(before: dict[Path, int], now: dict[Path, int]) -> str:
    """The line for a job's log; empty if no process was killed for lack of memory in between."""
    killed = {where: count - before[where] for where, count in now.items() if count > before.get(where, count)}
    lines = [f"the kernel ended {n} process(es) for lack of memory: oom_kill in {where}" for where, n in killed.items()]
    return "\n".join(lines)


def _counters(own: Path, cgroups: Path) -> list[Path]:
    """Possible paths of the counter, in control groups v2 and v1. A container may show the host's name of the group
    while its own group is the root."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    paths = []
    for _, controllers, group in (line for line in lines if len(line) == 3):
        below = group.lstrip("/")
        if not controllers:
            roots = [cgroups, cgroups / "unified"]
            paths += [folder / "memory.events" for root in roots for folder in dict.fromkeys((root / below, root))]
        elif "memory" in controllers.split(","):
            root = cgroups / "memory"
            paths += [folder / "memory.oom_control" for folder in dict.fromkeys((root / below, root))]
    return paths


if __name__ == "__main__":
    written = None if sys.argv[2] == "-" else Path(sys.argv[2])
    if written and os.read(0, 1) != START:
        sys.exit(1)  # the launcher exited before; an empty log says that nothing was started
    sys.exit(shell_exit_code(supervise(sys.argv[1], written, sys.argv[3:])))
