"""The state of a job from its Job (or TrainJob) and pods: pure functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from vidqa.core.problem import Exit
from vidqa.jobs.platforms._base import IMAGE, INFRASTRUCTURE, OUT_OF_MEMORY, Failure, Observed, State, Submitted
from vidqa.jobs.platforms.engine_process import EngineStatus, ended
from vidqa.jobs.platforms.kubernetes.manifest import CONTAINER, NODE_LABEL, TRAINJOB_CONTAINER

Json = dict[str, Any]
# Reasons of a waiting container that need a user's action, and their failure class.
OF_IMAGES = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
OF_CONTAINERS = ("CreateContainerError", "RunContainerError")
STUCK = {**dict.fromkeys((*OF_IMAGES, *OF_CONTAINERS), IMAGE), "CreateContainerConfigError": INFRASTRUCTURE}


@dataclass(frozen=True)
class Ending:
    """The end of one pod's engine container. `report` is its termination message, as pod.py writes it, and `disruption`
    the reason why the cluster removed the pod, if it did."""

    pod: str
    node: int
    exit_code: int
    reason: str
    report: Json
    finished: str
    disruption: str

    @property
    def status(self) -> EngineStatus:
        return EngineStatus.parse(self.report.get("status"))


@dataclass(frozen=True)
class BlockedPod:
    """A pod that cannot start. `since` is the time when it got its node; before that it was queued."""

    kind: str
    message: str
    since: datetime


def observed(owner: Json, pods: Sequence[Json], job: Submitted, log_tail: str = "") -> Observed:
    """The state of a job that the cluster has; `owner` is the Job or TrainJob of the pods."""
    conditions = true_conditions(owner)
    if "Complete" in conditions:
        messages = [ending.status.message for ending in endings(pods) if ending.node == 0]
        return Observed(State.COMPLETE, 0, messages[-1] if messages else "")
    if "Failed" in conditions:
        return failed(conditions["Failed"], pods, job, log_tail)
    return _unfinished(owner, pods, job)


def true_conditions(thing: Json) -> dict[str, Json]:
    """The true conditions of an object, by type."""
    conditions = thing.get("status", {}).get("conditions") or []
    return {condition["type"]: condition for condition in conditions if condition.get("status") == "True"}


def failed(condition: Json, pods: Sequence[Json], job: Submitted, log_tail: str) -> Observed:
    """The state of a failed Job: by the pod that failed first, else by the Job's condition."""
    ending = decisive(pods)
    if ending is None:
        reason = f"{condition.get('reason')}: {condition.get('message')}"
        why: Failure = {"class": INFRASTRUCTURE, "evidence": reason[:300]}
        return Observed(State.ERROR, int(Exit.JOB_FAILED), f"the cluster ended it: {reason}", why)
    return verdict(ending, pods, job, log_tail)


def verdict(ending: Ending, pods: Sequence[Json], job: Submitted, log_tail: str) -> Observed:
    """The state of the job that follows from the end of one pod."""
    code = ending.report.get("ended")
    observed = ended(job, code if isinstance(code, int) else ending.exit_code, ending.status, log_tail)
    if observed.state == State.COMPLETE or observed.exit_code == Exit.NOT_DONE:
        return observed
    if ending.reason == "OOMKilled":
        evidence = f"pod {ending.pod}: OOMKilled, exit code {ending.exit_code}"
        message = "the container used more memory than its limit (memory_gib in site.toml; /dev/shm counts)"
        return replace(observed, message=message, failure={"class": OUT_OF_MEMORY, "evidence": evidence})
    lost = [f"pod {ending.pod}: {ending.disruption}" for ending in endings(pods) if ending.disruption]
    lost += [f"pod {pod['metadata']['name']}: {why}" for pod in pods if (why := _disruption(pod))]
    if lost and observed.exit_code not in (Exit.INPUT, Exit.ENVIRONMENT):
        return replace(observed, failure={"class": INFRASTRUCTURE, "evidence": lost[0]})
    return observed


def decisive(pods: Sequence[Json]) -> Ending | None:
    """The ending that decides: the first failure, else the last disruption or stop."""
    bad = sorted((ending for ending in endings(pods) if ending.exit_code != 0), key=lambda ending: ending.finished)
    own = [ending for ending in bad if not ending.disruption and ending.exit_code != Exit.NOT_DONE]
    return own[0] if own else bad[-1] if bad else None


def endings(pods: Sequence[Json]) -> list[Ending]:
    """The endings of all pods, in order of time."""
    terminated = [_ending(pod, state) for pod in pods if (state := container_state(pod).get("terminated"))]
    return sorted(terminated, key=lambda ending: ending.finished)


def _ending(pod: Json, state: Json) -> Ending:
    labels = pod["metadata"].get("labels") or {}
    return Ending(
        pod=pod["metadata"]["name"],
        node=int(labels.get(NODE_LABEL) or 0),
        exit_code=int(state.get("exitCode", 0)),
        reason=str(state.get("reason") or ""),
        report=_parsed_report(str(state.get("message") or "")),
        finished=str(state.get("finishedAt") or ""),
        disruption=_disruption(pod),
    )


def _parsed_report(message: str) -> Json:
    """The termination message of a pod; empty if another program wrote it."""
    try:
        report = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _disruption(pod: Json) -> str:
    """The reason why the cluster removed this pod: preempted, evicted, its node lost."""
    target = true_conditions(pod).get("DisruptionTarget")
    if target:
        return f"{target.get('reason')}: {target.get('message')}"[:250]
    status = pod.get("status", {})
    return str(status["reason"]) if status.get("reason") in ("Evicted", "NodeLost", "Preempting", "Shutdown") else ""


def container_state(pod: Json) -> Json:
    """The state of the engine's container: {"waiting" | "running" | "terminated": ...}; empty before it exists."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status["name"] in (CONTAINER, TRAINJOB_CONTAINER):
            return dict(status.get("state") or {})
    return {}


def stuck(pods: Sequence[Json]) -> BlockedPod | None:
    """The first pod whose container cannot start; None without one."""
    for pod in pods:
        waiting = container_state(pod).get("waiting") or {}
        if waiting.get("reason") in STUCK:
            placed = true_conditions(pod).get("PodScheduled", {}).get("lastTransitionTime")
            since = datetime.fromisoformat(placed or pod["metadata"]["creationTimestamp"])
            message = f"pod {pod['metadata']['name']}: {waiting['reason']}: {waiting.get('message') or ''}".rstrip(": ")
            return BlockedPod(STUCK[waiting["reason"]], message[:400], since.astimezone(UTC))
    return None


def _unfinished(owner: Json, pods: Sequence[Json], job: Submitted) -> Observed:
    running = [pod for pod in pods if "running" in container_state(pod)]
    if running and len(running) >= job.nodes:
        return Observed(State.RUNNING)
    state = State.RUNNING if running or endings(pods) or job.state == State.RUNNING else State.PENDING
    blocked = stuck(pods)
    if blocked:
        return Observed(state, None, blocked.message)
    if owner.get("spec", {}).get("suspend"):
        return Observed(state, None, "it is suspended: a queue has not admitted it yet")
    unplaced = [message for pod in pods if (message := _unscheduled(pod))]
    if unplaced:
        return Observed(state, None, f"{len(unplaced)} pod(s) wait for a node: {unplaced[0]}"[:400])
    back = [ending for ending in endings(pods) if ending.exit_code != 0]
    if back:
        why = back[-1].disruption or f"ended with exit code {back[-1].exit_code}"
        return Observed(state, None, f"a pod is started again; pod {back[-1].pod} {why}")
    # The node still pulls the image or mounts volumes; only events show which of them fails.
    creating = [pod for pod in pods if (container_state(pod).get("waiting") or {}).get("reason") == "ContainerCreating"]
    preparing = [pod["metadata"]["name"] for pod in creating]
    if preparing:
        advice = f"`kubectl describe pod {preparing[0]}` shows the reason"
        return Observed(state, None, f"{len(preparing)} pod(s) wait for their image and volumes: {advice}")
    return Observed(state, None, "" if running else "its pods are being created")


def _unscheduled(pod: Json) -> str:
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "unschedulable")
    return ""
