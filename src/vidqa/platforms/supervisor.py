"""Waits for a local job's end and writes it down: python -m vidqa.platforms.supervisor JOB EXIT_FILE COMMAND...

It outlives the launcher. What it writes is the exit code of COMMAND, however that ended; SIGTERM it passes on to the
engine, so that the engine saves. Nothing of the job is left running when it ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vidqa import environment, files
from vidqa.platforms.processes import JOB_VARIABLE, engine_processes, job_processes
from vidqa.platforms.records import now

LEFTOVER_GRACE_S = 30.0  # for engine processes whose torchrun was killed under them


def supervise(job_id: str, exit_file: Path, command: Sequence[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: stop_engine(job_id))
    signal.signal(signal.SIGINT, lambda *_: stop_engine(job_id))
    variables = environment.child_environment(**{JOB_VARIABLE: job_id})
    try:
        exit_code = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=variables).wait()
    except OSError as failed:
        print(f"the job did not start: {failed}", flush=True)
        exit_code = 127
    end_leftovers(job_id)
    files.write_json(exit_file, {"exit_code": exit_code, "ended": now()})


def stop_engine(job_id: str) -> None:
    """Ask the engine to save and stop. Before it has processes of its own, what would start them is ended."""
    for process in engine_processes(job_id) or job_processes(job_id):
        process.send(signal.SIGTERM)


def end_leftovers(job_id: str) -> None:
    """End what outlived the command: decode workers, or an engine whose torchrun died."""
    for process in engine_processes(job_id):
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    while engine_processes(job_id) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_job(job_id)


def kill_job(job_id: str) -> None:
    """End every process of the job by force; again until a look finds none, as one may start another meanwhile."""
    deadline = time.monotonic() + 10
    while (found := job_processes(job_id)) and time.monotonic() < deadline:
        for process in found:
            process.send(signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    supervise(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
