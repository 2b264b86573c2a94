"""Where the processes of a job listen while they find each other: on one machine on its loopback alone. How a
process that is alone ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import listening
import pytest

from vidqa.engine import rendezvous

PROGRAM = Path(__file__).with_name("meets.py")
TORCHRUN = [sys.executable, "-m", "vidqa.engine.torchrun"]


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    words = [*TORCHRUN, *options, "--nproc-per-node=1" if "--nnodes=2" in options else "--nproc-per-node=2"]
    return subprocess.Popen([*words, str(PROGRAM), str(folder)], stderr=subprocess.PIPE, text=True)


def seen(folder: Path, agents: list[subprocess.Popen[str]]) -> set[str]:
    """Where the agents and their ranks listen once all have met; they end well after that."""
    deadline = time.monotonic() + 600
    while len(list(folder.glob("met-*"))) < 2 and all(agent.poll() is None for agent in agents):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = set().union(*(listening.addresses(agent.pid) for agent in agents))
    (folder / "seen").touch()
    for agent in agents:
        said = agent.communicate(timeout=120)[1]
        assert agent.returncode == 0, said
    assert sorted(path.read_text() for path in folder.glob("met-*")) == ["0 1", "0 1"]
    return found


def test_one_node_listens_on_its_loopback_alone(tmp_path: Path) -> None:
    assert seen(tmp_path, [started(tmp_path, "--standalone")]) == {"127.0.0.1"}


def alone(folder: Path, *told: int) -> subprocess.Popen[str]:
    program = [*TORCHRUN, "--standalone", "--nproc-per-node=1", str(PROGRAM.with_name("alone.py"))]
    return subprocess.Popen([*program, str(folder), *map(str, told)], stderr=subprocess.PIPE, text=True)


def met(folder: Path, job: subprocess.Popen[str]) -> int:
    """The process id of the rank, once it has its world."""
    deadline = time.monotonic() + 600
    while not (folder / "met").exists() or not (folder / "met").read_text():
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.05)
    pid, *world = map(int, (folder / "met").read_text().split())
    assert world == [0, 1, 1]
    return pid


def test_a_process_alone_listens_nowhere_else_and_is_asked_to_stop(tmp_path: Path) -> None:
    job = alone(tmp_path)
    met(tmp_path, job)
    assert listening.addresses(job.pid) <= {"127.0.0.1"}
    job.terminate()
    said = job.communicate(timeout=120)[1]
    assert job.returncode == 6 and (tmp_path / "asked").exists() and "stopped by SIGTERM" in said


def test_a_process_alone_ends_with_its_torchrun(tmp_path: Path) -> None:
    job = alone(tmp_path)
    rank = met(tmp_path, job)
    job.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{rank}").exists() and "Z" not in Path(f"/proc/{rank}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("told", "code"), [(3, 3), (-signal.SIGKILL, 5), (-signal.SIGTERM, 6)])
def test_torchrun_ends_as_the_process_alone_did(tmp_path: Path, told: int, code: int) -> None:
    job = alone(tmp_path, told)
    said = job.communicate(timeout=300)[1]
    assert job.returncode == code and f"rank 0 ended with exit code {told}" in said


def test_the_first_of_several_nodes_listens_at_the_address_that_the_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meeting = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}")
    agents = [started(tmp_path, *meeting, f"--node-rank={rank}") for rank in (0, 1)]
    assert seen(tmp_path, agents) == {"127.0.0.1"}


def test_where_the_others_may_read_another_address_the_first_node_listens_at_all_of_its_own() -> None:
    assert rendezvous._listening("localhost", 0) is None  # a name
    assert rendezvous._listening("192.0.2.1", 0) is None  # an address that is none of this machine's
    with rendezvous._listening("127.0.0.1", 0) or socket.socket() as at:
        assert at.getsockname()[0] == "127.0.0.1"
