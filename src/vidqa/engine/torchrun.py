"""Launcher of a job's processes on this node, one per GPU: `--standalone --nproc-per-node N` starts them here; other
options are passed to torchrun, for several nodes. The exit code is that of the engine, and a failure prints one line
instead of torchrun's traceback. On one node torchrun is not needed, and it imports torch first, which
takes seconds while all GPUs wait.

However the launcher ends, even by SIGKILL, its processes end with it: they have their own sessions, and would keep
their GPUs. The launcher itself ends with a script that waits for it.

python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --spec ... --run-dir ...
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from vidqa.core import environment
from vidqa.core.cli import note
from vidqa.core.parent_death_signal import end_with
from vidqa.core.problem import Exit
from vidqa.engine.signals import STOP_SIGNALS, hard_exit

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # as in torchrun
GRACE_S = 30.0  # seconds for the other ranks after one has failed: they wait for it in a collective
Rank = subprocess.Popen[bytes]


def main(words: list[str]) -> int:
    """Run the ranks of this node; returns the exit code of the rank that failed first."""
    if parent := environment.take_parent():
        end_with(parent)
    # Inherited by the ranks: they import nothing from the working folder, and end with this process, which starts them
    # from its main thread.
    environment.adopt({"PYTHONSAFEPATH": "1", environment.PARENT: str(os.getpid())})
    on_one_node = one_node(words)
    if on_one_node is None:
        return on_several_nodes(words)
    count, program = on_one_node
    if count < 1:
        note(f"--nproc-per-node is {count}; it must be at least 1")
        return int(Exit.USAGE)
    return on_this_node(count, program)


def one_node(words: Sequence[str]) -> tuple[int, list[str]] | None:
    """The number of processes and their program, if torchrun's options, in either spelling and any order, are only
    those of one node; else None."""
    standalone, count, left = False, None, list(words)
    while left and left[0].startswith("--"):
        name, _, value = left.pop(0).partition("=")
        if name == "--standalone":
            standalone = True
        elif name.replace("_", "-") == "--nproc-per-node":
            count = value or (left.pop(0) if left else "")
        else:
            return None
    if not standalone or count is None or not count.removeprefix("-").isdecimal() or not left:
        return None
    return int(count), left


def on_this_node(count: int, words: Sequence[str]) -> int:
    """Run `python WORDS` in each of `count` ranks."""
    received: list[int] = []
    ranks: dict[int, Rank] = {}

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        send(ranks.values(), number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    for rank, process in start(count, words):
        ranks[rank] = process
        if received:  # a signal arrived during the start
            send([process], received[0])
    failure = first_failure(ranks)
    if received:
        return stopped(received[0])
    return failed(*failure) if failure else int(Exit.OK)


def start(count: int, words: Sequence[str]) -> Iterator[tuple[int, Rank]]:
    """Start ranks that meet at a socket on the loopback. It is open before any of them connects, and passed to the
    first."""
    common = {**environment.ON_ONE_NODE, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    if count > 1 and not environment.has("OMP_NUM_THREADS"):
        common["OMP_NUM_THREADS"] = "1"  # as in torchrun
    with socket.create_server((environment.LOOPBACK, 0), backlog=max(128, count)) as meeting:
        common |= {"MASTER_ADDR": environment.LOOPBACK, "MASTER_PORT": str(meeting.getsockname()[1])}
        for rank in range(count):
            variables = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            handed = [] if rank else [meeting.fileno()]
            if handed:
                variables[environment.RENDEZVOUS] = str(handed[0])
            process = subprocess.Popen(
                [sys.executable, "-u", *words],
                env=environment.child_environment(**variables),
                pass_fds=handed,
                start_new_session=True,
            )
            yield rank, process


def first_failure(ranks: Mapping[int, Rank]) -> tuple[int, int] | None:
    """Wait for all ranks; returns the first that failed and its exit code. The others then get SIGTERM, and SIGKILL
    after a while: they may be waiting in a collective, where no signal is handled."""
    left = {process.pid: rank for rank, process in ranks.items()}
    failure = None
    while left:
        # WNOWAIT keeps the zombie: until its exit code is read no other process can get its pid.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        rank = left.pop(ended.si_pid, None)
        if rank is None:  # an orphan adopted by this process, which is the first of a container
            os.waitpid(ended.si_pid, 0)
        elif (code := ranks[rank].wait()) and not failure:
            failure = (rank, code)
            others = [ranks[other] for other in left.values()]
            send(others, signal.SIGTERM)
            if code != Exit.NOT_DONE:  # it failed without a stop request, which all ranks may have got
                killer = threading.Timer(GRACE_S, send, (others, signal.SIGKILL))
                killer.daemon = True
                killer.start()
    return failure


def send(ranks: Iterable[Rank], number: int) -> None:
    for process in ranks:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def on_several_nodes(words: list[str]) -> int:
    """Run this node's ranks with torchrun."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
    from torch.distributed.run import parse_args
    from torch.distributed.run import run as torchrun

    from vidqa.engine import rendezvous

    options = parse_args(words)
    rendezvous.prepare(options)
    try:
        record(torchrun)(options)
    except ChildFailedError as errors:
        rank, failure = errors.get_first_failure()
        return failed(rank, failure.exitcode)
    except SignalException as ended:
        return stopped(ended.sigval)
    return int(Exit.OK)


def stopped(number: int) -> int:
    note(f"stopped by {signal.Signals(number).name}")
    return int(Exit.NOT_DONE)


def failed(rank: int, code: int) -> int:
    """The exit code for a rank that ended with `code`."""
    note(f"rank {rank} ended with exit code {code}; the cause is printed above")
    if -code in STOP_SIGNALS:  # the signal came before the engine installed its handler
        return int(Exit.NOT_DONE)
    # Any other signal that killed a process is a negative code, which is no exit code of this project.
    return code if code > 0 else int(Exit.JOB_FAILED)


if __name__ == "__main__":
    hard_exit(main(sys.argv[1:]))
