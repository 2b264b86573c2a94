"""SLURM over ssh: a real sshd on loopback with keys made for the test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.platforms.daemons import needed
from tests.platforms.slurm_cluster import SlurmCluster
from tests.platforms.specs import write_spec_in
from tests.platforms.test_by_hand import until_complete
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import job_results, records
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import dry_run, launch
from vidqa.jobs.platforms import platform
from vidqa.jobs.platforms import slurm as slurm_platform
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.slurm_commands import SlurmCommands
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.slurm
WriteSpec = Callable[..., Path]
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")

SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
SetEnv SLURM_CONF={conf}
"""
CLIENT = """\
Host login
    HostName 127.0.0.1
    Port {port}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
"""


@pytest.fixture(scope="module")
def login(slurm_daemons: SlurmCluster) -> Iterator[Path]:
    """The folder of a running sshd: its keys, and the `ssh_config` of a client that reaches it as "login"."""
    if SSHD is None:
        needed("sshd is not installed: apt-get install openssh-server")
        return
    folder = Path(tempfile.mkdtemp(prefix="vidqa-ssh-"))
    for name in ("host_key", "user_key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    values = {"port": port, "folder": folder, "conf": slurm_daemons.conf}
    (folder / "sshd_config").write_text(SERVER.format(**values))
    (folder / "ssh_config").write_text(CLIENT.format(**values))
    known = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {known}")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd puts away its privileges
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    deadline = time.monotonic() + 180
    while "listening" not in (folder / "sshd.log").read_text():
        assert server.poll() is None and time.monotonic() < deadline, (folder / "sshd.log").read_text()
        time.sleep(0.05)
    yield folder
    server.terminate()
    server.wait()
    shutil.rmtree(folder)


@pytest.fixture
def wanted(login: Path, tmp_path: Path) -> Resources:
    site = tmp_path / "site.toml"
    site.write_text(f'[slurm]\nssh = "login"\nssh_config = "{login / "ssh_config"}"\n')
    return Resources(site=site)


@pytest.fixture
def far(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """The cluster, with nothing here that could reach it but ssh."""
    monkeypatch.delenv("SLURM_CONF")
    return slurm


def test_a_job_over_ssh(
    far: SlurmCluster, stand_in: None, write_spec: WriteSpec, wanted: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    assert wanted.site
    wanted.site.write_text(wanted.site.read_text() + 'setup = ["echo token of ${#HF_TOKEN} letters"]\n')
    record = jobs.wait(launch("train", write_spec("complete"), "slurm", wanted).record, 120)
    assert record.state == State.COMPLETE and "token of 17 letters" in record.log.read_text()
    second = launch("train", write_spec("hang"), "slurm", wanted).record
    deadline = time.monotonic() + 600
    while "manner hang" not in second.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    second = jobs.cancel(second.job_id, 60)
    assert (second.state, second.exit_code) == (State.CANCELED, Exit.NOT_DONE)


def test_a_secret_is_in_the_environment_and_in_no_command_line(
    far: SlurmCluster, login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted secret's $value")
    look = "printenv HF_TOKEN; tr '\\0' ' ' < /proc/$$/cmdline; tr '\\0' ' ' < /proc/$PPID/cmdline; cat"
    cluster = SlurmCommands("login", str(login / "ssh_config"))
    answer = cluster.ask("bash", "-c", look, stdin="the rest\n", secrets=("HF_TOKEN", "WANDB_API_KEY"))
    assert answer.out.startswith("hf_planted secret's $value\n") and answer.out.endswith("the rest\n")
    assert answer.out.count("planted") == 1 and "bash -c" in answer.out


@pytest.mark.parametrize(
    ("broken", "said"), [("known_hosts", "verification failed"), ("user_key", "Permission denied"), ("port", "refused")]
)
def test_a_host_that_is_not_trusted_or_does_not_trust_us_is_a_problem_and_no_question(
    far: SlurmCluster, login: Path, write_spec: WriteSpec, wanted: Resources, tmp_path: Path, broken: str, said: str
) -> None:
    config = (login / "ssh_config").read_text()
    if broken == "port":
        config = "\n".join(line if "Port" not in line else "    Port 1" for line in config.splitlines())
    else:
        other = (login / "other_key.pub").read_text()
        known = (login / "known_hosts").read_text().split(" ")[0]
        (tmp_path / "known_hosts").write_text(f"{known} {other}")
        shutil.copy(login / "other_key", tmp_path / "user_key")
        config = config.replace(str(login / broken), str(tmp_path / broken))
    (tmp_path / "ssh_config").write_text(config)
    assert wanted.site
    wanted.site.write_text(f'[slurm]\nssh = "login"\nssh_config = "{tmp_path / "ssh_config"}"\n')
    with pytest.raises(ProblemError) as raised:
        launch("train", write_spec("complete"), "slurm", wanted)
    (problem,) = (each for each in raised.value.problems if each.severity == "error")
    assert problem.code == "PLATFORM_UNREACHABLE" and said in problem.message
    assert records.scan() == ([], [])


def test_what_a_dry_run_wrote_is_submitted_over_ssh(
    far: SlurmCluster, stand_in: None, wanted: Resources, tmp_path: Path
) -> None:
    """The command passes through two shells, which read nothing in the folder's name."""
    folder = tmp_path / "it's $HOME `x`"
    folder.mkdir()
    made = dry_run("train", write_spec_in(folder, "complete"), "slurm", wanted)
    (submit,) = job_results.of_dry_run(made, platform("slurm"), folder / "look").next
    done = subprocess.run(["bash", "-c", submit], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("Submitted batch job "), done
    until_complete(made.job.run_dir)


def test_a_host_that_does_not_see_the_run_folder(
    far: SlurmCluster, write_spec: WriteSpec, wanted: Resources, tmp_path: Path
) -> None:
    job, rendered, _, _ = dry_run("train", write_spec("complete"), "slurm", wanted)
    with pytest.raises(ProblemError) as raised:  # its files are not written: nobody there finds them either
        slurm_platform.submit(replace(job, run_dir=tmp_path / "elsewhere"), rendered)
    assert raised.value.problems[0].code == "PLATFORM_NOT_SHARED"
