"""Where the processes of a job listen while they find each other: on one machine on its loopback alone. How those of
one machine end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import listening
import pytest
from forked import Started

from vidqa.engine import rendezvous, torchrun

PROGRAM = Path(__file__).with_name("meets.py")
TORCHRUN = [sys.executable, "-m", "vidqa.engine.torchrun"]


class Agent(Started):
    """A torchrun that forks, as its ranks do, and what it prints."""

    def __init__(self, folder: Path, *words: object) -> None:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="log-", delete=False) as log:
            super().__init__([*TORCHRUN, *words], stdout=log, stderr=log)
        self.log = Path(log.name)

    def printed(self, timeout_s: float) -> str:
        """All of it, once the agent has ended."""
        self.wait(timeout_s)
        return self.log.read_text(encoding="utf-8")


def started(folder: Path, *options: str) -> Agent:
    ranks = "--nproc-per-node=1" if "--nnodes=2" in options else "--nproc-per-node=2"
    return Agent(folder, *options, ranks, PROGRAM, folder)


def seen(folder: Path, agents: list[Agent]) -> set[str]:
    """Where the agents and their ranks listen once all have met; they end well after that."""
    deadline = time.monotonic() + 600
    while len(list(folder.glob("met-*"))) < 2 and all(agent.poll() is None for agent in agents):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = set().union(*(listening.addresses(agent.pid) for agent in agents))
    (folder / "seen").touch()
    for agent in agents:
        printed = agent.printed(120)
        assert agent.returncode == 0, printed
    assert sorted(path.read_text() for path in folder.glob("met-*")) == ["0 1", "0 1"]
    return found


def test_one_node_listens_on_its_loopback_alone(tmp_path: Path) -> None:
    assert seen(tmp_path, [started(tmp_path, "--standalone")]) == {"127.0.0.1"}


def alone(folder: Path, *codes: int) -> Agent:
    return Agent(folder, "--standalone", "--nproc-per-node=1", PROGRAM.with_name("alone.py"), folder, *codes)


def met(folder: Path, job: Agent) -> int:
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
    printed = job.printed(120)
    assert job.returncode == 6 and (tmp_path / "asked").exists() and "stopped by SIGTERM" in printed


def test_a_process_alone_ends_with_its_torchrun(tmp_path: Path) -> None:
    job = alone(tmp_path)
    rank = met(tmp_path, job)
    job.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{rank}").exists() and "Z" not in Path(f"/proc/{rank}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("of_rank", "code"), [(3, 3), (-signal.SIGKILL, 5), (-signal.SIGTERM, 6)])
def test_torchrun_ends_as_the_process_alone_did(tmp_path: Path, of_rank: int, code: int) -> None:
    job = alone(tmp_path, of_rank)
    printed = job.printed(300)
    assert job.returncode == code and f"rank 0 ended with exit code {of_rank}" in printed


RANK = """
import os, pathlib, signal, sys, time
rank, folder = os.environ["RANK"], pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (folder / f"asked-{rank}").touch())
(folder / f"{rank}-{os.environ['LOCAL_RANK']}-{os.environ['WORLD_SIZE']}-{os.environ['OMP_NUM_THREADS']}").touch()
while len(list(folder.glob("?-?-3-1"))) < 3:
    time.sleep(0.01)
"""


def three(folder: Path, then: str, grace_s: float = 300) -> subprocess.Popen[str]:
    """Three ranks that wait for each other, and then do something."""
    words = ["--standalone", "--nproc-per-node=3", "-c", RANK + then, str(folder)]
    run = f"import vidqa.engine.torchrun as ours; ours.GRACE_S = {grace_s}; ours.hard_exit(ours.main({words!r}))"
    return subprocess.Popen([sys.executable, "-P", "-c", run], stderr=subprocess.PIPE, text=True)


def test_when_a_rank_fails_the_others_are_asked_to_stop_and_the_exit_code_is_that_of_the_first(tmp_path: Path) -> None:
    job = three(
        tmp_path,
        """
if rank == "1":
    sys.exit(3)
while not (folder / f"asked-{rank}").exists():
    time.sleep(0.01)
sys.exit(5)
""",
    )
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 3 and "rank 1 ended with exit code 3" in said


def test_no_rank_at_all_is_refused() -> None:
    done = subprocess.run([*TORCHRUN, "--standalone", "--nproc-per-node=0", "x.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "at least 1" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--standalone --nproc-per-node 2 -m engine train", (2, ["-m", "engine", "train"])),
        ("--nproc-per-node=2 --standalone -m engine --nnodes 3", (2, ["-m", "engine", "--nnodes", "3"])),
        ("--nproc_per_node 2 --standalone x.py", (2, ["x.py"])),
        ("--standalone --nproc-per-node=-1 x.py", (-1, ["x.py"])),
        ("--standalone --nproc-per-node gpu x.py", None),
        ("--standalone --nproc-per-node 2 --max-restarts 3 x.py", None),
        ("--nnodes 2 --nproc-per-node 2 x.py", None),
        ("--standalone --nproc-per-node 2", None),
        ("x.py --standalone --nproc-per-node 2 y.py", None),
    ],
)
def test_the_options_of_one_node_are_known_in_any_order(words: str, told: tuple[int, list[str]] | None) -> None:
    assert torchrun.one_node(words.split()) == told


def test_when_a_rank_fails_others_that_do_not_hear_are_killed(tmp_path: Path) -> None:
    job = three(tmp_path, "os.kill(os.getpid(), signal.SIGKILL) if rank == '2' else time.sleep(600)", grace_s=0.2)
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 5 and "rank 2 ended with exit code -9" in said


def test_ranks_that_are_asked_to_stop_have_all_the_time_that_they_need(tmp_path: Path) -> None:
    job = three(
        tmp_path,
        """
while not (folder / f"asked-{rank}").exists():
    time.sleep(0.01)
time.sleep(2 * (rank == "0"))  # it saves, when the others have ended
(folder / f"saved-{rank}").touch()
sys.exit(6)
""",
        grace_s=0.01,
    )
    while len(list(tmp_path.glob("?-?-3-1"))) < 3:
        assert job.poll() is None
        time.sleep(0.01)
    job.terminate()
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 6 and "stopped by SIGTERM" in said
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1", "saved-2"}


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
