"""Platform: the platform's own check before a job is submitted."""

from __future__ import annotations

import socket
from dataclasses import replace

from vidqa import spec
from vidqa.contract.problem import Problem, ProblemError
from vidqa.jobs import launch
from vidqa.jobs.job_spec import load_job_spec
from vidqa.platforms import platform, site
from vidqa.platforms.hardware import cpu_count
from vidqa.platforms.problems import PLATFORM_UNSUITABLE
from vidqa.preflight.inputs import RunInputs, Skip


def suitable(inputs: RunInputs) -> list[Problem]:
    """Check the job as a launch would make it, with site settings and image."""
    inputs.facts |= {"gpus": len(inputs.gpus), "cores": cpu_count(), "processes": inputs.processes}
    where, declared = platform(inputs.platform), inputs.declared.anything
    settings = site.read(inputs.platform, inputs.resources.site)
    resources = replace(inputs.resources, gpus=len(inputs.gpus) if declared else None)
    image_warnings = launch.image_problems(where, settings, resources)
    resources = launch.with_image(where, settings, replace(resources, agreed=True), fetch=False)
    try:
        job_spec = load_job_spec(inputs.action, inputs.spec_path, fetch=False, settings=settings)
    except ProblemError as unresolved:
        first = unresolved.problems[0]
        raise Skip(f"the job cannot be put together: {first.code} at {first.where}") from unresolved
    job = launch.job_of(job_spec, where, settings, resources, job_spec.output_dir / "preflight", "preflight")
    problems = [*spec.check_with_nodes(job_spec.resolved, resources.nodes), *where.check(job)]
    if site.is_unseen(settings, job.run_dir):  # no launch from here, but files that a person submits
        inputs.facts["by_hand"] = True
        problems = launch.as_offline_warnings(where, problems)
    return [*image_warnings, *problems]


def ports(inputs: RunInputs) -> list[Problem]:
    try:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", 0))
    except OSError as failed:
        remedy = "bring the loopback interface up: ip link set lo up"
        return [PLATFORM_UNSUITABLE.at("127.0.0.1", f"no port can be opened: {failed}", remedy)]
    return []
