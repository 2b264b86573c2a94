"""The model FLOPs utilisation (MFU) that a training will reach, by the measured training that is most like it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from vidqa.planning.budget.gpus import find_gpu, mfu_on
from vidqa.planning.budget.memory import ParamCounts, TrainingSetup

# From the start of torchrun to the end of the first step: imports, weights from a local disk, compiling. 33 to 91 s
# were measured (benchmarks/README.md, row 10), more where layers are compiled for the first time than later.
START_S = 60.0
NEAR = 2  # times as large or as small: alike, so that whether gathered weights stay counts before the size
FAR = 8  # times as large or as small: too different for an estimate


@dataclass(frozen=True)
class Efficiency:
    """An MFU, the run that reached it, and the GPU of that run."""

    mfu: float
    source: str
    gpu: str = ""

    def on(self, name: str) -> Efficiency:
        """The same on another GPU, where both are known."""
        here, there = find_gpu(self.gpu), find_gpu(name)
        if here is None or there is None or here == there:
            return self
        return replace(self, mfu=mfu_on(there, self.mfu, here))


ASSUMED = Efficiency(0.25, "assumed; nothing like it was measured")


class Measured(NamedTuple):
    """A training measured by benchmarks/policies.py or benchmarks/memory.py. `parameters` are the model's, `recomputed`
    the FLOPs that backward repeated as a share of the step's own."""

    run: str
    gpu: str
    lora: bool
    compiled: bool
    keeps_weights: bool
    parameters: float
    recomputed: float
    mfu: float


H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
MEASURED = (  # of equal rows the first counts
    Measured("lora chosen", H100, True, True, True, 8.81e9, 0.0, 0.4829),
    Measured("lora-40 chosen", H100, True, True, True, 8.81e9, 0.0896, 0.4338),
    Measured("lora-40 all 8192", H100, True, True, True, 8.81e9, 0.4528, 0.3355),
    Measured("long chosen", H100, True, True, True, 8.81e9, 0.168, 0.4482),
    Measured("long chosen", H200, True, True, True, 8.81e9, 0.0316, 0.484),
    Measured("longest-cp2 chosen", H200, True, True, True, 8.81e9, 0.105, 0.4552),
    Measured("2b none 8192", H100, False, True, True, 2.13e9, 0.0, 0.3959),
    Measured("2b chosen", H100, False, True, True, 2.13e9, 0.0146, 0.4433),
    Measured("2b all 16384", H100, False, True, True, 2.13e9, 0.3333, 0.339),
    Measured("full-2 chosen", H200, False, True, True, 8.77e9, 0.0043, 0.4787),
    Measured("8b-4gpu-lora-whole-kept-16k", H200, True, True, False, 8.81e9, 0.0, 0.431),
    Measured("8b-1gpu-lora-8k", H200, True, True, False, 8.81e9, 0.4521, 0.3101),
    Measured("8b-4gpu-full-vision-16k", H200, False, True, False, 8.77e9, 0.0556, 0.4405),
    Measured("8b-2gpu-full-8k", H200, False, True, False, 8.77e9, 0.3333, 0.3284),
    Measured("8b-4gpu-lora-kept-8k", H200, True, False, False, 8.81e9, 0.0, 0.3008),
    Measured("8b-1gpu-lora-8k", H200, True, False, False, 8.81e9, 0.4521, 0.242),
    Measured("8b-4gpu-full-kept-8k", H200, False, False, False, 8.77e9, 0.0, 0.3506),
    Measured("8b-2gpu-full-8k", H200, False, False, False, 8.77e9, 0.3333, 0.2793),
    Measured("2b-1gpu-full-kept-8k", H200, False, False, False, 2.13e9, 0.0, 0.2792),
    Measured("2b-1gpu-full-8k", H200, False, False, False, 2.13e9, 0.3333, 0.2261),
)


def efficiency(model: ParamCounts, setup: TrainingSetup, recomputed: float = 0.0) -> Efficiency:
    """By the measured training of the same kind (LoRA or full, compiled or not), then of a similar `recomputed` share
    of FLOPs, then of the nearest size; its MFU is corrected for the difference in recomputation."""

    def distance(row: Measured) -> tuple[bool, bool, float, bool, bool, float]:
        ratio = max(row.parameters / model.every.every, model.every.every / row.parameters)
        return (
            row.lora != setup.lora,
            row.compiled != setup.compiled,
            round(abs(row.recomputed - recomputed), 2),
            ratio > NEAR,
            row.keeps_weights != setup.keeps_weights,
            ratio,
        )

    nearest = min(MEASURED, key=distance)
    if distance(nearest)[-1] > FAR:
        return ASSUMED
    mfu = nearest.mfu * (1 + nearest.recomputed) / (1 + recomputed)
    return Efficiency(mfu, f"measured: {nearest.run} on {nearest.gpu}", nearest.gpu)
