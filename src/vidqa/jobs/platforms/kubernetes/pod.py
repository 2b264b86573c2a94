"""The first process of a pod: prepares the run folder, starts torchrun, and writes the termination message.

    python -m vidqa.jobs.platforms.kubernetes.pod --job ID --run-dir DIR --given DIR --last-words FILE --node 0 -- WORDS

The engine's exit code becomes the container's, so that the failure policy of the cluster sees 3, 4 or 6 where torchrun
exits with 0 or 1. SIGTERM is passed on to the engine, which saves.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidqa.core import files
from vidqa.core.problem import Exit
from vidqa.core.run_folder import RUN_SCHEMA, RunFolder
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.container_entrypoint import copied_output
from vidqa.jobs.platforms.engine_process import EngineStatus, was_signalled
from vidqa.jobs.platforms.supervisor import supervise

FIRST_NODE_S = 900.0  # the first node may pull its image much later
SETTLE_S = 30.0  # until the last status is visible on a network file system
MOST_BYTES = 4000  # a cluster keeps 4096 bytes of a termination message


def main(words: Sequence[str]) -> int:
    options = _options(words)
    run = RunFolder(options.run_dir)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(Exit.NOT_DONE)))  # the engine has not started
    if options.first_node and options.node > 0:
        _await_first_node(options.first_node, run, options.job)
    if is_done(run, options.job):
        print("the run is complete; this pod replaces one that was lost after that", flush=True)
        _write_termination_message(options.last_words, run, 0)
        return int(Exit.OK)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        if options.node == 0:
            begin(run, options.given, options.job)
    except OSError as failed:
        print(f"the run folder cannot be written: {failed}", flush=True)
        return int(Exit.ENVIRONMENT)
    # Pods may see each other's processes; this name distinguishes them.
    name = f"{options.job}.{options.node}" if options.node > 0 else options.job
    with copied_output(run.path / (f"log_node{options.node}.txt" if options.node else "log.txt")):
        ended = supervise(name, None, options.command)
    code = _settled_exit_code(run, ended, wait_s=SETTLE_S if options.node > 0 else 0.0)
    _write_termination_message(options.last_words, run, ended)
    return code


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="First process of an engine pod.")
    parser.add_argument("--job", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--given", type=Path, required=True, help="folder of spec.toml")
    parser.add_argument("--last-words", type=Path, required=True, help="termination message file of the pod")
    parser.add_argument("--node", type=int, required=True, help="rank of this node")
    parser.add_argument("--first-node", help="host name of the first node")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    return options


def is_done(run: RunFolder, job_id: str) -> bool:
    """Whether this job has completed the run."""
    return _state_of(run, job_id) == State.COMPLETE


def begin(run: RunFolder, config_folder: Path, job_id: str) -> None:
    """Write spec.toml and the missing part of run.json, unless the launcher sees the run folder and has written
    them."""
    earlier = run.read_run()
    jobs = earlier.get("jobs", [])
    facts = {"schema_version": RUN_SCHEMA, "run_id": run.path.name, **earlier}
    if job_id not in jobs:
        files.write_text(run.path / "spec.toml", (config_folder / "spec.toml").read_text(encoding="utf-8"))
    run.write_status(State.PENDING)  # before the job's name: the status of an earlier job is not this one's
    files.write_json(run.path / "run.json", {**facts, "jobs": jobs if job_id in jobs else [*jobs, job_id]})
    files.remove(run.path / "problems.json", owner=run.path)


def _await_first_node(host: str, run: RunFolder, job_id: str) -> None:
    """Wait until the first node has an address, longer than torchrun waits, or has completed the run. If it has
    stopped, wait for its next attempt: the store of the old attempt waits for ranks that are gone."""
    deadline = time.monotonic() + FIRST_NODE_S
    while not is_done(run, job_id) and (has_stopped(run, job_id) or not _has_address(host)):
        if time.monotonic() > deadline:
            print(f"the first node {host} has not started after {FIRST_NODE_S:.0f} s", flush=True)
            return
        time.sleep(1)


def has_stopped(run: RunFolder, job_id: str) -> bool:
    """Whether an attempt of this job has saved and stopped, and no other has started."""
    return _state_of(run, job_id) == State.STOPPED


def _state_of(run: RunFolder, job_id: str) -> State | None:
    """The state in a run folder's status, if it is this job's: `begin` replaces an older status."""
    is_own = (run.read_run().get("jobs") or [None])[-1] == job_id
    return EngineStatus.parse(run.read_status()).state if is_own else None


def _has_address(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def _settled_exit_code(run: RunFolder, ended: int, wait_s: float) -> int:
    """The engine's exit code. A node without rank 0 waits for the last status of rank 0, also after a stop request: its
    own processes may have ended first. If that status never appears because another attempt has started, processes that
    exited with 0 had saved, and the run continues."""
    deadline = time.monotonic() + wait_s
    passing = {0: (None, State.RUNNING), int(Exit.NOT_DONE): (State.RUNNING,)}.get(ended, ())
    while (status := EngineStatus.parse(run.read_status())).state in passing and time.monotonic() < deadline:
        time.sleep(0.5)
    if status.state == State.COMPLETE:
        if ended == 0 or was_signalled(ended):
            return int(Exit.OK)
    elif status.exit_code:
        return status.exit_code
    elif ended == 0 and wait_s:
        return int(Exit.NOT_DONE)
    return ended if ended == Exit.NOT_DONE else int(Exit.JOB_FAILED) if ended >= 0 else 128 - ended


def _write_termination_message(path: Path, run: RunFolder, ended: int) -> None:
    """Write the command's exit code, status.json and as many problems as the cluster keeps."""
    problems = [problem.as_dict() for problem in run.read_problems()]
    report: dict[str, Any] = {"ended": ended, "status": run.read_status(), "problems": problems}
    while len(written := json.dumps(report, ensure_ascii=False).encode()) > MOST_BYTES:
        if problems:
            problems.pop()
        elif message := report["status"].get("message"):
            report["status"]["message"] = message[: len(message) // 2]
        else:  # no engine writes such a status
            report["status"] = {}
    try:
        path.write_bytes(written)
    except OSError as failed:
        print(f"the termination message cannot be written to {path}: {failed}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
