"""One study on every platform: in containers, on a real SLURM, in pods of a stand-in cluster. Trials take no time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from small_studies import RATE, carry_out, history, outcome, write_study

from tests.platforms.conftest import docker_daemon, docker_host, docker_image, slurm, slurm_daemons
from tests.platforms.kubernetes_api import cluster
from tests.platforms.slurm_cluster import SlurmCluster
from tests.platforms.specs import write_docker_site
from vidqa.automl import commands
from vidqa.jobs import records
from vidqa.jobs.platforms.kubernetes import platform as kubernetes

__all__ = ["docker_daemon", "docker_host", "docker_image", "slurm", "slurm_daemons"]
pytestmark = pytest.mark.usefixtures("quick_trials")
ENOUGH_S = 600.0
RUNGS = ("steps.shortest=2", "steps.longest=8", "steps.reduction=2")


@pytest.fixture
def in_containers(tmp_path: Path, docker_host: str, docker_image: str, quick_trials: None) -> list[str]:
    site = write_docker_site(tmp_path)
    return ["platform=docker", f"resources.image={docker_image}", f"resources.site={site}"]


@pytest.fixture
def on_slurm(slurm: SlurmCluster) -> list[str]:
    return ["platform=slurm"]


@pytest.fixture
def in_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(kubernetes, "KUBERNETES", replace(kubernetes.KUBERNETES, poll_s=0.1))
    table = {"python": sys.executable, "volumes": [{"mount_path": "/", "host_path": "/"}]}
    (tmp_path / "site.toml").write_text(tomli_w.dumps({"kubernetes": table}))
    with cluster(tmp_path / "cluster") as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield ["platform=kubernetes", "resources.image=engine:1", f"resources.site={tmp_path / 'site.toml'}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("in_containers", marks=pytest.mark.docker),
        pytest.param("on_slurm", marks=pytest.mark.slurm),
        "in_pods",
    ],
)
def test_a_study_ends_with_the_same_table_on_every_platform(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sets = request.getfixturevalue(place)
    here = carry_out(write_study(tmp_path / "here", *RUNGS, algorithm="hyperband"))
    study = write_study(tmp_path / "there", *RUNGS, "resources.gpus=0", *sets, algorithm="hyperband")
    there = carry_out(study)
    assert there.finished and outcome(there) == outcome(here) and there.winner == here.winner
    assert [result.steps for result in there.trials[there.winner].measured][-1] == 8
    jobs = [record for record in records.scan()[0] if record.output_dir.startswith(str(study))]
    assert {each.platform for each in jobs} == {sets[0].partition("=")[2]}
    assert sorted(each.job_id for each in jobs) == sorted(work.job_id for work in there.work.values())


@pytest.mark.slow
@pytest.mark.slurm
def test_trials_whose_nodes_are_lost_go_on_when_the_nodes_are_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("[slurm]\nrestarts = 0\n")  # so that the study itself has to begin again
    sets = ("platform=slurm", "resources.gpus=0", f"resources.site={site}")
    study = write_study(tmp_path, *sets, manner="hang", algorithm="agent", max_trials=2)
    commands.enqueue(study, [f"{RATE}=1e-3"], "agent")
    thread = threading.Thread(target=carry_out, args=(study,))
    thread.start()
    deadline = time.monotonic() + ENOUGH_S
    while len(list(study.glob("trials/*/runs/*/attempts"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    for node in slurm.nodes:
        slurm.lose(node)
    for node in slurm.nodes:
        slurm.bring_back(node)
    thread.join(ENOUGH_S)
    found = history(study)
    assert found.finished and [trial.state for trial in found.trials] == ["complete", "complete"]
    assert {work.retries for work in found.work.values()} == {1}
    assert len(list(study.glob("trials/*/runs/*"))) == 2, "each went on in its run folder"
