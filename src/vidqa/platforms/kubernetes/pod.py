"""Runs inside a pod, as its first process: prepares the run folder, starts torchrun, and leaves last words.

    python -m vidqa.platforms.kubernetes.pod --job ID --run-dir DIR --given DIR --last-words FILE --node 0 -- COMMAND...

The engine's own exit code becomes the container's, so that the cluster's policy for failures and whoever reads the
pod's state see 3, 4 or 6 where torchrun would say 0 or 1. SIGTERM is passed on to the engine, which saves.
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

from vidqa.contract import files
from vidqa.contract.problem import Exit
from vidqa.contract.run_folder import RUN_SCHEMA, RunFolder
from vidqa.platforms._base import State
from vidqa.platforms.inside import copied_output
from vidqa.platforms.supervisor import supervise
from vidqa.platforms.verdict import EngineStatus, was_signalled

FIRST_NODE_S = 900.0  # the other nodes' images may be pulled long after ours
SETTLE_S = 30.0  # for the last status to be seen through a network file system
MOST_BYTES = 4000  # a cluster keeps 4096 bytes of a pod's last words


def main(words: Sequence[str]) -> int:
    options = _options(words)
    run = RunFolder(options.run_dir)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(Exit.NOT_DONE)))  # nothing has begun yet
    if options.first_node and options.node > 0:
        _await_first_node(options.first_node, run, options.job)
    if is_done(run, options.job):
        print("the run is complete; this pod takes the place of one that was lost after that", flush=True)
        _leave_last_words(options.last_words, run, 0)
        return int(Exit.OK)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        if options.node == 0:
            begin(run, options.given, options.job)
    except OSError as failed:
        print(f"the run folder cannot be written: {failed}", flush=True)
        return int(Exit.ENVIRONMENT)
    # Pods may see each other's processes; those of each are told apart by this name.
    name = f"{options.job}.{options.node}" if options.node > 0 else options.job
    with copied_output(run.path / _log_name(options.node)):
        ended = supervise(name, None, options.command)
    code = _settled_exit_code(run, ended, wait_s=SETTLE_S if options.node > 0 else 0.0)
    _leave_last_words(options.last_words, run, ended)
    return code


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The first process of an engine pod.")
    parser.add_argument("--job", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--given", type=Path, required=True, help="folder that holds spec.toml")
    parser.add_argument("--last-words", type=Path, required=True, help="file that the cluster keeps with the pod")
    parser.add_argument("--node", type=int, required=True, help="rank of this node")
    parser.add_argument("--first-node", help="name by which the first node is found")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    return options


def is_done(run: RunFolder, job_id: str) -> bool:
    """Whether this very job has completed the run."""
    return _is_of(run, job_id) and EngineStatus.of(run.read_status()).state == State.COMPLETE


def begin(run: RunFolder, given: Path, job_id: str) -> None:
    """Write spec.toml and what is missing of run.json, unless a launcher that sees the run folder has."""
    earlier = run.read_run()
    jobs = earlier.get("jobs", [])
    facts = {"schema_version": RUN_SCHEMA, "run_id": run.path.name, **earlier}
    if job_id not in jobs:
        files.write_text(run.path / "spec.toml", (given / "spec.toml").read_text(encoding="utf-8"))
    run.write_status(State.PENDING)  # before the job's name: what an earlier job has said is not this one's
    files.write_json(run.path / "run.json", {**facts, "jobs": jobs if job_id in jobs else [*jobs, job_id]})
    (run.path / "problems.json").unlink(missing_ok=True)


def _await_first_node(host: str, run: RunFolder, job_id: str) -> None:
    """Until the first node has a name and so an address; torchrun itself would give up sooner. A node whose work is
    done has none any more. One that has stopped still has the store of the attempt before: whoever met it there would
    wait for ranks that are gone, so it is waited for until it begins anew."""
    deadline = time.monotonic() + FIRST_NODE_S
    while not is_done(run, job_id) and (has_stopped(run, job_id) or not _has_address(host)):
        if time.monotonic() > deadline:
            print(f"the first node {host} has not begun after {FIRST_NODE_S:.0f} s", flush=True)
            return
        time.sleep(1)


def has_stopped(run: RunFolder, job_id: str) -> bool:
    """Whether an attempt of this very job has saved itself and no other has begun."""
    return _is_of(run, job_id) and EngineStatus.of(run.read_status()).state == State.STOPPED


def _is_of(run: RunFolder, job_id: str) -> bool:
    """Whether the status in a run folder is this job's: its beginning made that another one."""
    return (run.read_run().get("jobs") or [None])[-1] == job_id


def _has_address(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def _log_name(node: int) -> str:
    return "log.txt" if node == 0 else f"log_node{node}.txt"


def _settled_exit_code(run: RunFolder, ended: int, wait_s: float) -> int:
    """The engine's own exit code. A node without rank 0 waits until it sees what rank 0 wrote last, also where it was
    asked to stop while the engine ran: its own processes may just have been the first that were done. Where rank 0's
    word never shows, as another attempt has begun over it, processes that ended well had saved: the run goes on."""
    deadline = time.monotonic() + wait_s
    passing = {0: (None, State.RUNNING), int(Exit.NOT_DONE): (State.RUNNING,)}.get(ended, ())
    while (status := EngineStatus.of(run.read_status())).state in passing and time.monotonic() < deadline:
        time.sleep(0.5)
    if status.state == State.COMPLETE:
        if ended == 0 or was_signalled(ended):
            return int(Exit.OK)
    elif status.exit_code:
        return status.exit_code
    elif ended == 0 and wait_s:
        return int(Exit.NOT_DONE)
    return ended if ended == Exit.NOT_DONE else int(Exit.JOB_FAILED) if ended >= 0 else 128 - ended


def _leave_last_words(path: Path, run: RunFolder, ended: int) -> None:
    """The command's exit code, status.json, and the first problems, as many as the cluster keeps."""
    words: dict[str, Any] = {"ended": ended, "status": run.read_status(), "problems": _problems(run)}
    while len(_bytes(words)) > MOST_BYTES:
        if words["problems"]:
            words["problems"] = words["problems"][:-1]
        else:
            message = str(words["status"].get("message"))
            words["status"] = {**words["status"], "message": message[: len(message) // 2]}
    try:
        path.write_bytes(_bytes(words))
    except OSError as failed:
        print(f"the last words could not be left in {path}: {failed}", flush=True)


def _bytes(words: dict[str, Any]) -> bytes:
    return json.dumps(words, ensure_ascii=False).encode()


def _problems(run: RunFolder) -> list[Any]:
    try:
        found = json.loads((run.path / "problems.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
