"""Everything that can be wrong with Docker, made here for real, has a problem of its own; no container stays of it."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.platforms.conftest import until_engine_runs
from tests.platforms.daemons import answers, docker, labelled_image, start
from tests.platforms.stand_in import ENGINE
from vidqa.cli import BANK
from vidqa.platforms import jobs, records, runs
from vidqa.platforms._base import State
from vidqa.platforms.docker import pinned
from vidqa.platforms.docker_container import container_name
from vidqa.platforms.launch import Wanted, dry_run, launch
from vidqa.problem import Exit, ProblemError

pytestmark = pytest.mark.docker
WriteSpec = Callable[..., Path]
HOLLOW = "vidqa-test-hollow:1"


@pytest.fixture
def hollow(docker_host: str) -> str:
    """An image that passes for the engine and has nothing in it."""
    return labelled_image(docker_host, HOLLOW)


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Path]:
    def write(more: str = "") -> Path:
        path = tmp_path / "site.toml"
        path.write_text(f'[docker]\nnetwork = "host"\nulimits = {{}}\nread_only = ["{ENGINE.parent}"]\n{more}\n')
        return path

    return write


def refusal(spec: Path, wanted: Wanted) -> tuple[list[str], int, str]:
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
    codes, exit_code, text = refusal(write_spec("complete"), Wanted(image=HOLLOW))
    assert (codes, exit_code) == (["PLATFORM_DOCKER_NO_DAEMON"], Exit.ENVIRONMENT) and f"{tmp_path}/none" in text
    assert records.scan() == ([], []) and not (tmp_path / "runs").exists()


def test_no_permission(docker_host: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody who may not")
    program = """
from vidqa.platforms import docker_daemon
from vidqa.problem import ProblemError
try:
    with docker_daemon.daemon() as client:
        client.ping()
except ProblemError as refused:
    print(refused.problems[0].code)
"""
    child = os.fork()  # imports happen as root: the checkout may be closed to others
    if child == 0:
        sys.stdout.flush()
        code = 1
        try:
            from vidqa.platforms import docker_daemon

            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                with docker_daemon.daemon() as client:
                    client.ping()
            except ProblemError as refused:
                code = 0 if refused.problems[0].code == "PLATFORM_DOCKER_PERMISSION" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, program


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


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, "PLATFORM_DOCKER_IMAGE_MISSING"),
        (401, "PLATFORM_DOCKER_PULL_REFUSED"),
        (403, "PLATFORM_DOCKER_PULL_REFUSED"),
    ],
)
def test_an_image_that_cannot_be_pulled(
    docker_host: str, registry: str, write_spec: WriteSpec, status: int, code: str
) -> None:
    image = f"{registry}/status{status}:1"
    codes, exit_code, text = refusal(write_spec("complete"), Wanted(image=image))
    assert (codes, exit_code) == ([code], Exit.ENVIRONMENT) and image in text
    assert records.scan() == ([], [])
    _, _, _, problems = dry_run("train", write_spec("complete"), "docker", Wanted(image=image))
    assert ("PLATFORM_DOCKER_IMAGE_MISSING", "warning") in [(p.code, p.severity) for p in problems]


def test_a_registry_that_does_not_answer(docker_host: str, registry: str, write_spec: WriteSpec) -> None:
    nobody = "127.0.0.1:9"  # the port of discard, which nobody serves
    assert refusal(write_spec("complete"), Wanted(image=f"{nobody}/engine:1"))[0] == ["PLATFORM_DOCKER_PULL_REFUSED"]


def test_no_image_is_recorded_and_the_recorded_one_needs_a_yes(
    docker_host: str, hollow: str, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vidqa.platforms import images

    config = tmp_path / "config.json"
    config.write_text((BANK / "config.json").read_text())
    monkeypatch.setattr(images, "CONFIG", config)
    if images.recorded(config) is None:
        assert refusal(write_spec("complete"), Wanted())[:2] == (["PLATFORM_NO_IMAGE"], Exit.ENVIRONMENT)
    subprocess.run(
        [sys.executable, "-m", "vidqa.platforms.images", HOLLOW, hollow, str(config)], check=True, cwd=BANK / "src"
    )
    assert images.recorded(config) == (HOLLOW, hollow)
    assert json.loads(config.read_text())["actions"] == json.loads((BANK / "config.json").read_text())["actions"]
    codes, exit_code, text = refusal(write_spec("complete"), Wanted())
    assert (codes, exit_code) == (["PLATFORM_IMAGE_NOT_AGREED"], Exit.REFUSED) and HOLLOW in text and hollow in text
    job, _, _, problems = dry_run("train", write_spec("complete"), "docker", Wanted())
    assert job.image == hollow and "PLATFORM_IMAGE_NOT_AGREED" in [problem.code for problem in problems]


def test_an_image_is_pinned_by_the_digest_of_its_own_repository() -> None:
    facts = {"Id": "sha256:1", "RepoDigests": ["other/engine@sha256:2", "here:5000/engine@sha256:3"]}
    assert pinned("here:5000/engine:0.1.0", facts) == "here:5000/engine@sha256:3"
    assert pinned("here:5000/engine", facts) == "here:5000/engine@sha256:3"
    assert pinned("engine:1", facts) == pinned("sha256:1", facts) == "sha256:1"


def test_an_image_that_is_no_engine(docker_host: str, write_spec: WriteSpec) -> None:
    other = labelled_image(docker_host, "vidqa-test-other:1", title="something-else")
    codes, _, _ = refusal(write_spec("complete"), Wanted(image=other))
    assert codes == ["PLATFORM_DOCKER_NOT_AN_ENGINE"]


def test_no_nvidia_runtime(docker_host: str, hollow: str, write_spec: WriteSpec, site: Callable[..., Path]) -> None:
    if "nvidia" in docker(docker_host, "info", "--format", "{{json .Runtimes}}"):
        pytest.skip("this daemon has the runtime")
    codes, exit_code, _ = refusal(write_spec("complete"), Wanted(image=hollow, gpus=1, site=site()))
    assert (codes, exit_code) == (["PLATFORM_DOCKER_NO_GPU_RUNTIME"], Exit.ENVIRONMENT)
    (record,) = records.scan()[0]
    assert record.state == State.ERROR and record.failure and record.failure["class"] == "infrastructure"
    assert containers(docker_host) == []


def test_a_name_that_is_taken(
    docker_host: str, hollow: str, write_spec: WriteSpec, site: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "new_name", lambda *_: "taken")
    other = docker(docker_host, "create", "--name", container_name("taken"), hollow)
    try:
        codes, _, _ = refusal(write_spec("complete"), Wanted(image=hollow, site=site()))
        assert codes == ["PLATFORM_DOCKER_NAME_TAKEN"]
        assert docker(docker_host, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"id={other}") == other
    finally:
        docker(docker_host, "rm", other)


def test_an_image_without_the_program(
    docker_host: str, hollow: str, write_spec: WriteSpec, site: Callable[..., Path]
) -> None:
    record = jobs.wait(launch("train", write_spec("complete"), "docker", Wanted(image=hollow, site=site())).record, 60)
    assert (record.state, jobs.exit_code(record)) == (State.ERROR, Exit.JOB_FAILED)
    assert record.failure and record.failure["class"] == "image" and "python" in record.failure["evidence"]
    assert "python" in record.log.read_text() and containers(docker_host) == []


def test_data_that_would_be_mounted_over_the_program(docker_host: str, hollow: str, write_spec: WriteSpec) -> None:
    spec = write_spec("complete")
    spec.write_text(spec.read_text().replace(f'media_path = "{spec.parent}"', 'media_path = "/usr"'))
    codes, exit_code, text = refusal(spec, Wanted(image=hollow))
    assert (codes, exit_code) == (["PLATFORM_DOCKER_PATH_HIDES_CODE"], Exit.INPUT) and "/usr" in text


def test_a_memory_limit_is_told_from_other_ends(
    docker_host: str, docker_image: str, stand_in: None, write_spec: WriteSpec, site: Callable[..., Path]
) -> None:
    wanted = Wanted(image=docker_image, site=site("memory_gb = 0.2"))
    record = jobs.wait(launch("train", write_spec("greedy"), "docker", wanted).record, 120)
    assert record.state == State.ERROR and record.failure and record.failure["class"] == "out of memory"
    assert "memory" in record.message


def test_a_container_is_kept_by_choice_without_its_secrets(
    docker_host: str,
    docker_image: str,
    stand_in: None,
    write_spec: WriteSpec,
    site: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    wanted = Wanted(image=docker_image, site=site("keep_container = true"))
    record = jobs.wait(launch("train", write_spec("complete"), "docker", wanted).record, 120)
    assert record.state == State.COMPLETE and containers(docker_host) == [container_name(record.job_id)]
    try:
        exported = tmp_path / "secrets.tar"
        docker(docker_host, "cp", f"{container_name(record.job_id)}:/run/secrets", exported.with_suffix(""))
        assert list(exported.with_suffix("").iterdir()) == []
    finally:
        docker(docker_host, "rm", container_name(record.job_id))


def test_a_daemon_that_is_away_is_no_end_of_the_job(
    docker_host: str,
    docker_image: str,
    stand_in: None,
    write_spec: WriteSpec,
    site: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    record = launch("train", write_spec("hang"), "docker", Wanted(image=docker_image, site=site())).record
    until_engine_runs(record)
    with monkeypatch.context() as away:
        away.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
        seen = jobs.observe(records.read(record.job_id))
        assert not seen.state.is_terminal and "does not answer" in seen.message
    assert jobs.cancel(record.job_id, 30).state == State.CANCELED


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """A daemon on "another machine": its address, a folder that is empty there, and the disk of its own, 96 MB."""
    if os.getuid() != 0:
        pytest.skip("only root can give a daemon another view of the disk")
    hidden, disk = tmp_path / "hidden", Path(tempfile.mkdtemp(prefix="vidqa-"))  # sockets have short paths
    hidden.mkdir()
    address = f"tcp://127.0.0.1:{free_port()}"
    view = f'mount -t tmpfs none "{hidden}" && mount -t tmpfs -o size=96m none "{disk}" && exec "$@"'
    started = start(address, disk, before=("unshare", "--mount", "sh", "-c", view, "sh"))
    try:
        yield address, hidden, Path(f"/proc/{started.pid}/root{disk}")
    finally:
        started.terminate()
        started.wait(60)
        shutil.rmtree(disk)


def free_port() -> int:
    import socket

    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def test_paths_are_checked_where_the_daemon_is_and_a_full_disk_is_named(
    apart: tuple[str, Path, Path], write_spec: WriteSpec, site: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, hidden, disk = apart
    assert answers(address)
    monkeypatch.setenv("DOCKER_HOST", address)
    image = labelled_image(address, HOLLOW)
    (hidden / "data").mkdir()
    spec, wanted = write_spec("complete"), Wanted(image=image, gpus=0, site=site())
    whole = spec.read_text()
    spec.write_text(whole.replace(f'media_path = "{spec.parent}"', f'media_path = "{hidden / "data"}"'))
    codes, _, text = refusal(spec, wanted)
    assert codes == ["PLATFORM_DOCKER_PATH_MISSING"] and str(hidden / "data") in text

    spec.write_text(whole.replace(f'output_dir = "{spec.parent / "runs"}"', f'output_dir = "{hidden}"'))
    codes, _, text = refusal(spec, wanted)  # the folder is there, and is another one
    assert codes == ["PLATFORM_DOCKER_PATH_MISSING"] and "does not hold the spec" in text

    spec.write_text(whole)
    with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="space"):
        while True:
            ballast.write(bytes(1 << 20))
            ballast.flush()
    assert refusal(spec, wanted)[0] == ["PLATFORM_DOCKER_DISK_FULL"]
    (disk / "ballast").unlink()
    assert docker(address, "ps", "--all", "--quiet") == ""
