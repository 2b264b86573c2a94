"""Platform: what it can tell before a job is sent to it."""

from __future__ import annotations

import socket
from pathlib import Path

from vidqa.platforms import platform
from vidqa.platforms._base import Job
from vidqa.platforms.hardware import cpu_count
from vidqa.preflight._base import Context
from vidqa.preflight.problems import NO_LOOPBACK
from vidqa.problem import Problem


def suitable(context: Context) -> list[Problem]:
    """The platform's own check of the job that would be launched."""
    context.facts |= {"gpus": len(context.gpus), "cores": cpu_count(), "processes": context.processes}
    job = Job("preflight", context.action, Path.cwd(), context.processes, context.facts["gpus"])
    return platform(context.platform).check(job)


def ports(context: Context) -> list[Problem]:
    try:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", 0))
    except OSError as failed:
        return [NO_LOOPBACK.at("127.0.0.1", f"no port can be opened: {failed}")]
    return []
