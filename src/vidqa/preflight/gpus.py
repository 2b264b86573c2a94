"""The GPUs of this machine by nvidia-smi, or as declared, and the architectures that they can run, without torch."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from vidqa.core import environment, files
from vidqa.core.files import size_and_mtime
from vidqa.core.versions import output_of
from vidqa.jobs.platforms import local
from vidqa.planning.budget import speed

QUERY = "index,name,memory.total,compute_cap,driver_version"
TORCH_LIMIT_S = 120.0  # importing torch from a cold disk
ASK_TORCH = "import json, torch; print(json.dumps([torch.version.cuda, torch.cuda.get_arch_list()]))"

# GPUs that NVIDIA releases its cosmos-rl image for. Not all of its libraries run on a newer minor version: sm_121 is
# not among them.
COSMOS_RL_GPUS = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")

NONE_HERE = "no GPU is visible here; declare the job's with --gpu-count, --gpu-memory-gb and --gpu-arch"
# The usual GPU of an architecture, for declared GPUs, which have no name; a smaller one if their memory is small.
USUAL = {"sm_80": "A100", "sm_89": "L40S", "sm_90": "H100", "sm_100": "B200", "sm_120": "RTX PRO 6000"}
SMALL, SMALL_GB = {"sm_80": "A100 40 GB", "sm_89": "RTX 4090"}, 40


@dataclass(frozen=True)
class Declared:
    """Hardware of the job that this machine does not see; None if not declared."""

    gpu_count: int | None = None
    gpu_memory_gb: float | None = None
    gpu_arch: str | None = None  # such as "sm_90"

    @property
    def anything(self) -> bool:
        return (self.gpu_count, self.gpu_memory_gb, self.gpu_arch) != (None, None, None)


@dataclass(frozen=True)
class Gpu:
    """One GPU; unknown fields are None. `memory_gb` counts 2**30 bytes."""

    name: str
    memory_gb: float | None = None
    arch: str | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Build:
    """The CUDA version and architectures of the installed torch; both empty for a torch without CUDA."""

    cuda: str
    architectures: tuple[str, ...]


def declared_or_visible(declared: Declared, processes: int) -> list[Gpu]:
    """The declared GPUs, else the visible ones. If only their type is declared and none is visible, one per process of
    the job."""
    visible = visible_gpus()
    if not declared.anything:
        return visible
    count = declared.gpu_count if declared.gpu_count is not None else len(visible) or processes
    like = visible[0] if visible else Gpu("declared")
    return [Gpu(like.name, declared.gpu_memory_gb or like.memory_gb, declared.gpu_arch or like.arch)] * count


def visible_gpus() -> list[Gpu]:
    """The GPUs in CUDA_VISIBLE_DEVICES. Without a working nvidia-smi they are only counted."""
    listed = output_of("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    if listed is None:
        return [Gpu("unknown")] * local.gpu_count()
    rows = [[cell.strip() for cell in row] for row in csv.reader(listed.splitlines()) if len(row) == 5]
    names = environment.visible_gpus()
    if profile := local.mig_profile(names, output_of("nvidia-smi", "-L")):
        gpu, gibibytes = _gpu(rows[0]), re.search(r"(\d+)gb", profile)
        return [replace(gpu, name=f"{gpu.name} MIG {profile}", memory_gb=float(gibibytes[1]) if gibibytes else None)]
    allowed = names and local.gpu_indices(names)
    return [_gpu(row) for row in rows if allowed is None or row[0] in allowed]


def _gpu(row: Sequence[str]) -> Gpu:
    _, name, mebibytes, capability, driver = row
    memory_gb = round(float(mebibytes) / 1024, 1) if re.fullmatch(r"[\d.]+", mebibytes) else None
    arch = "sm_" + capability.replace(".", "") if re.fullmatch(r"\d+\.\d", capability) else None
    return Gpu(name, memory_gb, arch, driver)


def least_memory(gpus: Sequence[Gpu]) -> float | None:
    """GiB of the smallest GPU; None if no GPU's memory is known."""
    return min((gpu.memory_gb for gpu in gpus if gpu.memory_gb is not None), default=None)


def driver_cuda() -> str | None:
    """The newest CUDA that the installed driver supports, such as "13.0"."""
    match = re.search(r"CUDA[\w ]*Version\s*:\s*(\d+\.\d+)", output_of("nvidia-smi") or "")
    return match[1] if match else None


@cache
def engine_build() -> Build | None:
    """The CUDA version and architectures of the installed torch, from a subprocess. Importing torch takes seconds, so
    the result is cached as long as the same torch is installed."""
    cache_file, installed = environment.cache_folder() / "torch_build.json", _installed_torch()
    build = files.read_object(cache_file)
    is_whole = isinstance(build.get("cuda"), str) and isinstance(build.get("architectures"), list)
    if installed is None or build.get("torch") != installed or not is_whole:
        output = output_of(sys.executable, "-P", "-c", ASK_TORCH, limit_s=TORCH_LIMIT_S)
        if output is None:
            return None
        cuda, architectures = json.loads(output)
        build = {"torch": installed, "cuda": cuda or "", "architectures": architectures}
        with suppress(OSError):  # an unwritable folder only costs the seconds again
            cache_file.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(cache_file, build)
    return Build(build["cuda"], tuple(build["architectures"]))


def _installed_torch() -> list[str | int] | None:
    """The identity of the installed torch: path, size and time of its version file; None without torch."""
    module = find_spec("torch")
    if module is None or module.origin is None:
        return None
    version_file = Path(module.origin).with_name("version.py")
    stamp = size_and_mtime(version_file)
    return [str(version_file), *stamp] if stamp else None


def runs_on(arch: str, built: Sequence[str]) -> bool:
    """Whether a GPU of `arch` runs code compiled for `built`: the same major version with the same or an older minor
    one (sm_90 on sm_90, sm_80 on sm_86), or intermediate code (compute_90) no newer than the GPU. Code with the suffix
    a (sm_100a) runs on that version alone."""
    version = version_of(arch)

    def is_run(code: str) -> bool:
        compiled = version_of(code)
        if code.endswith("a"):
            return compiled == version
        same_major = compiled[0] == version[0] or code.startswith("compute_")
        return same_major and compiled <= version

    return version != (0, 0) and any(map(is_run, built))


def version_of(arch: str) -> tuple[int, int]:
    """The version (9, 0) of "sm_90"; (0, 0) for other text."""
    match = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[af]?", arch)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def card_of(gpus: Sequence[Gpu]) -> tuple[str, speed.Gpu | None]:
    """Name and data sheet of a job's GPU; for a declared one, the usual GPU of its architecture and memory."""
    if not gpus:
        return "", None
    first = gpus[0]
    name = first.name
    if name in ("declared", "unknown"):  # only the architecture may be known
        is_small = first.memory_gb is not None and first.memory_gb <= SMALL_GB
        name = SMALL[first.arch] if is_small and first.arch in SMALL else USUAL.get(first.arch or "", "")
    return name, speed.find_gpu(name)
