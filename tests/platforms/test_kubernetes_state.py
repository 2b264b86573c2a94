"""What a cluster's objects mean for a job, from objects as clusters show them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from vidqa.jobs.platforms._base import State, Submitted
from vidqa.jobs.platforms.kubernetes.manifest import NODE_LABEL
from vidqa.jobs.platforms.kubernetes.state import decisive, observed, stuck
from vidqa.jobs.platforms.processes import this_process

FAILED = {
    "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "m"}]}
}


def submitted(**more: Any) -> Submitted:
    return Submitted("j", Path("/o/j"), created="", launcher=this_process(), **more)


def pod(name: str = "p", node: int = 0, conditions: list[dict[str, str]] | None = None, **state: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {NODE_LABEL: str(node)}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "engine"}]},
        "status": {"conditions": conditions or [], "containerStatuses": [{"name": "engine", "state": state}]},
    }


def over(code: int, at: int = 0, reason: str = "Error", words: Any = None) -> dict[str, Any]:
    finished = f"2026-01-01T00:00:{at:02}Z"
    return {"exitCode": code, "reason": reason, "finishedAt": finished, "message": json.dumps(words) if words else ""}


def said(state: str, code: int, message: str = "") -> dict[str, Any]:
    return {"ended": 1, "status": {"state": state, "exit_code": code, "message": message}}


PREEMPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "by other"}]


@pytest.mark.parametrize("code", [3, 4, 5])
def test_the_engines_exit_codes(code: int) -> None:
    seen = observed(FAILED, [pod(terminated=over(code, words=said("ERROR", code, "why")))], submitted())
    assert (seen.state, seen.exit_code, seen.message) == (State.ERROR, code, "why")


def test_saved_and_stopped() -> None:
    pods = [pod(terminated=over(6, words=said("STOPPED", 6, "saved")))]
    assert observed(FAILED, pods, submitted()).state == State.STOPPED
    seen = observed(FAILED, pods, submitted(cancel_requested="now"))
    assert (seen.state, seen.exit_code) == (State.CANCELED, 6)


def test_the_pod_that_failed_first_decides() -> None:
    pods = [pod("b", 1, terminated=over(5, 9)), pod("a", 0, terminated=over(3, 2)), pod("c", 2, terminated=over(0, 1))]
    found = decisive(pods)
    assert found and (found.pod, found.exit_code) == ("a", 3)
    lost = [pod("a", 0, PREEMPTED, terminated=over(137, 1)), pod("b", 1, terminated=over(5, 3))]
    found = decisive(lost)
    assert found and found.pod == "b"
    seen = observed(FAILED, lost, submitted())
    assert seen.failure == {"class": "infrastructure", "evidence": "pod a: PreemptionByScheduler: by other"}


def test_out_of_memory_of_the_container() -> None:
    seen = observed(FAILED, [pod(terminated=over(137, reason="OOMKilled"))], submitted())
    assert seen.failure and seen.failure["class"] == "out of memory" and seen.state == State.ERROR


def test_ended_by_the_cluster_without_a_pod() -> None:
    seen = observed(FAILED, [], submitted())
    assert seen.state == State.ERROR and "PodFailurePolicy: m" in seen.message
    assert seen.failure and seen.failure["class"] == "infrastructure"


def test_complete_needs_the_condition_of_the_whole_job() -> None:
    done = pod(terminated=over(0, reason="Completed", words=said("COMPLETE", 0, "complete")))
    assert observed({"status": {}}, [done], submitted()).state != State.COMPLETE
    whole = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    seen = observed(whole, [done], submitted())
    assert (seen.state, seen.exit_code, seen.message) == (State.COMPLETE, 0, "complete")
    unmet = {"status": {"conditions": [{"type": "Complete", "status": "False"}]}}
    assert observed(unmet, [done], submitted()).state == State.RUNNING


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"]
)
def test_pods_that_cannot_start(reason: str) -> None:
    found = stuck([pod(waiting={"reason": reason, "message": "no such thing"})])
    assert found and reason in found.message and "no such thing" in found.message
    assert stuck([pod(waiting={"reason": "ContainerCreating"})]) is None


def test_the_wait_for_a_node_is_not_a_failure_to_start() -> None:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T01:00:00Z"}
    waiting = {"reason": "ErrImagePull", "message": "i/o timeout"}
    found = stuck([pod(conditions=[placed], waiting=waiting)])
    assert found and found.since == datetime(2026, 1, 1, 1, tzinfo=UTC)
    found = stuck([pod(waiting=waiting)])
    assert found and found.since == datetime(2026, 1, 1, tzinfo=UTC)  # when it was made


def test_a_pod_that_is_prepared_says_where_to_look() -> None:
    seen = observed({}, [pod("p", waiting={"reason": "ContainerCreating"})], submitted())
    assert seen.state == State.PENDING and "kubectl describe pod p" in seen.message


def test_all_nodes_must_run() -> None:
    waiting = pod("b", 1, waiting={"reason": "ContainerCreating"})
    running = pod("a", running={"startedAt": "x"})
    assert observed({}, [running, waiting], submitted(nodes=2)).state == State.RUNNING
    assert observed({}, [waiting], submitted(nodes=2)).state == State.PENDING
    assert observed({"spec": {"suspend": True}}, [], submitted()).message.startswith("it is suspended")


def test_words_of_a_pod_that_are_not_ours() -> None:
    broken = {**over(1), "message": "panic: [\u0000"}
    assert observed(FAILED, [pod(terminated=broken)], submitted()).exit_code == 5
    sidecar = pod(terminated=over(5))
    sidecar["status"]["containerStatuses"].insert(0, {"name": "istio-proxy", "state": {"running": {}}})
    assert observed(FAILED, [sidecar], submitted()).state == State.ERROR
