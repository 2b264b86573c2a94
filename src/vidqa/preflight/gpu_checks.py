"""GPUs: their driver and architecture, whether the engine was compiled for them, and whether a peak of memory fits."""

from __future__ import annotations

from collections.abc import Callable

from vidqa.core._optional import GPU_ARCH
from vidqa.core.problem import Problem
from vidqa.planning.budget.memory import fits
from vidqa.planning.budget.memory_constants import CONSTANTS
from vidqa.planning.budget.methods import FIRST_OF_BITSANDBYTES
from vidqa.preflight.gpus import (
    COSMOS_RL_GPUS,
    Build,
    driver_cuda,
    engine_build,
    least_memory,
    runs_on,
    version_of,
)
from vidqa.preflight.inputs import RunInputs, Skip
from vidqa.preflight.problems import MEMORY
from vidqa.spec.rules import bitsandbytes_key

FIRST_WITH_FP8 = (8, 9)
NONE_HERE = "no GPU is visible here; declare the job's with --gpu-count, --gpu-memory-gb and --gpu-arch"


def gpus(inputs: RunInputs) -> list[Problem]:
    """Driver, CUDA, and the architecture of every GPU against what the engine's image was compiled for."""
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


def eight_bits(inputs: RunInputs) -> list[Problem]:
    """Whether every GPU has the kernels for few bits that the spec asks for."""
    if inputs.training is None:
        return []
    if (key := bitsandbytes_key(inputs.training)) is not None:
        remedy = f"leave {key} at its default, or use a GPU from sm_75 on"
        message = f"bitsandbytes has no kernels for it, {key} asks for them"
        return _unfit(inputs, lambda arch: version_of(arch) >= FIRST_OF_BITSANDBYTES, message, remedy)
    if not inputs.training.train.fp8.enable_fp8:
        return []
    remedy = "set train.fp8.enable_fp8 = false, or use a GPU from sm_89 on"
    message = "it multiplies no 8-bit floats, train.fp8 asks for it"
    return _unfit(inputs, lambda arch: version_of(arch) >= FIRST_WITH_FP8, message, remedy)


def _unfit(inputs: RunInputs, is_fit: Callable[[str], bool], message: str, remedy: str | None = None) -> list[Problem]:
    """ENV_GPU_ARCH for every architecture of the job's GPUs that is not fit."""
    arches = sorted({gpu.arch for gpu in inputs.gpus if gpu.arch})
    return [GPU_ARCH.at(f"GPU {arch}", message, remedy) for arch in arches if not is_fit(arch)]


def _driver(inputs: RunInputs, build: Build | None) -> list[Problem]:
    """A driver runs every CUDA of its own major version and of the older ones."""
    newest = inputs.facts.get("driver_cuda")
    if build is None or not build.cuda or newest is None:
        return []
    inputs.facts["engine_cuda"] = build.cuda
    if int(build.cuda.split(".")[0]) <= int(newest.split(".")[0]):
        return []
    driver = inputs.facts["driver"]
    message = f"torch is built for CUDA {build.cuda}; driver {driver} runs CUDA up to {newest}"
    return [GPU_ARCH.at("nvidia-smi", message)]


def _architectures(inputs: RunInputs, build: Build | None) -> list[Problem]:
    if inputs.engine == "cosmos-rl":
        inputs.facts["engine_architectures"] = list(COSMOS_RL_GPUS)
        released = [version_of(arch) for arch in COSMOS_RL_GPUS]
        message = f"NVIDIA's cosmos-rl image is released for {', '.join(COSMOS_RL_GPUS)}"
        remedy = "use one of these GPUs, an image that is released for yours, or our own engine"
        return _unfit(inputs, lambda arch: version_of(arch) in released, message, remedy)
    built = build.architectures if build else ()
    inputs.facts["engine_architectures"] = list(built) or "asked of torch where the GPU is"
    if not built:
        return []
    message = f"the {inputs.engine} engine is compiled for {', '.join(built)}"
    return _unfit(inputs, lambda arch: runs_on(arch, built), message)


NOTHING_HELPS = (
    "no change of the spec makes it fit: use GPUs with more memory, a smaller model, or fewer and smaller frames"
)
RAISE = "raise engine.gpu_memory_gib, which leaves the rest of the GPU to others"


def usable_memory(inputs: RunInputs) -> float | None:
    """GiB that the job may take of the smallest GPU; None where that is not known."""
    engine = getattr(inputs.spec, "engine", None)  # an action of somebody else may have none
    has_gib, limit_gib = least_memory(inputs.gpus), getattr(engine, "gpu_memory_gib", None)
    return has_gib if has_gib is None or limit_gib is None else min(has_gib, limit_gib)


def too_much(inputs: RunInputs, peak_gib: float, details: str, remedy: Callable[[float], str]) -> list[Problem]:
    """MEMORY if the peak does not fit: an error, or a warning if it may fit within the error of the prediction.
    `remedy` finds a change that fits a GPU of that many GiB; it is called only when needed."""
    has_gib, whole_gib = usable_memory(inputs), least_memory(inputs.gpus)
    if has_gib is None or whole_gib is None or fits(peak_gib, has_gib):
        return []
    advice = remedy(has_gib)
    if has_gib < whole_gib and fits(peak_gib, whole_gib):
        advice = RAISE if advice == NOTHING_HELPS else f"{RAISE}, or {advice}"
    message = (
        f"about {peak_gib:.1f} GiB, and {CONSTANTS.outside_gib:.0f} for CUDA, of {has_gib:.1f} GiB a GPU; {details}"
    )
    sure = peak_gib + CONSTANTS.outside_gib > has_gib
    return [MEMORY.at("GPU memory", message, advice, severity="error" if sure else "warning")]
