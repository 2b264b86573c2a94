"""The processes of a job on this node, one for each GPU: `--standalone --nproc-per-node N` starts them here, anything
else is torchrun with its own options, for several nodes. The end is that of the engine: its exit code, and one line
instead of torchrun's own traceback. On one node torchrun does nothing that is needed, and imports torch first, which
takes seconds while all GPUs wait.

However it ends, SIGKILL too, its processes end with it: they have sessions of their own, and would keep their GPUs. It
ends itself with a script that waits for it.

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

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # as torchrun does
GRACE_S = 30.0  # for the other ranks after one has failed: they wait for it in a collective
Rank = subprocess.Popen[bytes]


def main(words: list[str]) -> int:
    """Run the ranks of this node; the exit code is that of the one that failed first."""
    if parent := environment.take_parent():
        end_with(parent)
    # For its processes: they import nothing from the working folder, and end with this one, which starts them from its
    # main thread.
    environment.adopt({"PYTHONSAFEPATH": "1", environment.PARENT: str(os.getpid())})
    on_one_node = one_node(words)
    if on_one_node is None:
        return on_several_nodes(words)
    count, program = on_one_node
    if count < 1:
        note(f"--nproc-per-node is {count}; it is at least 1")
        return int(Exit.USAGE)
    return on_this_node(count, program)


def one_node(words: Sequence[str]) -> tuple[int, list[str]] | None:
    """The number of processes and their program, if torchrun's options, in either spelling and any order, are those of
    one node and no others; else None."""
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
    """Run `python WORDS` as each of `count` ranks."""
    received: list[int] = []
    ranks: dict[int, Rank] = {}

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        send(ranks.values(), number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    for rank, process in start(count, words):
        ranks[rank] = process
        if received:  # it came while they were being started
            send([process], received[0])
    failure = first_failure(ranks)
    if received:
        return stopped(received[0])
    return failed(*failure) if failure else int(Exit.OK)


def start(count: int, words: Sequence[str]) -> Iterator[tuple[int, Rank]]:
    """Start ranks that meet at a socket on the loopback. It is open before any of them looks for it, and handed to the
    first."""
    common = {**environment.ON_ONE_NODE, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    if count > 1 and not environment.has("OMP_NUM_THREADS"):
        common["OMP_NUM_THREADS"] = "1"  # as torchrun does
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
    """Wait for all ranks; the first that failed and its exit code. The others are asked to stop then, and killed after
    a while: they may wait for it, where no signal is heard."""
    left = {process.pid: rank for rank, process in ranks.items()}
    failure = None
    while left:
        # Without taking its exit code: until then no other process can get its number.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        rank = left.pop(ended.si_pid, None)
        if rank is None:  # left to this process, which is the first of a container
            os.waitpid(ended.si_pid, 0)
        elif (code := ranks[rank].wait()) and not failure:
            failure = (rank, code)
            others = [ranks[other] for other in left.values()]
            send(others, signal.SIGTERM)
            if code != Exit.NOT_DONE:  # it was not asked to stop, as all may have been
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
    """Run this node's ranks by torchrun."""
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
    note(f"rank {rank} ended with exit code {code}; what went wrong stands above")
    if -code in STOP_SIGNALS:  # it came before the engine could listen
        return int(Exit.NOT_DONE)
    # Any other signal that killed a process is a negative code, which is none of ours.
    return code if code > 0 else int(Exit.JOB_FAILED)


if __name__ == "__main__":
    hard_exit(main(sys.argv[1:]))
