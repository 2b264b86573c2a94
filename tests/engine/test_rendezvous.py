"""Where the processes of a job listen while they find each other: on one machine on its loopback alone."""

from __future__ import annotations

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
