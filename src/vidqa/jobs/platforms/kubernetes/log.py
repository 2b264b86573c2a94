"""The log of a job in a cluster, kept beside its record: the cluster deletes it with the pods.

The API selects log lines by time, not by byte. So each request starts a little before the last kept line, and lines
that are already kept are dropped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vidqa.core import files
from vidqa.core.environment import jobs_folder
from vidqa.core.problem import ProblemError
from vidqa.jobs.platforms import job_store
from vidqa.jobs.platforms._base import Submitted, instant, read_log_file, run_folder_log
from vidqa.jobs.platforms.kubernetes.client import ApiError, Cluster
from vidqa.jobs.platforms.kubernetes.manifest import CONTAINER, NODE_LABEL, TRAINJOB_CONTAINER
from vidqa.jobs.platforms.kubernetes.state import container_state

OVERLAP_S = 60
TAIL_LINES = 200
Json = dict[str, Any]


def path_of(job: Submitted) -> Path:
    return jobs_folder() / f"{job.job_id}.log"


def gather(job: Submitted, cluster: Cluster, pods: Sequence[Json]) -> None:
    """Append the new log lines of the first node's pods, oldest pod first.

    A pod without a log adds nothing."""
    with job_store.lock(f"log-{job.job_id}"):
        places = _places(job)
        first = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(NODE_LABEL, "0") == "0"]
        for pod in sorted(first, key=lambda candidate: str(candidate["metadata"].get("creationTimestamp"))):
            if not {"running", "terminated"} & set(container_state(pod)):
                continue
            name = pod["metadata"]["name"]
            try:
                lines = _new_lines(cluster, name, _container(pod), places.get(name))
            except (ApiError, ProblemError):  # the log of a lost node never comes; the job ends all the same
                continue
            if lines:
                last = lines[-1][0]
                same = sum(1 for stamp, _ in lines if stamp == last)
                before = places[name]["count"] if name in places and places[name]["last"] == last else 0
                places[name] = {"last": last, "count": same + before}
                try:
                    with path_of(job).open("ab") as file:
                        file.write(b"".join(text + b"\n" for _, text in lines))
                    files.write_json(_places_file(job), places)
                except OSError:  # a full disk does not end the job either
                    return


def _new_lines(cluster: Cluster, pod: str, container: str, place: Json | None) -> list[tuple[str, bytes]]:
    """(time, text) of every line after the last one that is kept. Where our clock and the cluster's differ, the whole
    log is read."""
    if place is None:
        return _parsed(cluster.log(pod, container, None))
    now = datetime.now(UTC)
    age = (now - instant(place["last"], now)).total_seconds()
    lines = _parsed(cluster.log(pod, container, max(OVERLAP_S, round(age) + OVERLAP_S)))
    if place["last"] not in {stamp for stamp, _ in lines}:
        lines = _parsed(cluster.log(pod, container, None))
    return _after(lines, place)


def _after(lines: list[tuple[str, bytes]], place: Json) -> list[tuple[str, bytes]]:
    """The lines after the last kept one, in the order of the log: a node's clock may be set back.

    The times decide only where the log was rotated and that line is gone."""
    matches = [at for at, (stamp, _) in enumerate(lines) if stamp == place["last"]]
    if len(matches) >= place["count"]:
        return lines[matches[place["count"] - 1] + 1 :]
    now = datetime.now(UTC)
    return [line for line in lines if instant(line[0], now) > instant(place["last"], now)]


def _parsed(raw: bytes) -> list[tuple[str, bytes]]:
    """Whole lines only: the last one may be incomplete."""
    whole = raw[: raw.rfind(b"\n") + 1] if b"\n" in raw else b""
    pairs = (line.partition(b" ") for line in whole.split(b"\n")[:-1])
    return [(stamp.decode(errors="replace"), text) for stamp, _, text in pairs]


def _places(job: Submitted) -> dict[str, Json]:
    places = files.read_object(_places_file(job))
    return {name: last for name, last in places.items() if isinstance(last, dict) and {"last", "count"} <= set(last)}


def _places_file(job: Submitted) -> Path:
    return jobs_folder() / f".{job.job_id}.log-places"


def _container(pod: Json) -> str:
    names = [container["name"] for container in pod["spec"]["containers"]]
    return next((name for name in names if name in (CONTAINER, TRAINJOB_CONTAINER)), names[0])


def tail_of(cluster: Cluster, name: str, pods: Sequence[Json]) -> str:
    """The last lines of one pod, without times; empty where the cluster has none."""
    pod = next(candidate for candidate in pods if candidate["metadata"]["name"] == name)
    try:
        raw = cluster.log(name, _container(pod), None, TAIL_LINES)
    except (ApiError, ProblemError):
        return ""
    return b"\n".join(text for _, text in _parsed(raw)).decode(errors="replace")


def read_log(job: Submitted, position: int) -> tuple[bytes, int]:
    """The log from `position`, counted from `job.log_start`; without a gathered log, that of the run folder."""
    path = path_of(job)
    if not os.path.lexists(path):
        return run_folder_log(job, position)
    raw, end = read_log_file(path, position if position < 0 else max(0, position - job.log_start))
    return raw, job.log_start + end
