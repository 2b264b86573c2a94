"""Environment checks: engine packages, GPUs, open files, output folder, shared memory; and the platform's own check."""

from __future__ import annotations

import os
import resource
import socket
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from vidqa import spec
from vidqa.core._optional import GPU_UNFIT, PACKAGE_MISSING, installing
from vidqa.core.cli import FILE_REFUSED, SKILL_ROOT
from vidqa.core.problem import Problem, ProblemError
from vidqa.jobs import launch
from vidqa.jobs.job_spec import load_job_spec
from vidqa.jobs.platforms import platform, site
from vidqa.jobs.platforms.local import cpu_count
from vidqa.jobs.problems import NOT_SHARED, PLATFORM_UNREACHABLE
from vidqa.planning.budget.methods import FIRST_OF_BITSANDBYTES
from vidqa.preflight.gpus import (
    COSMOS_RL_GPUS,
    NONE_HERE,
    Build,
    driver_cuda,
    engine_build,
    least_memory,
    runs_on,
    version_of,
)
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.problems import MACHINE_LIMITS
from vidqa.spec.train_rules import bitsandbytes_key

SHM_NEEDED = 1024**3
FILES_NEEDED = 1024
FIRST_WITH_FP8 = (8, 9)
MOST_SKEW_S = 5.0  # allows for file systems that store whole or even seconds


def packages(inputs: Inputs) -> list[Problem]:
    """Check the engine's packages by their installed versions, without importing them."""
    inputs.facts["python"] = ".".join(map(str, sys.version_info[:3]))
    return _unmet(inputs, "engine", "the engine")


def optional_packages(inputs: Inputs) -> list[Problem]:
    """Check packages that only some specs need: trackers, 8-bit kernels."""
    needed = inputs.declared_action.packages(inputs.spec)
    return [problem for extra, why in needed.items() for problem in _unmet(inputs, extra, why)]


def _unmet(inputs: Inputs, extra: str, why: str) -> list[Problem]:
    """Problems of packages in an extra of this project that are missing or too old; `why` names their user."""
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


def model_packages(inputs: Inputs) -> list[Problem]:
    """Check the version of transformers, whose model proves exports, and generates answers if the spec says so."""
    family, version = inputs.family, installed("transformers")
    if not (family.transformers and version) or Version(version) >= Version(family.transformers):
        return []
    wrong = f"transformers {version} rounds the seconds between frames down, {family.name} needs {family.transformers}"
    return [PACKAGE_MISSING.at("transformers", wrong)]


def torch_pair(inputs: Inputs) -> list[Problem]:
    """Check that torchvision's requirements, which name one torch version, match the installed torch."""
    torch, torchvision = installed("torch"), installed("torchvision")
    if torch is None or torchvision is None:
        return []  # the packages check has reported it
    requirements = [Requirement(text) for text in metadata.requires("torchvision") or []]
    unmet = [str(r) for r in requirements if r.name == "torch" and not _meets(torch, r)]
    remedy = "install the two together: pip install --upgrade torch torchvision"
    message = f"torchvision {torchvision} needs {', '.join(unmet)}; torch is {torch}"
    return [PACKAGE_MISSING.at("torchvision", message, remedy)] if unmet else []


def _meets(version: str, requirement: Requirement) -> bool:
    """Whether a requirement allows an installed version, without its local part (+cu130)."""
    return requirement.specifier.contains(version.partition("+")[0], prereleases=True)


def installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpus(inputs: Inputs) -> list[Problem]:
    """Check driver, CUDA, and the architecture of every GPU against the architectures that torch was compiled for."""
    all_gpus = inputs.gpus
    if not all_gpus:
        raise Skip(NONE_HERE)
    first = all_gpus[0]
    inputs.facts |= {"gpu_names": sorted({gpu.name for gpu in all_gpus}), "gpu_memory_gb": least_memory(all_gpus)}
    inputs.facts["gpu_arch"] = sorted({gpu.arch for gpu in all_gpus if gpu.arch})
    build = None
    if not inputs.declared.anything and inputs.engine == "vidqa":
        inputs.facts |= {"driver": first.driver, "driver_cuda": driver_cuda()}
        build = engine_build()
    return [*_driver(inputs, build), *_architectures(inputs, build)]


def eight_bits(inputs: Inputs) -> list[Problem]:
    """Check that every GPU has the low-precision kernels that the spec needs."""
    if inputs.training is None:
        return []
    if (key := bitsandbytes_key(inputs.training)) is not None:
        remedy = f"leave {key} at its default, or use a GPU from sm_75 on"
        message = f"bitsandbytes has no kernels for it, {key} needs them"
        return _unfit_gpus(inputs, lambda arch: version_of(arch) >= FIRST_OF_BITSANDBYTES, message, remedy)
    if not inputs.training.train.fp8.enable_fp8:
        return []
    remedy = "set train.fp8.enable_fp8 = false, or use a GPU from sm_89 on"
    message = "it does not support 8-bit floats, which train.fp8 needs"
    return _unfit_gpus(inputs, lambda arch: version_of(arch) >= FIRST_WITH_FP8, message, remedy)


def _unfit_gpus(
    inputs: Inputs, is_fit: Callable[[str], bool], message: str, remedy: str | None = None
) -> list[Problem]:
    """ENV_GPU_UNFIT for every architecture of the job's GPUs without support."""
    arches = sorted({gpu.arch for gpu in inputs.gpus if gpu.arch})
    return [GPU_UNFIT.at(f"GPU {arch}", message, remedy) for arch in arches if not is_fit(arch)]


def _driver(inputs: Inputs, build: Build | None) -> list[Problem]:
    """Check the driver: it supports every CUDA of its own major version and older ones."""
    newest = inputs.facts.get("driver_cuda")
    if build is None or not build.cuda or newest is None:
        return []
    inputs.facts["engine_cuda"] = build.cuda
    if int(build.cuda.split(".")[0]) <= int(newest.split(".")[0]):
        return []
    driver = inputs.facts["driver"]
    message = f"torch is built for CUDA {build.cuda}; driver {driver} runs CUDA up to {newest}"
    return [GPU_UNFIT.at("nvidia-smi", message)]


def _architectures(inputs: Inputs, build: Build | None) -> list[Problem]:
    if inputs.engine == "cosmos-rl":
        inputs.facts["engine_architectures"] = list(COSMOS_RL_GPUS)
        released = [version_of(arch) for arch in COSMOS_RL_GPUS]
        message = f"NVIDIA's cosmos-rl image is released for {', '.join(COSMOS_RL_GPUS)}"
        remedy = "use one of these GPUs, an image that is released for yours, or the native engine"
        return _unfit_gpus(inputs, lambda arch: version_of(arch) in released, message, remedy)
    built = build.architectures if build else ()
    inputs.facts["engine_architectures"] = list(built) or "asked of torch where the GPU is"
    if not built:
        return []
    message = f"the {inputs.engine} engine is compiled for {', '.join(built)}"
    return _unfit_gpus(inputs, lambda arch: runs_on(arch, built), message)


def open_files(inputs: Inputs) -> list[Problem]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    inputs.facts["open_files"] = soft
    message = f"{soft} files at a time (at most {hard}), {FILES_NEEDED} needed"
    return [MACHINE_LIMITS.at("ulimit -n", message, severity="warning")] if 0 <= soft < FILES_NEEDED else []


def output_folder(inputs: Inputs) -> list[Problem]:
    """Check that the output folder is writable, and its clock right. No folder is created."""
    inputs.require_visible(inputs.output_dir)
    folder = existing(inputs.output_dir)
    try:
        before = time.time()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-") as file:
            return clock_skew(folder, os.stat(file.name).st_mtime, before, time.time())
    except OSError as failed:
        return [FILE_REFUSED.at(folder, f"a file cannot be created here: {failed.strerror or failed}")]


def clock_skew(folder: Path, file_time: float, before: float, after: float) -> list[Problem]:
    """Check that the time of a new file is between `before` and `after` on this machine's clock."""
    skew_s = min(0.0, file_time - before) + max(0.0, file_time - after)
    message = f"a new file has a timestamp {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'ago'}"
    return [MACHINE_LIMITS.at(folder, message, severity="warning")] if abs(skew_s) > MOST_SKEW_S else []


def shared_memory(inputs: Inputs) -> list[Problem]:
    if inputs.processes == 1 or not Path("/dev/shm").is_dir():
        return []
    shm = os.statvfs("/dev/shm")
    size = shm.f_frsize * shm.f_blocks
    message = f"it has {size / 1024**2:.0f} MiB; {inputs.processes} processes need {SHM_NEEDED / 1024**2:.0f}"
    return [MACHINE_LIMITS.at("/dev/shm", message, severity="warning")] if size < SHM_NEEDED else []


def existing(folder: Path) -> Path:
    """The folder, or its nearest existing ancestor, which may be a file."""
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def suitable(inputs: Inputs) -> list[Problem]:
    """Check the job in the form of a launch, with site settings and image. An unreachable platform is a warning, as in
    a dry run: a launch asks again and refuses."""
    inputs.facts |= {"gpus": len(inputs.gpus), "cores": cpu_count(), "processes": inputs.processes}
    where, declared = platform(inputs.platform), inputs.declared.anything
    settings = site.read(inputs.platform, inputs.resources.site)
    resources = inputs.resources.model_copy(update={"gpus": len(inputs.gpus) if declared else None})
    resources, image_warnings = launch.with_image_unasked(where, settings, resources)
    try:
        job_spec = load_job_spec(inputs.action, inputs.spec_path, fetch=False, settings=settings)
    except ProblemError as unresolved:
        first = unresolved.problems[0]
        raise Skip(f"the job cannot be rendered: {first.code} at {first.where}") from unresolved
    job = launch.job_of(job_spec, where, settings, resources, job_spec.output_dir / "preflight", "preflight")
    problems = [*spec.check_with_nodes(job_spec.resolved, resources.nodes), *where.check(job)]
    # A launch cannot write the run folder from here: the next step is to submit the files by hand.
    inputs.facts["by_hand"] = any((p.code, p.where) == (NOT_SHARED.name, str(job.run_dir)) for p in problems)
    return [*image_warnings, *launch.as_offline_warnings(where, problems)]


def ports(inputs: Inputs) -> list[Problem]:
    try:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", 0))
    except OSError as failed:
        remedy = "bring the loopback interface up: ip link set lo up"
        return [PLATFORM_UNREACHABLE.at("127.0.0.1", f"no port can be opened: {failed}", remedy)]
    return []
