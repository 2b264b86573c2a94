"""A real Docker daemon and a real engine image for the tests, started and made where there are none.

The daemon that answers already is used as it is. Otherwise one is started, without a bridge and without touching the
firewall, its data in a folder of the tests that the next session finds again; whoever uses it last stops it.

The image is built by docker/build.sh. Its base is a minimal Debian into which the very libraries that the tests run
with are linked first, so that the build has nothing to fetch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vidqa.core.cli import SKILL_ROOT
from vidqa.jobs.platforms.processes import ProcessIdentity

FOLDER = Path(tempfile.gettempdir()) / f"vidqa-test-docker-{os.getuid()}"
OWN = f"unix://{FOLDER}/sock"  # the daemon that is started here
EXTRAS = ("engine", "metrics", "s3", "wandb", "tensorboard")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
EMPTY_TAR = "\0" * 10240
LIBRARIES = "opt/vidqa/lib/python3.11/site-packages"
BASE = "vidqa-test-base"
ENGINE_TAG = "vidqa-test-engine:1"
ENOUGH_S, PATIENCE_S = 300, 1800  # for a daemon to start or answer; for a build


def needed(what: str) -> None:
    """Skip for want of something that CI has to have: there, it is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@contextmanager
def locked(name: str, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / name).open("a+") as file:
        fcntl.flock(file, how)
        yield file.fileno()


@contextmanager
def docker_address() -> Iterator[str]:
    """The address of a daemon; one that was started here ends with its last user."""
    usual = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if answers(usual):
        yield usual
        return
    if not shutil.which("dockerd"):
        needed("no Docker daemon answers, and dockerd is not installed")
    if os.getuid() != 0:
        needed("no Docker daemon answers, and only root can start one")
    with locked("users", fcntl.LOCK_SH) as users:
        with locked("starting"):
            if not answers(OWN):
                start(OWN)
        yield OWN
        with locked("starting"):
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another test process still uses it, and will stop it
            stop()


def answers(address: str) -> bool:
    asked = ["docker", "--host", address, "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(asked, capture_output=True, timeout=ENOUGH_S).returncode == 0


def start(address: str, folder: Path = FOLDER, *, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    """A daemon of its own; `before` are words before its command. Returns once it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    places = ("--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid")
    apart = ("--bridge=none", "--iptables=false", "--ip-masq=false")  # containers get the host's network or none
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*before, *map(str, ["dockerd", "--host", address, *places, *apart])],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + ENOUGH_S
    while not answers(address):
        if process.poll() is not None or time.monotonic() > deadline:
            needed(f"dockerd does not start: {(folder / 'log').read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)
    return process


def stop(folder: Path = FOLDER) -> None:
    """End the daemon that wrote this folder's pid file, and wait for it."""
    try:
        process = ProcessIdentity.of_pid(int((folder / "pid").read_text()))
    except (FileNotFoundError, ValueError):
        return
    deadline = time.monotonic() + ENOUGH_S
    if process:
        process.send_signal(signal.SIGTERM)
        while process.is_alive and time.monotonic() < deadline:
            time.sleep(0.1)


def docker(address: str, *words: object, **options: object) -> str:
    """One command of Docker's client; its output."""
    done = subprocess.run(
        ["docker", "--host", address, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, **options
    )
    if done.returncode:
        raise AssertionError(f"docker {words}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def engine_image(address: str) -> str:
    """The id of the engine image of this checkout, as docker/build.sh builds and records it."""
    with locked("building"):
        base = base_image(address)
        recorded = FOLDER / "config.json"
        shutil.copy(SKILL_ROOT / "config.json", recorded)
        options = ("--network", "host", "--build-arg", f"BASE_IMAGE={base}") if base else ("--network", "host")
        built = subprocess.run(
            [SKILL_ROOT / "docker/build.sh", "--tag", ENGINE_TAG, "--config", recorded, "--", *options],
            env={**os.environ, "DOCKER_HOST": address, "DOCKER_BUILDKIT": "0"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if built.returncode:
            raise AssertionError(f"docker/build.sh failed:\n{built.stdout[-6000:]}\n{built.stderr[-2000:]}")
        for old in docker(address, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", BASE).splitlines():
            if old != base:
                docker(address, "image", "rm", old)
        if address == OWN:  # another daemon's untagged images are somebody's
            docker(address, "image", "prune", "--force")
        return docker(address, "image", "inspect", "--format", "{{.Id}}", ENGINE_TAG)


def base_image(address: str) -> str | None:
    """A base with the libraries of the lock in it; None where only the usual base, which fetches them, can be had."""
    if os.getuid() != 0 or not shutil.which("mmdebstrap"):
        return None
    asked = b"".join((SKILL_ROOT / name).read_bytes() for name in ("pyproject.toml", "requirements.lock"))
    tag = f"{BASE}:{hashlib.sha256(asked).hexdigest()[:12]}"
    if docker(address, "image", "ls", "--quiet", tag):
        return tag
    root = FOLDER / "root"
    if not (root / "complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        packages = "--include=python3,python3-venv,ca-certificates,gcc,libc6-dev"
        run("mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", root)
        run("chroot", root, "/usr/bin/python3", "-m", "venv", "/opt/vidqa")
        shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        (root / "complete").touch()
    uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python-version", "3.11")
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    target = root / LIBRARIES
    run(
        *uv,
        "--target",
        target,
        "-r",
        SKILL_ROOT / "pyproject.toml",
        *extras,
        "--constraints",
        SKILL_ROOT / "requirements.lock",
    )
    link_compiled(target)
    variables = [f"ENV {name}={CERTIFICATES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
    changes = [word for variable in variables for word in ("--change", variable)]
    linked = address == OWN and docker(address, "info", "--format", "{{.Driver}}") == "overlay2"
    left_out = [f"--exclude=./{LIBRARIES}"] if linked else []
    with subprocess.Popen(["tar", "-C", root, *left_out, "-c", "."], stdout=subprocess.PIPE) as packed:
        image = docker(address, "import", *changes, "-", stdin=packed.stdout)
    if linked:  # packed, hashed and unpacked, six gigabytes of libraries take this daemon a minute of processor time
        layer = docker(address, "image", "inspect", "--format", "{{.GraphDriver.Data.UpperDir}}", image)
        # The daemon mounts its folder upon itself, and no link leads from one mount into another.
        link = 'while umount --lazy "$1"; do :; done; cp --archive --link "$2" "$3"'
        run("unshare", "--mount", "sh", "-c", link, "sh", FOLDER / "data", target, Path(layer) / LIBRARIES)
    docker(address, "tag", image, tag)
    return tag


def link_compiled(target: Path) -> None:
    """What this interpreter has compiled of the same files: containers need not do it again."""
    ours = Path(sysconfig.get_path("purelib"))
    for compiled in ours.rglob(f"*.{sys.implementation.cache_tag}.pyc"):
        source = compiled.parent.parent / f"{compiled.name.split('.')[0]}.py"
        copy = target / source.relative_to(ours)
        if copy.exists() and copy.samefile(source):
            there = target / compiled.relative_to(ours)
            there.parent.mkdir(exist_ok=True)
            there.exists() or os.link(compiled, there)


def labelled_image(address: str, tag: str, title: str = "finetune-cosmos-reason-engine") -> str:
    """An image that says it is the engine and holds nothing: enough to be refused for other reasons."""
    change = f"LABEL org.opencontainers.image.title={title}"
    docker(address, "import", "--change", change, "--change", 'CMD ["none"]', "-", tag, input=EMPTY_TAR)
    return docker(address, "image", "inspect", "--format", "{{.Id}}", tag)


def run(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        raise AssertionError(f"{words}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
