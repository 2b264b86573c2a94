"""A real SLURM of this machine's own, on loopback: one controller, two nodes, all its files in one folder.

with started() as cluster:      # SLURM_CONF is to be cluster.conf for whatever asks it
    cluster.lose("n2")          # the node's daemon and everything that runs on it, killed
    cluster.bring_back("n2")
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.platforms.daemons import needed

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
MARK = "VIDQA_TEST_CLUSTER"  # in the environment of every daemon: the cluster's folder and the node's name
START_LIMIT_S = 300
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # where daemons are

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=300
MessageTimeout=30
KillWait=5
MinJobAge=300
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 Gres=gpu:2 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """The daemons of one cluster, each started here and stopped by its own pid."""

    nodes = ("n1", "n2")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        controller, first = _free_ports()
        names = {"host": socket.gethostname().partition(".")[0], "user": subprocess.getoutput("id -un")}
        ports = {"controller": controller, "first": first, "last": first + 1}
        self.conf.write_text(CONF.format(folder=self.folder, **names, **ports))
        gpus = "".join(f"Name=gpu File=/dev/{device}\n" for device in ("null", "zero"))  # as good as any to be counted
        (self.folder / "gres.conf").write_text(gpus)
        for name in ("state", *self.nodes):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        files = {"key-file": key, "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{name}={self.folder / file}" for name, file in {**files, "seed-file": "munged.seed"}.items()]
        self._start("munged", ["munged", "--foreground", "--force", *options])
        _until((self.folder / "munge.socket").exists, "munged")
        for node in self.nodes:
            self.bring_back(node)
        self.start_controller("-c")

    def ask(self, *words: str) -> str:
        """What one of SLURM's commands prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=300)
        return done.stdout.strip()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": PATH}

    def bring_back(self, node: str) -> None:
        self._start(node, ["slurmd", "-D", "-N", node])

    def lose(self, node: str, *, noticed: bool = True) -> None:
        """Kill the node's daemon first, then all that runs on it, so that nobody reports anything any more. The
        controller notices by itself after SlurmdTimeout; `noticed` is a health check that tells it at once."""
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait()
        _kill({f"{MARK}={self.folder}/{node}"})
        _kill({f"SLURM_CONF={self.conf}", f"SLURMD_NODENAME={node}"})
        if noticed:
            self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def forget(self, slurm_id: str) -> None:
        """Kill a job's processes while the controller does not look, and give it a controller that knows no job."""
        self.stop_controller()
        _kill({f"SLURM_CONF={self.conf}", f"SLURM_JOB_ID={slurm_id}"})
        self.start_controller("-c")

    def stop_controller(self) -> None:
        controller = self.daemons.pop("slurmctld")
        controller.terminate()
        controller.wait()

    def start_controller(self, *options: str) -> None:
        """With "-c" it has forgotten everything."""
        self._start("slurmctld", ["slurmctld", "-D", *options])
        _until(lambda: self.ask("sinfo", "-h", "-o", "%D %t") == "2 idle", "the nodes")

    def impatient(self, folder: Path, **changes: object) -> Path:
        """A slurm.conf for clients that do not wait for the controller themselves, with other changes."""
        asked = {**changes, "MessageTimeout": 1}
        lines = [line for line in self.conf.read_text().splitlines() if line.partition("=")[0] not in asked]
        path = folder / "impatient.conf"
        path.write_text("\n".join([*lines, *(f"{name}={value}" for name, value in asked.items())]))
        return path

    def start_now(self, slurm_id: str) -> None:
        """Start a job that is back in the queue. SLURM itself waits two minutes, because a node may take a job that
        comes back within the second in which it had to end it for that very attempt."""
        _until(lambda: self.ask("sinfo", "-h", "-o", "%D %t") == "2 idle", "idle nodes")
        time.sleep(2)
        self.ask("scontrol", "update", f"JobId={slurm_id}", "StartTime=now")

    def empty(self) -> None:
        """End every job there is, and what an impatient client's second attempt submits meanwhile."""
        user = subprocess.getoutput("id -un")

        def is_empty() -> bool:
            self.ask("scancel", "--full", "--signal=KILL", "--user", user)
            self.ask("scancel", "--user", user)
            return self.ask("squeue", "-h") == ""

        _until(is_empty, "empty queue", every_s=1)

    def stop(self) -> None:
        user = subprocess.getoutput("id -un")
        self.ask("scancel", "--full", "--signal=KILL", "--user", user)
        for node in self.nodes:
            if node in self.daemons:
                self.lose(node, noticed=False)
        for name in reversed(list(self.daemons)):
            self.daemons[name].terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, words: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                words,
                env={**self.environment, MARK: f"{self.folder}/{name}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextmanager
def started() -> Iterator[SlurmCluster]:
    """A cluster, or a skip that says what is missing; in CI, where it is installed, that is a failure."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        message = f"SLURM is not installed ({', '.join(missing)}): apt-get install slurm-wlm munge"
        needed(message)
    cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="vidqa-slurm-", dir="/tmp")))  # a socket's path must be short
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _kill(marks: set[str]) -> None:
    """Kill the processes that have all these variables."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if marks <= set(variables):
            with suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)


def _free_ports() -> tuple[int, int]:
    """A port for the controller, and the first of two for the nodes. Daemons are stopped and started again: meanwhile
    nobody's connection may get their port, as it might if the system gave it out by itself."""
    given_out = range(*map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    while True:
        first = random.randrange(10_000, 65_530)
        ports = range(first, first + 3)
        if first in given_out or ports[-1] in given_out:
            continue
        with ExitStack() as held, suppress(OSError):
            for port in ports:
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first, first + 1


def _until(met: Callable[[], bool], what: str, every_s: float = 0.05) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not met():
        assert time.monotonic() < deadline, f"no {what} within {START_LIMIT_S} s"
        time.sleep(every_s)
