"""The conformance suite in a cluster: a stand-in API server whose pods are real processes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
import yaml

from tests.platforms.conformance import *  # noqa: F403
from tests.platforms.conformance import TOKEN, Rig
from tests.platforms.kubernetes_api import Cluster, cluster, kill_group
from vidqa.jobs.platforms._base import Rendered
from vidqa.jobs.platforms.kubernetes import platform as kubernetes
from vidqa.jobs.platforms.processes import job_processes
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.kubernetes
# test_kubernetes_training.py has the same in two pods, and both are preempted on the way.
del test_a_real_training_is_cancelled_and_goes_on_as_if_it_had_not_been  # noqa: F821

PLURALS = {"Job": "jobs", "ConfigMap": "configmaps", "Service": "services"}


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(kubernetes, "KUBERNETES", replace(kubernetes.KUBERNETES, poll_s=0.1))
    with cluster(tmp_path_factory.mktemp("cluster")) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        api.secrets["vidqa"] = {"HF_TOKEN": TOKEN}
        yield api


@pytest.fixture
def rig(api: Cluster, tmp_path: Path) -> Rig:
    def remains(record: JobRecord) -> list[str]:
        """A finished Job stays, as documented; its processes, and pods that still run, do not. No pod is replaced."""
        pods = api.select("pods", f"vidqa/job={record.job_id}")
        assert len(pods) <= 1
        running = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]
        return [*running, *map(str, job_processes(record.job_id))]

    def shown(record: JobRecord) -> str:
        commands = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in job_processes(record.job_id)]
        return json.dumps([*api.objects.values(), *api.requests, *commands])

    def lose(record: JobRecord) -> None:
        with api.changed:
            names = [name for kind, name in api.objects if kind == "pods"]
            api.objects.clear()
            for name in names:
                kill_group(api.processes[name].pid)

    def ran(record: JobRecord, rendered: Rendered) -> None:
        for wanted in yaml.safe_load_all(rendered.files["manifest.yaml"]):
            there = api.get(PLURALS[wanted["kind"]], wanted["metadata"]["name"])
            assert {key: there.get(key) for key in ("spec", "data")} == {
                key: wanted.get(key) for key in ("spec", "data")
            }

    table = {"python": sys.executable, "volumes": [{"mount_path": "/", "host_path": "/"}]}
    site = tmp_path.parent / f"{tmp_path.name}-site.toml"
    site.write_text(tomli_w.dumps({"kubernetes": table}))
    return Rig("kubernetes", Resources(image="engine:1", site=site), remains, shown, lose, ran)
