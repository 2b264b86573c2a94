"""Platform: what it can tell before a job is sent to it."""

from __future__ import annotations

import socket
from dataclasses import replace

from vidqa.contract.problem import Problem, ProblemError
from vidqa.jobs import launch
from vidqa.jobs.job_spec import load_job_spec
from vidqa.platforms import platform, site
from vidqa.platforms.hardware import cpu_count
from vidqa.preflight._base import Context, Skip
from vidqa.preflight.problems import NO_LOOPBACK


def suitable(context: Context) -> list[Problem]:
    """The platform's own check of the job that would be launched, with its site settings and its image."""
    context.facts |= {"gpus": len(context.gpus), "cores": cpu_count(), "processes": context.processes}
    where, declared = platform(context.platform), context.declared.anything
    settings = site.read(context.platform, context.wanted.site)
    wanted = replace(context.wanted, gpus=len(context.gpus) if declared else None)
    unasked = launch.image_problems(where, settings, wanted)
    wanted = launch.with_image(where, settings, replace(wanted, agreed=True), fetch=False)
    try:
        asked = load_job_spec(context.action, context.spec_path, fetch=False, settings=settings)
    except ProblemError as unresolved:
        first = unresolved.problems[0]
        raise Skip(f"the job cannot be put together: {first.code} at {first.where}") from unresolved
    job = launch.job_of(asked, where, settings, wanted, asked.output_dir / "preflight", "preflight")
    return [*unasked, *where.check(job)]


def ports(context: Context) -> list[Problem]:
    try:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", 0))
    except OSError as failed:
        return [NO_LOOPBACK.at("127.0.0.1", f"no port can be opened: {failed}")]
    return []
