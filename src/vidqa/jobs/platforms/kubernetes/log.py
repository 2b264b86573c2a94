"""The log of a job in a cluster, stored beside its record: the cluster deletes it with the pods.

The API selects log lines by time, not by byte. So each request starts a little before the last stored line, and lines
that are already stored are dropped. A file has for every pod the time of its last stored line (`last`) and the number
of stored lines with this time (`count`).
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
LogLine = tuple[str, bytes]  # timestamp in the API's format, and text
Json = dict[str, Any]


def log_path(job: Submitted) -> Path:
    """The stored log."""
    return jobs_folder() / f"{job.job_id}.log"


def append_new_lines(job: Submitted, cluster: Cluster, pods: Sequence[Json]) -> None:
    """Append the new log lines of the first node's pods, oldest pod first. A pod without a log adds nothing."""
    with job_store.lock(f"log-{job.job_id}"):
        last_lines = _read_last_lines(job)
        first_node_pods = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(NODE_LABEL, "0") == "0"]
        for pod in sorted(first_node_pods, key=lambda candidate: str(candidate["metadata"].get("creationTimestamp"))):
            if not {"running", "terminated"} & set(container_state(pod)):
                continue
            name = pod["metadata"]["name"]
            try:
                lines = _new_lines(cluster, name, _engine_container(pod), last_lines.get(name))
            except (ApiError, ProblemError):  # a lost node has no log; that must not hold up the job
                continue
            if lines:
                time, stored = lines[-1][0], last_lines.get(name)
                count = sum(1 for stamp, _ in lines if stamp == time)
                count += stored["count"] if stored and stored["last"] == time else 0
                last_lines[name] = {"last": time, "count": count}
                try:
                    with log_path(job).open("ab") as file:
                        file.write(b"".join(text + b"\n" for _, text in lines))
                    files.write_json(_last_lines_file(job), last_lines)
                except OSError:  # a full disk does not end the job either
                    return


def _new_lines(cluster: Cluster, pod: str, container: str, last_line: Json | None) -> list[LogLine]:
    """All lines after the last stored one. If our clock and the cluster's differ, the whole log is read."""
    if last_line is None:
        return _parse_log(cluster.log(pod, container, None))
    now = datetime.now(UTC)
    age_s = (now - instant(last_line["last"], now)).total_seconds()
    lines = _parse_log(cluster.log(pod, container, max(OVERLAP_S, round(age_s) + OVERLAP_S)))
    if last_line["last"] not in {stamp for stamp, _ in lines}:
        lines = _parse_log(cluster.log(pod, container, None))
    return _lines_after(lines, last_line)


def _lines_after(lines: list[LogLine], last_line: Json) -> list[LogLine]:
    """The lines after the last stored one. Its position in the log decides, since a node's clock may be set back;
    timestamps do only if the log was rotated and that line is gone."""
    indices = [at for at, (stamp, _) in enumerate(lines) if stamp == last_line["last"]]
    if len(indices) >= last_line["count"]:
        return lines[indices[last_line["count"] - 1] + 1 :]
    now = datetime.now(UTC)
    return [line for line in lines if instant(line[0], now) > instant(last_line["last"], now)]


def _parse_log(raw: bytes) -> list[LogLine]:
    """The complete lines of a log: the last one may be truncated."""
    complete = raw[: raw.rfind(b"\n") + 1] if b"\n" in raw else b""
    pairs = (line.partition(b" ") for line in complete.split(b"\n")[:-1])
    return [(stamp.decode(errors="replace"), text) for stamp, _, text in pairs]


def _read_last_lines(job: Submitted) -> dict[str, Json]:
    last_lines = files.read_object(_last_lines_file(job))
    return {
        name: last for name, last in last_lines.items() if isinstance(last, dict) and {"last", "count"} <= set(last)
    }


def _last_lines_file(job: Submitted) -> Path:
    return jobs_folder() / f".{job.job_id}.log-places"


def _engine_container(pod: Json) -> str:
    """The name of the container with the job's log."""
    names = [container["name"] for container in pod["spec"]["containers"]]
    return next((name for name in names if name in (CONTAINER, TRAINJOB_CONTAINER)), names[0])


def pod_log_tail(cluster: Cluster, name: str, pods: Sequence[Json]) -> str:
    """The last TAIL_LINES lines of the pod `name`, without their times; empty if the cluster has no log."""
    pod = next(candidate for candidate in pods if candidate["metadata"]["name"] == name)
    try:
        raw = cluster.log(name, _engine_container(pod), None, TAIL_LINES)
    except (ApiError, ProblemError):
        return ""
    return b"\n".join(text for _, text in _parse_log(raw)).decode(errors="replace")


def read_log(job: Submitted, position: int) -> tuple[bytes, int]:
    """The bytes of the log from `position` on, and the position after them. Positions count from `job.log_start`; a
    negative one is that of read_log_file. Without a stored log, reads that of the run folder."""
    path = log_path(job)
    if not os.path.lexists(path):
        return run_folder_log(job, position)
    raw, end = read_log_file(path, position if position < 0 else max(0, position - job.log_start))
    return raw, job.log_start + end
