"""torchrun, ending as the engine did: its exit code, and one line instead of torchrun's own traceback. Its processes
meet as vidqa.engine.rendezvous says. One process alone meets nobody: it is started without torchrun, whose import of
torch takes seconds.

However it ends, SIGKILL too, its processes end with it: they have sessions of their own, and would keep their GPUs. It
ends itself with a script that waits for it.

python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --spec ... --run-dir ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from vidqa.contract import environment
from vidqa.contract.cli import note
from vidqa.contract.lifeline import end_with
from vidqa.contract.problem import Exit
from vidqa.engine.ending import leave
from vidqa.engine.signals import STOP_SIGNALS

ALONE = (["--standalone", "--nproc-per-node", "1"], ["--standalone", "--nproc-per-node=1"])
ONLY_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # as torchrun does


def main(words: list[str]) -> int:
    """Run torchrun with its own options; the exit code is that of the process that failed first."""
    if parent := environment.take_parent():
        end_with(parent)
    # For its processes: they import nothing from the working folder, and end with this one, which starts them from its
    # main thread.
    environment.adopt({"PYTHONSAFEPATH": "1", environment.PARENT: str(os.getpid())})
    for options in ALONE:
        if words[: len(options)] == options:
            return alone(words[len(options) :])
    return together(words)


def alone(words: list[str]) -> int:
    """Run `python WORDS` as the only rank."""
    received: list[int] = []
    variables = environment.child_environment(**ONLY_RANK, **environment.ON_ONE_NODE)
    process = subprocess.Popen([sys.executable, "-u", *words], env=variables, start_new_session=True)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    code = process.wait()
    if received:
        return stopped(received[0])
    return failed(0, code) if code else int(Exit.OK)


def together(words: list[str]) -> int:
    """Run several ranks, here or on several nodes."""
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
    leave(main(sys.argv[1:]))
