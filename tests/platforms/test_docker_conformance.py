"""The conformance suite in containers of a real Docker daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.platforms.conformance import *  # noqa: F403
from tests.platforms.conformance import Rig
from tests.platforms.daemons import docker
from tests.platforms.specs import write_docker_site
from vidqa.jobs.platforms._base import Rendered
from vidqa.jobs.platforms.processes import job_processes
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.docker


@pytest.fixture
def rig(tmp_path: Path, docker_host: str, docker_image: str) -> Rig:
    return rig_of(tmp_path, docker_host, docker_image)


def rig_of(folder: Path, docker_host: str, docker_image: str) -> Rig:
    def remains(record: JobRecord) -> list[str]:
        containers = docker(docker_host, "ps", "--all", "--quiet", "--filter", f"label=vidqa.job={record.job_id}")
        return [*containers.splitlines(), *map(str, job_processes(record.job_id))]

    def shown(record: JobRecord) -> str:
        name = f"vidqa-{record.job_id}"
        return (
            docker(docker_host, "inspect", name) + docker(docker_host, "top", name) + docker(docker_host, "logs", name)
        )

    def lose(record: JobRecord) -> None:
        docker(docker_host, "rm", "--force", f"vidqa-{record.job_id}")

    def ran(record: JobRecord, rendered: Rendered) -> None:
        body = json.loads(rendered.files["container.json"])
        (seen,) = json.loads(docker(docker_host, "inspect", f"vidqa-{record.job_id}"))
        assert seen["Image"] == body["Image"] == docker_image
        for name in ("Entrypoint", "Cmd", "User"):
            assert seen["Config"][name] == body[name]
        assert (
            set(body["Env"]) <= set(seen["Config"]["Env"])
            and body["Labels"].items() <= seen["Config"]["Labels"].items()
        )
        host, wanted = seen["HostConfig"], body["HostConfig"]
        for mount in host["Mounts"]:
            mount.setdefault("ReadOnly", False)  # the daemon leaves out what is false
        assert {name: host[name] for name in wanted} == wanted

    site = write_docker_site(folder, "shm_gb = 1.0")
    return Rig("docker", Resources(image=docker_image, site=site), remains, shown, lose, ran)
