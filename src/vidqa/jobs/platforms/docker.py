"""The platform "docker": the engine in a container on one machine, through the Docker SDK.

The container's name is derived from the job id, so that every process finds it. The daemon reports the state of a job.
When the container has ended, its exit code is first stored with the job's record, then the container is removed.
`check`, `pin_image`, `render`, `submit`, `status` and `cancel` are the functions of a `_base.Platform`, in the order of
their use for a job.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Literal

from docker.errors import APIError
from pydantic import Field

import vidqa
from vidqa.core import environment
from vidqa.core.cli import refused_writes
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.versions import git_commit
from vidqa.jobs.platforms import docker_daemon, local
from vidqa.jobs.platforms._base import (
    OUT_OF_MEMORY,
    Job,
    Observed,
    Platform,
    Rendered,
    State,
    Submitted,
    run_folder_log,
)
from vidqa.jobs.platforms.container_entrypoint import SECRETS_FILE
from vidqa.jobs.platforms.docker_daemon import daemon, facts_of, is_local, refusals, unless_over
from vidqa.jobs.platforms.engine_process import ended_locally, engine_environment, gpu_problems, torchrun, unlisted
from vidqa.jobs.platforms.job_store import read_exit, write_exit
from vidqa.jobs.platforms.mounts import mounts, shadowed_image_paths
from vidqa.jobs.platforms.site import AbsolutePath, SiteSettings, settings_of
from vidqa.jobs.problems import (
    IMAGE_UNUSABLE,
    NOT_SHARED,
    PLATFORM_NODES,
    PLATFORM_PATH,
    PLATFORM_UNREACHABLE,
)

CONTAINER_FILE = "container.json"  # in the run folder
JOB_LABEL = "vidqa.job"
GB = 10**9
ENGINE_TITLE = "finetune-cosmos-reason-engine"  # org.opencontainers.image.title, the label in docker/Dockerfile
# Folders of the image; a mount there would hide its files.
IMAGE_FOLDERS = ("/opt/vidqa", "/usr", "/etc", "/bin", "/lib", "/proc", "/sys", "/run/secrets")
POLL_S = 0.1
SIGNAL_INTERVAL_S = 5.0  # SIGTERM is sent repeatedly: one is lost while an engine process starts
REMOVE_AFTER_S = 20.0  # after SIGKILL, until a remaining container is removed by force


class DockerSite(SiteSettings):
    """The table [docker] of site.toml."""

    network: Literal["bridge", "host", "none"] = Field(
        default="bridge", description="Network of the container; only trackers such as wandb need it."
    )
    shm_gb: float = Field(
        default=16.0, gt=0, description="Limit of /dev/shm, used by NCCL and decode workers; Docker's default is 64 MB."
    )
    memory_gb: float = Field(default=0.0, ge=0, description="Memory limit of the container; 0 is none.")
    ulimits: dict[str, int] = Field(
        default={"memlock": -1, "stack": 64 << 20},
        description="Process limits, -1 for none; NCCL and pinned buffers lock memory.",
    )
    user: str = Field(
        default="",
        pattern=r"^(\d+:\d+)?$",
        description='"UID:GID" of the job and the owner of its files; empty: the user who launches it.',
    )
    read_only: list[AbsolutePath] = Field(
        default=[], description="More absolute folders that the job may read, for example targets of links in the data."
    )
    keep_container: bool = Field(
        default=False, description="Keep the container after the job, for inspection; otherwise it is removed."
    )


def check(job: Job) -> list[Problem]:
    """Problems that keep a job from running: GPUs, nodes, paths to mount, the daemon, the image."""
    problems = gpu_problems(job, "visible")
    if job.nodes > 1:
        problems.append(PLATFORM_NODES.at("--nodes", f"docker has one node, {job.nodes} are requested"))
    mounted = mounts(job)
    for path in shadowed_image_paths(mounted, IMAGE_FOLDERS):
        problems.append(PLATFORM_PATH.at(path, "the image has its own files at that path"))
    if is_local():  # a remote daemon checks it itself
        inputs = [mount.path for mount in mounted if mount.read_only and mount.path not in job.to_come]
        missing = [path for path in inputs if not path.exists()]
        problems += [NOT_SHARED.at(path, "there is no such file or folder") for path in missing]
    try:
        with daemon() as client:
            client.ping()
            return problems + (_image_problems(client, job.image) if job.image else [])
    except ProblemError as refused:
        return problems + refused.problems


def _image_problems(client: Any, image: str) -> list[Problem]:
    """Problems of an image: not on the daemon's machine, not an engine, or not of this version and commit."""
    facts = facts_of(client.inspect_image, image)
    if facts is None:
        return [IMAGE_UNUSABLE.at(image, "it is not on the daemon's machine", severity="warning")]
    labels = facts["Config"].get("Labels") or {}
    if labels.get("org.opencontainers.image.title") != ENGINE_TITLE:
        return [IMAGE_UNUSABLE.at(image, "its labels do not identify it as this project's engine")]
    here = vidqa.__version__, git_commit()
    there = labels.get("org.opencontainers.image.version"), labels.get("org.opencontainers.image.revision")
    if all(ours == theirs or not ours or not theirs for ours, theirs in zip(here, there, strict=True)):
        return []
    message = "it has version {}, commit {}; here is version {}, commit {}".format(*there, *here)
    return [IMAGE_UNUSABLE.at(image, message, severity="warning")]


def pin_image(image: str, settings: DockerSite, fetch: bool) -> str:
    """Pin the image by its digest in the registry, or by its id if it has none, so that a retry runs the same one.

    With `fetch` a missing image is pulled; raises the daemon's refusal. Without, the name is unchanged if the image is
    unknown or the daemon cannot be reached.
    """
    try:
        with daemon() as client:
            facts = facts_of(client.inspect_image, image)
            if facts is None and fetch:
                docker_daemon.pull(client, image)
                facts = facts_of(client.inspect_image, image)
    except ProblemError:
        if fetch:
            raise
        return image
    return image if facts is None else pinned(image, facts)


def pinned(image: str, facts: dict[str, Any]) -> str:
    """REPOSITORY@DIGEST if the image came from a registry under this name, else its id."""
    name = image.partition("@")[0]
    repository = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    digests = [digest for digest in facts.get("RepoDigests") or [] if digest.partition("@")[0] == repository]
    return str(digests[0] if digests else facts["Id"])


def render(job: Job) -> Rendered:
    """The command, its variables, and the request to create the container, as a file of the run folder."""
    variables = engine_environment(job, local.cpu_count() if is_local() else None)
    variables["VIDQA_CACHE_DIR"] = str(environment.cache_folder())
    command = torchrun("python", job)
    body = container_body(job, command, variables)
    return Rendered(command, variables, files={CONTAINER_FILE: json.dumps(body, indent=2) + "\n"})


def container_name(job_id: str) -> str:
    return f"vidqa-{job_id}"


def container_body(job: Job, command: tuple[str, ...], variables: dict[str, str]) -> dict[str, Any]:
    """The request to create the container, as in Docker's API. It contains no secrets; `submit` puts them into a
    file."""
    settings: DockerSite = job.settings
    host: dict[str, Any] = {
        "Mounts": [
            {"Type": "bind", "Source": str(mount.path), "Target": str(mount.path), "ReadOnly": mount.read_only}
            for mount in mounts(job)
        ],
        "NetworkMode": settings.network,
        "ShmSize": int(settings.shm_gb * GB),
        "Memory": int(settings.memory_gb * GB),
        "Ulimits": [{"Name": name, "Soft": most, "Hard": most} for name, most in settings.ulimits.items()],
        "Init": True,  # reaps orphaned processes
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "20m", "max-file": "2"}},
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    }
    if not settings.user:
        host["GroupAdd"] = [str(group) for group in os.getgroups() if group != os.getgid()]
    if job.gpus:
        host["DeviceRequests"] = [_device_request(job)]
    return {
        "Image": job.image,
        "Entrypoint": ["python", "-m", "vidqa.jobs.platforms.container_entrypoint"],
        "Cmd": [job.job_id, str(job.log), *command],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": settings.user or f"{os.getuid()}:{os.getgid()}",
        "Labels": {JOB_LABEL: job.job_id, "vidqa.action": job.action, "vidqa.run": str(job.run_dir)},
        "HostConfig": host,
    }


def _device_request(job: Job) -> dict[str, Any]:
    """One GPU per process: the first of CUDA_VISIBLE_DEVICES, or without that variable the machine's first."""
    visible = (environment.visible_gpus() or [])[: job.processes_per_node]
    selection = {"DeviceIDs": visible} if visible else {"Count": job.processes_per_node}
    return {"Driver": "nvidia", "Capabilities": [["gpu"]], **selection}


def submit(job: Job, rendered: Rendered) -> dict[str, Any]:
    """Create the container, put the secrets into it, start it. Returns the reference to store for the job: ids of
    container and daemon. On a failure the container is removed. Raises the daemon's refusal, and PLATFORM_NOT_SHARED if
    the daemon's machine does not see the run folder."""
    body = json.loads(rendered.files[CONTAINER_FILE])
    for path in job.writes:
        with refused_writes(path):
            path.mkdir(parents=True, exist_ok=True)
    with daemon() as client, refusals(container_name(job.job_id)):
        created = client.create_container_from_config(body, container_name(job.job_id))["Id"]
        try:
            if docker_daemon.read_file(client, created, str(job.spec)) != job.spec.read_bytes():
                raise NOT_SHARED.error(job.run_dir, "the daemon's machine does not see the spec that was written to it")
            # Only the job reads and removes this file: `docker inspect` shows variables to everyone.
            if secrets := environment.values(environment.SECRET_NAMES):
                docker_daemon.put_file(client, created, SECRETS_FILE, secrets, body["User"])
            client.start(created)
        except (APIError, ProblemError):
            _remove(client, created)
            raise
        return {"container": created, "daemon": client.info()["ID"]}


def status(job: Submitted) -> Observed:
    """The stored end of a job, else its state by the daemon; the last known state if no daemon can be reached."""
    ended = _stored_end(job)
    if ended is not None:
        return ended
    try:
        with daemon() as client:
            return _poll(client, job)
    except ProblemError as refused:
        return Observed(job.state, None, f"its outcome is unknown: {refused.problems[0].message}")


def _poll(client: Any, job: Submitted) -> Observed:
    """The state of a job by its container. If it has ended, stores the exit code and removes the container."""
    # Read before the container: the launcher may start it and exit in between.
    launching = job.reference is None and job.launcher.may_be_alive
    facts = facts_of(client.inspect_container, container_name(job.job_id))
    container_state = facts["State"]["Status"] if facts else None
    if launching and container_state in (None, "created"):
        return Observed(State.PENDING)
    if facts is None:
        return _without_container(client, job)
    if container_state == "created":
        _remove(client, facts["Id"])
        return unlisted(job, "its container was created, and never started")
    if container_state in ("exited", "dead"):
        return _collect(client, job, facts)
    return Observed(State.RUNNING, None, "" if container_state == "running" else f"its container is {container_state}")


def _without_container(client: Any, job: Submitted) -> Observed:
    if job.reference and client.info()["ID"] != job.reference.get("daemon"):
        return Observed(job.state, None, f"it runs on a different Docker daemon than {docker_daemon.address()}")
    # Another process may have collected and removed the container meanwhile.
    return _stored_end(job) or unlisted(job, "its container vanished: removed by someone else")


def _collect(client: Any, job: Submitted, facts: dict[str, Any]) -> Observed:
    """Store the end of a container, then remove it, unless the end could not be stored."""
    state = facts["State"]
    _save_early_output(client, job, facts["Id"])
    exit_record = {"exit_code": state["ExitCode"], "ended": state["FinishedAt"], "out_of_memory": state["OOMKilled"]}
    if write_exit(job.job_id, exit_record) and not settings_of(job, DockerSite).keep_container:
        _remove(client, facts["Id"])
    return _end_state(job, exit_record)


def _save_early_output(client: Any, job: Submitted, container: str) -> None:
    """Append to the run's log the output of a container that ended before the engine opened that log."""
    try:
        logged, _ = run_folder_log(job, job.log_start)
        if logged or not os.path.isdir(job.run_dir):
            return
        output = client.logs(container, tail=200)
    except (APIError, ProblemError):
        return
    try:
        with job.log.open("ab") as log:
            log.write(output)
    except OSError:
        return  # for example on a full disk; the exit code is stored anyway


def _stored_end(job: Submitted) -> Observed | None:
    """The end state of a job whose container was collected; None before."""
    exit_record = read_exit(job.job_id)
    return _end_state(job, exit_record) if isinstance(exit_record.get("exit_code"), int) else None


def _end_state(job: Submitted, exit_record: dict[str, Any]) -> Observed:
    """The end state of a job, from its container's end and the engine's status."""
    observed = ended_locally(job, exit_record["exit_code"])
    if observed.state != State.ERROR or not exit_record.get("out_of_memory"):
        return observed
    limit = "the container was killed: it had reached its memory limit"
    return Observed(State.ERROR, observed.exit_code, limit, {"class": OUT_OF_MEMORY, "evidence": limit})


def cancel(job: Submitted, grace_s: float) -> None:
    """Stop a job and wait for its end: SIGTERM, so that the engine saves; after `grace_s` seconds SIGKILL; at last
    remove the container by force. One that is not started yet is left to its launcher, which sees the cancel
    request."""
    name, deadline, signaled_at = container_name(job.job_id), time.monotonic() + grace_s, -math.inf
    with daemon() as client:
        while not (_stored_end(job) or _poll(client, job)).state.is_terminal:
            now = time.monotonic()
            facts = facts_of(client.inspect_container, name)
            if now > deadline + REMOVE_AFTER_S and facts:
                _remove(client, name)
            if now > deadline and (not facts or facts["State"]["Status"] == "created"):
                return
            if facts and facts["State"]["Running"] and (now > deadline or now > signaled_at + SIGNAL_INTERVAL_S):
                with unless_over():
                    client.kill(name, "SIGTERM" if now < deadline else "SIGKILL")
                signaled_at = now
            time.sleep(POLL_S)


def _remove(client: Any, container: str) -> None:
    with unless_over():
        client.remove_container(container, force=True, v=True)


DOCKER = Platform(
    name="docker",
    check=check,
    render=render,
    submit=submit,
    status=status,
    cancel=cancel,
    visible_gpus=lambda settings: local.gpu_count() if is_local() else None,  # unknown of another machine
    needs_image=lambda settings: True,
    pin_image=pin_image,
    settings=DockerSite,
    away=(PLATFORM_UNREACHABLE.name,),
)
