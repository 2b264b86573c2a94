"""A process that asked for it ends with its parent: one that hangs, and one that asks when its parent is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from vidqa.core.environment import child_environment
from vidqa.jobs.platforms.processes import ProcessIdentity

# A parent that starts a child with its own number and says the child's; then it waits, or ends at once.
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True)
print(child.pid, flush=True)
if sys.argv[2] == "waits":
    sys.stdin.read()
"""
HANGING = """
import signal, sys, time
from vidqa.core.parent_death_signal import end_with
end_with(int(sys.argv[1]))
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("hangs", flush=True)
time.sleep(600)
"""
LATE = """
import os, sys, time
from vidqa.core.parent_death_signal import end_with
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
print("orphaned", flush=True)
end_with(int(sys.argv[1]))
time.sleep(600)
"""


def test_a_process_that_hangs_ends_with_a_killed_parent() -> None:
    with begun(HANGING, "waits") as parent:
        child = child_of(parent, "hangs")
        assert child
        parent.send_signal(signal.SIGKILL)
    until_gone(child)


def test_a_process_whose_parent_is_gone_when_it_asks_ends() -> None:
    with begun(LATE, "ends") as parent:
        child = child_of(parent, "orphaned")
    until_gone(child)


def begun(child: str, parent_then: str) -> subprocess.Popen[str]:
    environment = child_environment(PYTHONPATH=os.pathsep.join(sys.path))
    words = [sys.executable, "-c", PARENT, child, parent_then]
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def child_of(parent: subprocess.Popen[str], said: str) -> ProcessIdentity | None:
    """The child once it has said so; None if it has ended since."""
    assert parent.stdout
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == f"{said}\n"
    return ProcessIdentity.of_pid(pid)


def until_gone(process: ProcessIdentity | None) -> None:
    deadline = time.monotonic() + 60
    while process and process.is_alive:
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)
