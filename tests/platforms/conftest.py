"""What platform tests share: a spec that launches, and the local platform with a stand-in for the engine."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.platforms.daemons import docker, docker_address, engine_image
from tests.platforms.slurm_cluster import SlurmCluster, started
from tests.platforms.specs import write_spec_in
from tests.platforms.stand_in import install
from vidqa.core import files
from vidqa.core.run_folder import RunFolder
from vidqa.jobs import records
from vidqa.jobs.platforms import job_store, local, processes
from vidqa.jobs.platforms import slurm as slurm_platform
from vidqa.jobs.platforms._base import Job, Rendered, State
from vidqa.jobs.platforms.processes import (
    JOB_VARIABLE,
    SUPERVISOR_VARIABLE,
    engine_processes,
    job_processes,
    supervisors,
)
from vidqa.jobs.platforms.supervisor import kill_job
from vidqa.jobs.records import JobRecord

pytest.register_assert_rewrite("tests.platforms.conformance")
ENOUGH_S = 900.0  # for whatever happens in a moment on a machine that has nothing else to do


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of the test's own; whatever its jobs left running is ended, and noticed."""
    monkeypatch.setenv("VIDQA_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    yield tmp_path / "state"
    launched = records.scan()[0]
    named = named_processes() if launched else set()
    for record in (record for record in launched if record.job_id in named):
        left = job_processes(record.job_id)
        kill_job(record.job_id)
        assert not left or not record.state.is_terminal, f"{record.job_id} is {record.state} but left {left}"
        assert not record.state.is_terminal or no_supervisor_stays(record.job_id)


def named_processes() -> set[str]:
    """The jobs of all live processes, from one look at them: some tests write hundreds of records."""
    variables = [environment for _, environment in processes._processes_naming("VIDQA_")]
    return {environment.get(name, "") for environment in variables for name in (JOB_VARIABLE, SUPERVISOR_VARIABLE)}


def no_supervisor_stays(job_id: str) -> bool:
    """A supervisor writes how its job ended as the last thing it does; ending itself takes it another moment."""
    deadline = time.monotonic() + ENOUGH_S
    while (alive := [s for s in supervisors(job_id) if s.is_alive]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive


@pytest.fixture
def write_spec(tmp_path: Path) -> Callable[..., Path]:
    """Writes a train spec whose stand-in engine has the given manner."""
    return partial(write_spec_in, tmp_path)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in engine, started without torchrun: fast."""
    install(monkeypatch.setattr)


@pytest.fixture
def over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of this machine end as they are submitted, without a process: for tests of what is kept of jobs. That of a
    spec whose manner is `killed` ends so, any other is complete."""

    def submit(job: Job, rendered: Rendered) -> dict[str, Any]:
        is_killed = tomllib.loads(job.spec_toml)["logging"]["experiment_name"] == "killed"
        if not is_killed:
            RunFolder(job.run_dir).write_status("COMPLETE", message="done", exit_code=0)
        job_store.write_exit(job.job_id, {"exit_code": -9 if is_killed else 0, "ended": files.now()})
        return {}

    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, submit=submit))


@pytest.fixture
def stand_in_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in engine under the real torchrun."""
    install(monkeypatch.setattr, under_torchrun=True)


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[str]:
    """The address of a real Docker daemon, also in DOCKER_HOST."""
    with docker_address() as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        yield address


@pytest.fixture(scope="session")
def docker_image(docker_daemon: str) -> str:
    return engine_image(docker_daemon)


@pytest.fixture
def docker_host(docker_daemon: str, state: Path) -> Iterator[str]:
    """The daemon's address; containers that a failed test has left are removed."""
    yield docker_daemon
    for record in records.scan()[0]:
        for left in docker(docker_daemon, "ps", "-aq", "--filter", f"label=vidqa.job={record.job_id}").split():
            docker(docker_daemon, "rm", "--force", left)


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[SlurmCluster]:
    """A real SLURM with two nodes."""
    with started() as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_daemons: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster, asked often; what a test has left in its queue is ended."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_daemons.conf))
    monkeypatch.setattr(slurm_platform, "SLURM", replace(slurm_platform.SLURM, poll_s=0.1))
    yield slurm_daemons
    slurm_daemons.empty()


def until_complete(record: JobRecord) -> None:
    """Until the engine says so, whatever its platform says."""
    deadline = time.monotonic() + 300
    while record.run.read_status().get("state") != State.COMPLETE:
        assert time.monotonic() < deadline, f"{record.run.read_status()}\n{record.log.read_text(errors='replace')}"
        time.sleep(0.05)


def until_engine_runs(record: JobRecord, processes: int = 1) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while time.monotonic() < deadline:
        log = record.log.read_text(errors="replace") if record.log.exists() else ""
        if len(engine_processes(record.job_id)) == processes and log.count("manner") == processes:
            return
        time.sleep(0.05)
    raise AssertionError(f"the engine did not start: {log}")
