"""The platform "kubernetes": a Job, or a Kubeflow TrainJob, in a namespace of a cluster.

A launch submits the manifest that --dry-run prints. The state of a job is read from the Job, its pods and their
termination messages: the run folder may be on a volume that the launcher does not see. A cancel stores the end beside
the record, since the cluster deletes the job.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from vidqa.core import files
from vidqa.core._optional import PACKAGE_MISSING
from vidqa.core.cli import note
from vidqa.core.problem import Exit, Problem, ProblemError
from vidqa.jobs.platforms._base import Failure, Job, Observed, Platform, Rendered, State, Submitted
from vidqa.jobs.platforms.engine_process import EngineStatus, engine_environment, gpu_problems, unlisted
from vidqa.jobs.platforms.job_store import read_exit, write_exit
from vidqa.jobs.platforms.kubernetes.client import PLURALS, ApiError, Cluster, connect, refusal
from vidqa.jobs.platforms.kubernetes.log import append_new_lines, pod_log_tail, read_log
from vidqa.jobs.platforms.kubernetes.manifest import (
    JOB_LABEL,
    command,
    manifest,
    object_name,
    objects,
    required_secrets,
)
from vidqa.jobs.platforms.kubernetes.site import KubernetesSite, path_problems, resource_problems
from vidqa.jobs.platforms.kubernetes.state import decisive, endings, observed, stuck, verdict
from vidqa.jobs.platforms.site import settings_of
from vidqa.jobs.problems import PLATFORM_REFUSED, PLATFORM_SILENT, PLATFORM_UNREACHABLE

MANIFEST = "manifest.yaml"
POLL_S = 2.0  # an API server serves a whole cluster
RECONNECT_S = 0.2  # until a lost connection is reopened
FORCE_S = 30.0  # until a cluster has removed killed pods
NAME_TAKEN = "Remove it (kubectl delete), or launch again in a second: the name is made from the time."
PUT_KEYS = (
    "Put them into it (kubectl create secret generic vidqa --from-env-file=FILE), or remove their use from the spec: "
    "logging.logger, train.ckpt.upload_hf, upload_s3. A service_account replaces the AWS keys."
)
NEEDED = (("list", ""), ("watch", ""), ("delete", ""), ("get", "log"))  # on pods and their subresources
Json = dict[str, Any]


def check(job: Job) -> list[Problem]:
    """Check GPUs, paths against volumes, then rights and the manifest (as a dry run) with the cluster."""
    problems = [*gpu_problems(job, "asked for"), *path_problems(job), *resource_problems(job)]
    try:
        cluster = connect(job.settings)
        return [*problems, *_missing_secrets(job, cluster), *_admission(job, cluster)]
    except ProblemError as unreachable:
        return [*problems, *unreachable.problems]
    except ApiError as answer:  # of the access reviews
        return [*problems, refusal(answer, job.job_id)]


def _missing_secrets(job: Job, cluster: Cluster) -> list[Problem]:
    """Keys of secrets that the Secret lacks: a pod does not start without them. A warning if the Secret may not be
    read."""
    where = f"Secret {cluster.namespace}/{job.settings.secret}"
    if not (required := required_secrets(job)):
        return []
    try:
        has = cluster.secret_keys(job.settings.secret)
    except ApiError as answer:
        if answer.status == 403:
            message = f"whether it has {', '.join(required)} cannot be seen: {answer.message}"
            return [PLATFORM_REFUSED.at(where, message, PUT_KEYS, severity="warning")]
        if answer.status != 404:
            raise
        message = f"there is no such Secret, but the spec needs {', '.join(required)}"
        return [PLATFORM_REFUSED.at(where, message, PUT_KEYS)]
    missing = ", ".join(name for name in required if name not in has)
    return [PLATFORM_REFUSED.at(where, f"it lacks {missing}, which the spec needs", PUT_KEYS)] if missing else []


def _admission(job: Job, cluster: Cluster) -> list[Problem]:
    """The errors of creating each object as a dry run, else the missing rights."""
    problems: list[Problem] = []
    for body in objects(job):
        try:
            cluster.create(body, dry_run=True)
        except ApiError as answer:
            problems.append(refusal(answer, f"{body['kind']} {cluster.namespace}/{body['metadata']['name']}"))
    if not problems:
        missing = _missing_rights(cluster, objects(job)[-1])
        if missing:
            problems.append(refusal(ApiError(403, "Forbidden", f"not allowed: {', '.join(missing)}"), job.job_id))
    return problems


def _missing_rights(cluster: Cluster, main: Json) -> list[str]:
    """The required rights on the Job (or TrainJob) and its pods that are missing."""
    kind, group = PLURALS[main["kind"]], main["apiVersion"].partition("/")[0]
    missing = [f"{verb} {kind}" for verb in ("get", "delete") if not cluster.may(verb, kind, group)]
    return missing + [
        f"{verb} pods{'/' * bool(below)}{below}" for verb, below in NEEDED if not cluster.may(verb, "pods", "", below)
    ]


def render(job: Job) -> Rendered:
    settings = engine_environment(job, job.settings.cpus or None)
    return Rendered(command(job), settings, {MANIFEST: manifest(job)})


def submit_command(job: Job, folder: Path) -> str:
    context = ["--context", job.settings.context] if job.settings.context else []
    return shlex.join(["kubectl", *context, "apply", "-f", str(folder / MANIFEST)])


def submit(job: Job, rendered: Rendered) -> Json:
    """Create the manifest's objects, the Job last; it becomes the owner of the others, which are deleted with it. If
    the cluster refuses one, all are deleted. If it does not answer, all are kept: the Job may run and need them."""
    cluster = connect(job.settings)
    *parts, main = yaml.safe_load_all(rendered.files[MANIFEST])
    try:
        for part in parts:
            _create(cluster, part, job)
        created = _create(cluster, main, job)
    except ApiError as answer:
        _roll_back(cluster, (main, *parts), job)
        raise ProblemError([refusal(answer, f"{cluster.namespace}/{main['metadata']['name']}")]) from answer
    names = {key: created["metadata"][key] for key in ("name", "uid")}
    owner = {"apiVersion": main["apiVersion"], "kind": main["kind"], **names}
    _adopt(cluster, parts, owner)
    return {**owner, "namespace": cluster.namespace}


def _create(cluster: Cluster, body: Json, job: Job) -> Json:
    """Create an object, with a second attempt if the first gets no answer; an existing object of this job counts as
    created."""
    try:
        try:
            return cluster.create(body)
        except ProblemError:
            time.sleep(1)
            return cluster.create(body)
    except ApiError as answer:
        if answer.status != 409:
            raise
        there = cluster.get(body)
        if there is None or not _is_of(job, there):
            where = f"{body['kind']} {cluster.namespace}/{body['metadata']['name']}"
            raise PLATFORM_REFUSED.error(where, "the cluster has another object of this name", NAME_TAKEN) from answer
        return there


def _is_of(job: Job, there: Json) -> bool:
    return (there["metadata"].get("labels") or {}).get(JOB_LABEL) == job.job_id


def _roll_back(cluster: Cluster, things: Sequence[Json], job: Job) -> None:
    """Delete the objects of a refused launch, also those whose creation was not answered."""
    for thing in things:
        try:
            if (there := cluster.get(thing)) and _is_of(job, there):
                cluster.delete(thing)
        except ApiError as answer:
            note(f"{thing['kind']} {thing['metadata']['name']} stays in the cluster: {answer}")
        except ProblemError as away:
            note(f"remove what the cluster may have kept with the label {JOB_LABEL}={job.job_id}: {away}")
            return


def _adopt(cluster: Cluster, parts: Sequence[Json], owner: Json) -> None:
    """Make the Job the owner of the parts. The job runs even if this fails."""
    for part in parts:
        try:
            cluster.patch(part, {"metadata": {"ownerReferences": [owner]}})
        except (ApiError, ProblemError) as failed:
            note(f"{part['kind']} {part['metadata']['name']} will stay when the job is removed: {failed}")


def status(job: Submitted) -> Observed:
    """The state of a job; without an answer of the API server the last observed one."""
    stored = _stored_end(job)
    if stored:
        return stored
    try:
        return _poll(job, connect(_site(job)))
    except ProblemError as away:
        if away.problems[0].code != PLATFORM_SILENT.name:
            raise
        return Observed(job.state, job.exit_code, f"the cluster does not answer: {away.problems[0].message}")
    except ApiError as answer:
        return Observed(job.state, job.exit_code, f"the cluster answered {answer.status}: {answer.message}"[:300])


def _poll(job: Submitted, cluster: Cluster) -> Observed:
    # Before the query: the launcher may create its Job and exit meanwhile.
    launching = job.reference is None and job.launcher.may_be_alive
    owner = _owner_of(job, cluster)
    pods, _ = cluster.pods(_selector(job))
    if owner is None and not pods and launching and not job.cancel_requested:
        return Observed(State.PENDING)
    if owner is None:
        return _missing_job(job, pods)
    deciding = decisive(pods)
    tail = pod_log_tail(cluster, deciding.pod, pods) if deciding else ""
    state = observed(owner, pods, job, tail)
    if state.state.is_terminal:
        append_new_lines(job, cluster, pods)
        _bring_back(job, pods)
        return state
    blocked = stuck(pods)
    limit = _site(job).start_limit_s
    if blocked and (datetime.now(UTC) - blocked.since).total_seconds() > limit:
        cluster.delete(_main(job))
        failure: Failure = {"class": blocked.kind, "evidence": blocked.message}
        message = f"it was terminated after {limit} s, as its image or settings prevented its start: {blocked.message}"
        return _store_end(job, Observed(State.ERROR, int(Exit.ENVIRONMENT), message, failure))
    return state


def _owner_of(job: Submitted, cluster: Cluster) -> Json | None:
    """The submitted Job or TrainJob, not a later one with its name."""
    owner, uid = cluster.get(_main(job)), (job.reference or {}).get("uid")
    return owner if owner and uid in (None, owner["metadata"]["uid"]) else None


def _missing_job(job: Submitted, pods: Sequence[Json]) -> Observed:
    """The state of a job that the cluster does not have: cancelled, never created, or deleted by somebody."""
    ended = endings(pods)
    if len(ended) < len(pods):
        return Observed(State.RUNNING, None, "its pods are terminating")
    if ended:
        return _store_end(job, verdict(decisive(pods) or ended[-1], pods, job, ""))
    return unlisted(job, "the job vanished: the cluster has neither it nor a pod of it", read_log)


def cancel(job: Submitted, grace_s: float) -> None:
    """Delete the Job, so that no pod is replaced, and watch its pods end; kill them after `grace_s`."""
    try:
        _cancel(job, connect(_site(job)), grace_s)
    except ApiError as answer:
        raise ProblemError([refusal(answer, job.job_id)]) from answer


def _cancel(job: Submitted, cluster: Cluster, grace_s: float) -> None:
    pods, version = cluster.pods(_selector(job))
    last_pods = {pod["metadata"]["name"]: pod for pod in pods}
    append_new_lines(job, cluster, pods)
    if _owner_of(job, cluster) is not None:
        cluster.delete(_main(job))
    for name in last_pods:
        cluster.delete_pod(name, max(1, round(grace_s)))
    left, version = _watch_end(job, cluster, last_pods, version, grace_s)
    for name in left:
        cluster.delete_pod(name, 0)
    if left:
        _watch_end(job, cluster, last_pods, version, FORCE_S)
    last = list(last_pods.values())
    _bring_back(job, last)
    ending = decisive(last) or next(iter(endings(last)), None)
    if ending is not None:
        _store_end(job, verdict(ending, last, job, ""))
    else:
        _store_end(job, Observed(State.CANCELED, int(Exit.JOB_FAILED), "it was terminated before it saved"))


def _watch_end(
    job: Submitted, cluster: Cluster, last_pods: dict[str, Json], version: str, limit_s: float
) -> tuple[list[str], str]:
    """Watch the pods from `version` on, into `last_pods`, until all are gone or the time is over. Returns the names of
    the remaining pods, and the version from which to continue. A lost connection is reopened: the Job is already
    deleted, so its end must be seen now."""
    deadline = time.monotonic() + limit_s
    left = set(last_pods)
    while left and (remaining := deadline - time.monotonic()) > 0:
        try:
            for kind, pod in cluster.watch_pods(_selector(job), version, remaining):
                name = pod["metadata"]["name"]
                last_pods[name] = pod
                left = left - {name} if kind == "DELETED" else left | {name}  # also one that is created meanwhile
                if kind != "DELETED" and endings([pod]):
                    append_new_lines(job, cluster, [pod])
                if not left:
                    break
        except (ApiError, ProblemError) as lost:
            if isinstance(lost, ApiError) and lost.status != 410:  # 410: the version is too old
                raise
            time.sleep(RECONNECT_S)
        with suppress(ProblemError):  # without an answer the watch continues from the last version
            now, version = cluster.pods(_selector(job))
            last_pods |= {pod["metadata"]["name"]: pod for pod in now}
            left = {pod["metadata"]["name"] for pod in now}
    return sorted(left), version


def _bring_back(job: Submitted, pods: Sequence[Json]) -> None:
    """Write the engine's last status into the launcher's run folder, unless the engine writes there itself."""
    run = job.run
    report = next((ending.report for ending in reversed(endings(pods)) if ending.status.state is not None), {})
    if not report or EngineStatus.parse(run.read_status()).exit_code is not None:
        return
    try:
        files.write_json(run.path / "status.json", report["status"])
        if report.get("problems"):
            files.write_json(run.path / "problems.json", report["problems"])
    except OSError:
        return  # the launcher cannot write there; the record is enough


def _store_end(job: Submitted, end_state: Observed) -> Observed:
    """Store an end state that the cluster will no longer have."""
    write_exit(job.job_id, asdict(end_state))
    return end_state


def _stored_end(job: Submitted) -> Observed | None:
    """The stored end state; None without a readable one."""
    try:
        return msgspec.convert(read_exit(job.job_id), Observed)
    except msgspec.ValidationError:
        return None


def log(job: Submitted, position: int) -> tuple[bytes, int]:
    """The first node's log as collected so far, stored beside the record."""
    try:
        cluster = connect(_site(job))
        append_new_lines(job, cluster, cluster.pods(_selector(job))[0])
    except (ProblemError, ApiError):
        pass  # the lines collected before are enough
    return read_log(job, position)


def _site(job: Submitted) -> KubernetesSite:
    return cast(KubernetesSite, settings_of(job, KubernetesSite))


def _selector(job: Submitted) -> str:
    return f"{JOB_LABEL}={job.job_id}"


def _main(job: Submitted) -> Json:
    """The identity of a job's Job or TrainJob object."""
    trainjob = _site(job).form == "trainjob"
    kind = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
    batch = {"apiVersion": "batch/v1", "kind": "Job"}
    return {**(kind if trainjob else batch), "metadata": {"name": object_name(job.job_id)}}


KUBERNETES = Platform(
    "kubernetes",
    check,
    render,
    submit,
    status,
    cancel,
    log=log,
    visible_gpus=lambda settings: None,
    needs_image=lambda settings: not (settings and settings.image),
    settings=KubernetesSite,
    submit_command=submit_command,
    away=(PLATFORM_UNREACHABLE.name, PLATFORM_SILENT.name, PACKAGE_MISSING.name),
    has_queue=True,
    poll_s=POLL_S,
)
