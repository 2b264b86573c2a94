"""GPUs: what they are, whether the driver is new enough, and whether the engine was compiled for them."""

from __future__ import annotations

from vidqa.contract.problem import Problem
from vidqa.preflight._base import Context, Skip
from vidqa.preflight.gpus import (
    COSMOS_RL_GPUS,
    Build,
    driver_cuda,
    engine_build,
    least_memory,
    runs_on,
    version_of,
)
from vidqa.preflight.problems import DRIVER_OLD, GPU_ARCH

FIRST_WITH_FP8 = (8, 9)
NONE_HERE = "no GPU is visible here; declare the job's with --gpu-count, --gpu-memory-gb and --gpu-arch"


def gpus(context: Context) -> list[Problem]:
    """Driver, CUDA, and the architecture of every GPU against what the engine's image was compiled for."""
    found = context.gpus
    if not found:
        raise Skip(NONE_HERE)
    first = found[0]
    context.facts |= {"gpu_names": sorted({gpu.name for gpu in found}), "gpu_memory_gb": least_memory(found)}
    context.facts["gpu_arch"] = sorted({gpu.arch for gpu in found if gpu.arch})
    build = None
    if not context.declared.anything and context.engine == "vidqa":
        context.facts |= {"driver": first.driver, "driver_cuda": driver_cuda()}
        build = engine_build()
    return [*_driver(context, build), *_architectures(context, build)]


def eight_bits(context: Context) -> list[Problem]:
    """Whether every GPU multiplies 8-bit floats, where the spec asks for it."""
    if context.training is None or not context.training.train.fp8.enable_fp8:
        return []
    unfit = sorted({gpu.arch for gpu in context.gpus if gpu.arch and version_of(gpu.arch) < FIRST_WITH_FP8})
    remedy = "set train.fp8.enable_fp8 = false, or use a GPU from sm_89 on"
    return [
        GPU_ARCH.at(f"GPU {arch}", "it multiplies no 8-bit floats, train.fp8 asks for it", remedy) for arch in unfit
    ]


def _driver(context: Context, build: Build | None) -> list[Problem]:
    """A driver runs every CUDA of its own major version and of the older ones."""
    newest = context.facts.get("driver_cuda")
    if build is None or not build.cuda or newest is None:
        return []
    context.facts["engine_cuda"] = build.cuda
    if int(build.cuda.split(".")[0]) <= int(newest.split(".")[0]):
        return []
    driver = context.facts["driver"]
    message = f"torch is built for CUDA {build.cuda}; driver {driver} runs CUDA up to {newest}"
    return [DRIVER_OLD.at("nvidia-smi", message)]


def _architectures(context: Context, build: Build | None) -> list[Problem]:
    arches = {gpu.arch for gpu in context.gpus if gpu.arch}
    if context.engine == "cosmos-rl":
        context.facts["engine_architectures"] = list(COSMOS_RL_GPUS)
        released = [version_of(arch) for arch in COSMOS_RL_GPUS]
        message = f"NVIDIA's cosmos-rl image is released for {', '.join(COSMOS_RL_GPUS)}"
        unfit = sorted(arch for arch in arches if version_of(arch) not in released)
        remedy = "use one of these GPUs, an image that is released for yours, or our own engine"
        return [GPU_ARCH.at(f"GPU {arch}", message, remedy) for arch in unfit]
    built = build.architectures if build else ()
    context.facts["engine_architectures"] = list(built) or "asked of torch where the GPU is"
    if not built:
        return []
    unfit = sorted(arch for arch in arches if not runs_on(arch, built))
    compiled = ", ".join(built)
    return [GPU_ARCH.at(f"GPU {arch}", f"the {context.engine} engine is compiled for {compiled}") for arch in unfit]
