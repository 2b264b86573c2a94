"""Everything that can be wrong with Docker, made here for real, has a problem of its own; no container stays of it."""

from __future__ import annotations

import http.server
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from tests.platforms.conftest import ENOUGH_S, until_engine_runs
from tests.platforms.daemons import answers, docker, labelled_image, start
from tests.platforms.specs import write_docker_site
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import images, records, runs
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import dry_run, launch, retry
from vidqa.jobs.platforms import docker as docker_platform
from vidqa.jobs.platforms import docker_daemon
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.docker import container_name, pinned
from vidqa.jobs.platforms.docker_daemon import facts_of
from vidqa.jobs.platforms.processes import ProcessIdentity
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.docker
WriteSpec = Callable[..., Path]
HOLLOW = "vidqa-test-hollow:1"


@pytest.fixture
def hollow(docker_host: str) -> str:
    """An image that passes for the engine and has nothing in it."""
    return labelled_image(docker_host, HOLLOW)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_docker_site(tmp_path)


@pytest.fixture
def started(
    docker_host: str, docker_image: str, stand_in: None, write_spec: WriteSpec, tmp_path: Path
) -> Callable[..., JobRecord]:
    """Starts the stand-in engine in the real image; `more` are keys of [docker]."""

    def start(manner: str, more: str = "") -> JobRecord:
        wanted = Resources(image=docker_image, site=write_docker_site(tmp_path, more))
        return launch("train", write_spec(manner), "docker", wanted).record

    return start


def refusal(spec: Path, wanted: Resources) -> tuple[list[str], int, str]:
    """The codes of errors, the exit code and the text of a launch that is refused."""
    with pytest.raises(ProblemError) as refused:
        launch("train", spec, "docker", wanted)
    codes = [problem.code for problem in refused.value.problems if problem.severity == "error"]
    return codes, refused.value.exit_code, str(refused.value)


def containers(address: str) -> list[str]:
    """All of them that belong to a job of this test's records."""
    names = docker(address, "ps", "--all", "--format", "{{.Names}}").splitlines()
    return [name for name in names if name in {container_name(record.job_id) for record in records.scan()[0]}]


def test_no_daemon(write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    codes, exit_code, text = refusal(write_spec("complete"), Resources(image=HOLLOW))
    assert (codes, exit_code) == (["PLATFORM_UNREACHABLE"], Exit.ENVIRONMENT)
    assert f"{tmp_path}/none" in text and "does not answer" in text
    assert records.scan() == ([], []) and not (tmp_path / "runs").exists()


def test_no_permission(docker_host: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody who may not")
    child = os.fork()  # what is imported already can be used by somebody to whom the checkout is closed
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with docker_daemon.daemon() as client:
                client.ping()
        except ProblemError as refused:
            (problem,) = refused.problems
            code = 0 if problem.code == "PLATFORM_UNREACHABLE" and "may not be opened" in problem.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Registry(http.server.BaseHTTPRequestHandler):
    """Answers for every image as its name asks: NAME/404, NAME/401."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status = 200 if self.path == "/v2/" else int(self.path.split("/")[2].removeprefix("status"))
        name = {404: "MANIFEST_UNKNOWN", 401: "UNAUTHORIZED", 403: "DENIED"}.get(status, "")
        words = {404: "manifest unknown", 401: "authentication required", 403: "denied"}.get(status, "")
        body = json.dumps({"errors": [{"code": name, "message": words}]} if name else {}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(("status", "remedy"), [(404, "docker/build.sh"), (401, "docker login"), (403, "docker login")])
def test_an_image_that_cannot_be_pulled(
    docker_host: str, registry: str, write_spec: WriteSpec, status: int, remedy: str
) -> None:
    image = f"{registry}/status{status}:1"
    codes, exit_code, text = refusal(write_spec("complete"), Resources(image=image))
    assert (codes, exit_code) == (["PLATFORM_IMAGE_UNUSABLE"], Exit.ENVIRONMENT) and image in text and remedy in text
    assert records.scan() == ([], [])
    _, _, _, problems = dry_run("train", write_spec("complete"), "docker", Resources(image=image))
    assert ("PLATFORM_IMAGE_UNUSABLE", "warning") in [(p.code, p.severity) for p in problems]


def test_a_registry_that_does_not_answer(docker_host: str, write_spec: WriteSpec) -> None:
    nobody = "127.0.0.1:9"  # the port of discard, which nobody serves
    codes, _, text = refusal(write_spec("complete"), Resources(image=f"{nobody}/engine:1"))
    assert codes == ["PLATFORM_IMAGE_UNUSABLE"] and "docker load" in text and "docker login" not in text


def test_no_image_is_recorded_and_the_recorded_one_needs_a_yes(
    docker_host: str, hollow: str, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    config.write_text((SKILL_ROOT / "config.json").read_text())
    monkeypatch.setattr(images, "CONFIG", config)
    if images.recorded(config) is None:
        assert refusal(write_spec("complete"), Resources())[:2] == (["PLATFORM_IMAGE_UNUSABLE"], Exit.ENVIRONMENT)
    subprocess.run(
        [sys.executable, "-m", "vidqa.jobs.images", HOLLOW, hollow, str(config)], check=True, cwd=SKILL_ROOT / "src"
    )
    assert images.recorded(config) == (HOLLOW, hollow)
    assert json.loads(config.read_text())["actions"] == json.loads((SKILL_ROOT / "config.json").read_text())["actions"]
    codes, exit_code, text = refusal(write_spec("complete"), Resources())
    assert (codes, exit_code) == (["NOT_AGREED"], Exit.REFUSED) and HOLLOW in text and hollow in text
    job, _, _, problems = dry_run("train", write_spec("complete"), "docker", Resources())
    assert job.image == hollow and "NOT_AGREED" in [problem.code for problem in problems]


def test_an_image_is_pinned_by_the_digest_of_its_own_repository() -> None:
    facts = {"Id": "sha256:1", "RepoDigests": ["other/engine@sha256:2", "here:5000/engine@sha256:3"]}
    assert pinned("here:5000/engine:0.1.0", facts) == "here:5000/engine@sha256:3"
    assert pinned("here:5000/engine", facts) == "here:5000/engine@sha256:3"
    assert pinned("engine:1", facts) == pinned("sha256:1", facts) == "sha256:1"


def test_an_image_that_is_no_engine(docker_host: str, write_spec: WriteSpec) -> None:
    other = labelled_image(docker_host, "vidqa-test-other:1", title="something-else")
    codes, _, text = refusal(write_spec("complete"), Resources(image=other))
    assert codes == ["PLATFORM_IMAGE_UNUSABLE"] and "this project's engine" in text


def test_no_nvidia_runtime(docker_host: str, hollow: str, write_spec: WriteSpec, site: Path) -> None:
    if "nvidia" in docker(docker_host, "info", "--format", "{{json .Runtimes}}"):
        pytest.skip("this daemon has the runtime")
    codes, exit_code, text = refusal(write_spec("complete"), Resources(image=hollow, gpus=1, site=site))
    assert (codes, exit_code) == (["PLATFORM_REFUSED"], Exit.ENVIRONMENT) and "NVIDIA Container Toolkit" in text
    (record,) = records.scan()[0]
    assert record.state == State.ERROR and record.failure and record.failure["class"] == "infrastructure"
    assert containers(docker_host) == []


def test_a_name_that_is_taken(
    docker_host: str, hollow: str, write_spec: WriteSpec, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "new_name", lambda *_: "taken")
    other = docker(docker_host, "create", "--name", container_name("taken"), hollow)
    try:
        codes, _, text = refusal(write_spec("complete"), Resources(image=hollow, site=site))
        assert codes == ["PLATFORM_REFUSED"] and "docker rm NAME" in text
        assert docker(docker_host, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"id={other}") == other
    finally:
        docker(docker_host, "rm", other)


def test_an_image_without_the_program(docker_host: str, hollow: str, write_spec: WriteSpec, site: Path) -> None:
    launched = launch("train", write_spec("complete"), "docker", Resources(image=hollow, site=site))
    record = jobs.wait(launched.record, ENOUGH_S)
    assert (record.state, jobs.exit_code(record)) == (State.ERROR, Exit.JOB_FAILED)
    assert record.failure and record.failure["class"] == "image" and "python" in record.failure["evidence"]
    assert "python" in record.log.read_text() and containers(docker_host) == []
    docker(docker_host, "image", "rm", "--force", hollow)
    with pytest.raises(ProblemError) as refused:
        retry(record)
    assert hollow in str(refused.value) and len(records.scan()[0]) == 1  # no job of an image that cannot be had


def test_words_of_a_registry_are_read_only_where_one_was_asked() -> None:
    said = APIError("x", explanation="runc create failed: error mounting /data: permission denied: unknown")
    assert docker_daemon.refusal("here", said).problems[0].code == "PLATFORM_REFUSED"
    asked = docker_daemon.refusal("here", said, docker_daemon.OF_A_PULL)
    assert asked.problems[0].code == "PLATFORM_IMAGE_UNUSABLE"


def test_limits_that_the_daemon_may_not_raise() -> None:
    said = APIError("x", explanation="runc create failed: error setting rlimit type 8: operation not permitted")
    (problem,) = docker_daemon.refusal("here", said).problems
    assert problem.code == "PLATFORM_REFUSED" and "`ulimits = {}`" in problem.remedy


def test_ssh_without_its_package(write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://gpu-box")
    monkeypatch.setitem(sys.modules, "paramiko", None)
    codes, exit_code, text = refusal(write_spec("complete"), Resources(image=HOLLOW))
    assert (codes, exit_code) == (["ENV_PACKAGE_MISSING"], Exit.ENVIRONMENT) and "docker[ssh]" in text


def test_data_that_would_be_mounted_over_the_program(docker_host: str, hollow: str, write_spec: WriteSpec) -> None:
    spec = write_spec("complete")
    spec.write_text(spec.read_text().replace(f'media_path = "{spec.parent}"', 'media_path = "/usr"'))
    codes, exit_code, text = refusal(spec, Resources(image=hollow))
    assert (codes, exit_code) == (["PLATFORM_PATH"], Exit.INPUT) and "/usr" in text


def test_a_memory_limit_is_told_from_other_ends(started: Callable[..., JobRecord]) -> None:
    record = jobs.wait(started("greedy", "memory_gb = 0.2"), ENOUGH_S)
    assert record.state == State.ERROR and record.failure and record.failure["class"] == "out of memory"
    assert "memory" in record.message


def test_a_container_is_kept_by_choice_without_its_secrets(
    docker_host: str, started: Callable[..., JobRecord], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    record = jobs.wait(started("complete", "keep_container = true"), ENOUGH_S)
    assert record.state == State.COMPLETE and containers(docker_host) == [container_name(record.job_id)]
    kept = tmp_path / "secrets"
    docker(docker_host, "cp", f"{container_name(record.job_id)}:/run/secrets", kept)
    assert list(kept.iterdir()) == []


def test_a_daemon_that_is_away_is_no_end_of_the_job(
    started: Callable[..., JobRecord], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = started("hang")
    until_engine_runs(record)
    with monkeypatch.context() as away:
        away.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
        seen = jobs.observe(records.read(record.job_id))
        assert not seen.state.is_terminal and "does not answer" in seen.message
    assert jobs.cancel(record.job_id, ENOUGH_S).state == State.CANCELED


def test_an_end_that_cannot_be_stored_is_seen_and_keeps_its_container(
    docker_host: str, started: Callable[..., JobRecord]
) -> None:
    record, limits = started("hang"), resource.getrlimit(resource.RLIMIT_FSIZE)
    until_engine_runs(record)
    docker(docker_host, "pause", container_name(record.job_id))
    assert jobs.observe(records.read(record.job_id)).message == "its container is paused"
    docker(docker_host, "unpause", container_name(record.job_id))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as on a full disk
        assert jobs.cancel(record.job_id, ENOUGH_S).state == State.CANCELED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert containers(docker_host) == [container_name(record.job_id)]
    assert jobs.observe(records.read(record.job_id)).state == State.STOPPED and containers(docker_host) == []


def test_a_launcher_that_ends_while_we_look_has_started_its_container(
    docker_host: str, hollow: str, started: Callable[..., JobRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = jobs.wait(started("complete"), ENOUGH_S)
    Path(record.run_dir, "status.json").unlink()
    docker(docker_host, "create", "--name", container_name("new"), "--label", f"vidqa.job={record.job_id}", hollow)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as launcher:
        identity = ProcessIdentity.of_pid(launcher.pid)
        assert identity

        def not_started_yet(inspect: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any] | None:
            facts = facts_of(inspect, name)
            launcher.communicate()
            return facts

        monkeypatch.setattr(docker_platform, "facts_of", not_started_yet)
        changes = {"job_id": "new", "state": State.PENDING, "reference": None, "launcher": identity}
        mine = records.write(replace(record, **changes))
        assert jobs.observe(mine).state == State.PENDING
        assert containers(docker_host) == [container_name("new")]
        assert jobs.observe(mine).state == State.ERROR  # nobody is left who could start it
        assert containers(docker_host) == []


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """A daemon on "another machine": its address, a folder that is empty there, and the disk of its own, 96 MB."""
    if os.getuid() != 0:
        pytest.skip("only root can give a daemon another view of the disk")
    hidden, disk = tmp_path / "hidden", Path(tempfile.mkdtemp(prefix="vidqa-"))  # sockets have short paths
    hidden.mkdir()
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{tried.getsockname()[1]}"
    view = f'mount -t tmpfs none "{hidden}" && mount -t tmpfs -o size=96m none "{disk}" && exec "$@"'
    started = start(address, disk, before=("unshare", "--mount", "sh", "-c", view, "sh"))
    try:
        yield address, hidden, Path(f"/proc/{started.pid}/root{disk}")
    finally:
        started.terminate()
        started.wait(ENOUGH_S)
        shutil.rmtree(disk)


def test_paths_are_checked_where_the_daemon_is_and_a_full_disk_is_named(
    apart: tuple[str, Path, Path], write_spec: WriteSpec, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, hidden, disk = apart
    assert answers(address)
    monkeypatch.setenv("DOCKER_HOST", address)
    image = labelled_image(address, HOLLOW)
    (hidden / "data").mkdir()
    spec, wanted = write_spec("complete"), Resources(image=image, gpus=0, site=site)
    whole = spec.read_text()
    spec.write_text(whole.replace(f'media_path = "{spec.parent}"', f'media_path = "{hidden / "data"}"'))
    codes, _, text = refusal(spec, wanted)
    assert codes == ["PLATFORM_NOT_SHARED"] and str(hidden / "data") in text

    spec.write_text(whole.replace(f'output_dir = "{spec.parent / "runs"}"', f'output_dir = "{hidden}"'))
    codes, _, text = refusal(spec, wanted)  # the folder is there, and is another one
    assert codes == ["PLATFORM_NOT_SHARED"] and "does not see the spec" in text

    spec.write_text(whole)
    with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="space"):
        while True:
            ballast.write(bytes(1 << 20))
            ballast.flush()
    codes, _, text = refusal(spec, wanted)
    assert codes == ["PLATFORM_REFUSED"] and "docker system prune" in text
    (disk / "ballast").unlink()
    assert docker(address, "ps", "--all", "--quiet") == ""
