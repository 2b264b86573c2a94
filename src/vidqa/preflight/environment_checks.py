"""The environment: engine packages, open files, output folder, shared memory; and the check of the platform itself."""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
import time
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from vidqa import spec
from vidqa.core._optional import PACKAGE_MISSING, installing
from vidqa.core.cli import FILE_REFUSED, SKILL_ROOT
from vidqa.core.problem import Problem, ProblemError
from vidqa.jobs import launch
from vidqa.jobs.job_spec import load_job_spec
from vidqa.jobs.platforms import platform, site
from vidqa.jobs.platforms.local import cpu_count
from vidqa.jobs.problems import PLATFORM_UNREACHABLE
from vidqa.preflight.inputs import ModelInputs, RunInputs, Skip
from vidqa.preflight.problems import MACHINE_LIMITS

SHM_NEEDED = 1024**3
FILES_NEEDED = 1024
MOST_SKEW_S = 5.0  # tolerates file systems that store whole or even seconds


def packages(inputs: RunInputs) -> list[Problem]:
    """The engine's packages, by their installed versions, without importing them."""
    inputs.facts["python"] = ".".join(map(str, sys.version_info[:3]))
    return _unfit(inputs, "engine", "the engine")


def optional_packages(inputs: RunInputs) -> list[Problem]:
    """Packages that only some specs need: trackers, 8-bit products."""
    needed = inputs.declared_action.packages(inputs.spec)
    return [problem for extra, why in needed.items() for problem in _unfit(inputs, extra, why)]


def _unfit(inputs: RunInputs, extra: str, why: str) -> list[Problem]:
    """Packages of an extra of this project that are missing or too old; `why` needs them."""
    problems = []
    versions: dict[str, str | None] = inputs.facts.setdefault("packages", {})
    for text in tomllib.loads((SKILL_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]:
        requirement = Requirement(text)
        version = versions[requirement.name] = installed(requirement.name)
        if version is None:
            problems.append(PACKAGE_MISSING.at(requirement.name, f"{why} needs {text}", installing(extra)))
        elif not _meets(version, requirement):
            message = f"{requirement.name} {version} is installed, {text} is needed"
            problems.append(PACKAGE_MISSING.at(requirement.name, message))
    return problems


def model_packages(inputs: ModelInputs) -> list[Problem]:
    """Whether the stock model is right, which proves exports and answers where the spec says so."""
    family, version = inputs.family, installed("transformers")
    if not (family.transformers and version) or Version(version) >= Version(family.transformers):
        return []
    wrong = f"transformers {version} rounds the seconds between frames down, {family.name} needs {family.transformers}"
    return [PACKAGE_MISSING.at("transformers", wrong)]


def torch_pair(inputs: RunInputs) -> list[Problem]:
    """Each torchvision is built for one torch and says so in its requirements."""
    torch, torchvision = installed("torch"), installed("torchvision")
    if torch is None or torchvision is None:
        return []  # the packages check has said so
    requirements = [Requirement(text) for text in metadata.requires("torchvision") or []]
    unmet = [str(r) for r in requirements if r.name == "torch" and not _meets(torch, r)]
    remedy = "install the two together: pip install --upgrade torch torchvision"
    message = f"torchvision {torchvision} needs {', '.join(unmet)}; torch is {torch}"
    return [PACKAGE_MISSING.at("torchvision", message, remedy)] if unmet else []


def _meets(version: str, requirement: Requirement) -> bool:
    """Whether an installed version, without its local part (+cu130), is one that a requirement allows."""
    return requirement.specifier.contains(version.partition("+")[0], prereleases=True)


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def open_files(inputs: RunInputs) -> list[Problem]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    inputs.facts["open_files"] = soft
    message = f"{soft} files at a time (at most {hard}), {FILES_NEEDED} needed"
    return [MACHINE_LIMITS.at("ulimit -n", message, severity="warning")] if 0 <= soft < FILES_NEEDED else []


def output_folder(inputs: RunInputs) -> list[Problem]:
    """Whether the output folder is writable, and its clock right. No folder is created."""
    inputs.require_visible(inputs.output_dir)
    folder = existing(inputs.output_dir)
    try:
        before = time.time()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-") as file:
            return clock_skew(folder, os.stat(file.name).st_mtime, before, time.time())
    except OSError as failed:
        return [FILE_REFUSED.at(folder, f"a file cannot be made here: {failed.strerror or failed}")]


def clock_skew(folder: Path, file_time: float, before: float, after: float) -> list[Problem]:
    """The time of a new file must lie between `before` and `after` of this machine's clock."""
    skew_s = min(0.0, file_time - before) + max(0.0, file_time - after)
    message = f"a file made now bears a time {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'ago'}"
    return [MACHINE_LIMITS.at(folder, message, severity="warning")] if abs(skew_s) > MOST_SKEW_S else []


def shared_memory(inputs: RunInputs) -> list[Problem]:
    if inputs.processes == 1 or not Path("/dev/shm").is_dir():
        return []
    shm = os.statvfs("/dev/shm")
    size = shm.f_frsize * shm.f_blocks
    message = f"it holds {size / 1024**2:.0f} MiB; {inputs.processes} processes want {SHM_NEEDED / 1024**2:.0f}"
    return [MACHINE_LIMITS.at("/dev/shm", message, severity="warning")] if size < SHM_NEEDED else []


def existing(folder: Path) -> Path:
    """The folder, or its nearest existing ancestor, which may be a file."""
    return next(path for path in (folder, *folder.parents) if path.exists())


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
        return [PLATFORM_UNREACHABLE.at("127.0.0.1", f"no port can be opened: {failed}", remedy)]
    return []
