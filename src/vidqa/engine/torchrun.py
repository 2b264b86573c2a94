"""torchrun, ending as the engine did: its exit code, and one line instead of torchrun's own traceback. Its processes
meet as vidqa.engine.rendezvous says.

However it ends, SIGKILL too, its processes end with it: they have sessions of their own, and would keep their GPUs. It
ends itself with a script that waits for it.

python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --spec ... --run-dir ...
"""

from __future__ import annotations

import os
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.run import parse_args
from torch.distributed.run import run as torchrun

from vidqa.contract import environment
from vidqa.contract.cli import note
from vidqa.contract.lifeline import end_with
from vidqa.contract.problem import Exit
from vidqa.engine import rendezvous
from vidqa.engine.ending import leave
from vidqa.engine.signals import STOP_SIGNALS


def main(words: list[str]) -> int:
    """Run torchrun with its own options; the exit code is that of the process that failed first."""
    if parent := environment.take_parent():
        end_with(parent)
    options = parse_args(words)
    rendezvous.prepare(options)
    # For its processes: they import nothing from the working folder, and end with this one, which starts them from its
    # main thread.
    environment.adopt({"PYTHONSAFEPATH": "1", environment.PARENT: str(os.getpid())})
    try:
        record(torchrun)(options)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        note(f"rank {rank} ended with exit code {failure.exitcode}; what went wrong stands above")
        if -failure.exitcode in STOP_SIGNALS:  # it came before the engine could listen
            return int(Exit.NOT_DONE)
        # Any other signal that killed a process is a negative code, which is none of ours.
        return failure.exitcode if failure.exitcode > 0 else int(Exit.JOB_FAILED)
    except SignalException as stopped:
        note(f"stopped by {stopped.sigval.name}")
        return int(Exit.NOT_DONE)
    return int(Exit.OK)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
