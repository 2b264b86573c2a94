"""Speed of a training: the FLOPs of a step, the peaks of GPUs, and the share of a peak that a training reaches.

FLOPs are counted from shapes alone, by strict accounting: a multiply-add is two operations, backward costs twice
forward, recomputation is not counted, causal attention counts half of the square. Frozen parts save their weight
gradients.

The model FLOPs utilisation (MFU) is that of the most similar measured training, transferred from GPU to GPU. A step is
matrix products and attention, which scale with the peak, and element-wise work, which scales with memory bandwidth.
Their shares were measured (`BANDWIDTH_SHARE`); on another GPU each part takes longer by the ratio of the two GPUs'
rates. The effect of a GPU's power limit or cooling is in no data sheet, and not in the estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from vidqa.families import Sizes
from vidqa.planning.budget.activation_checkpointing import Recompute
from vidqa.planning.budget.memory import MicroStep, TrainingSetup
from vidqa.planning.budget.params import ParamCounts
from vidqa.planning.prefix_sharing import Workload
from vidqa.spec.models import TrainSpec

# From the start of torchrun to the end of the first step: imports, weights from a local disk, compiling. 33 to 91 s
# were measured (benchmarks/README.md, row 10); the first compilation of layers takes longer than later ones.
START_S = 60.0
NEAR = 2  # largest ratio of similar sizes; among these, whether gathered weights stay counts before the ratio
FAR = 8  # larger ratios of sizes are too different for an estimate


@dataclass(frozen=True)
class FlopsModel:
    """Operations per token, token pair, patch and patch pair of one model. `per_window_pair` is for vision blocks that
    attend within windows of `window` patches a side."""

    per_token: float
    per_pair: float
    per_supervised: float
    per_patch: float
    per_patch_pair: float
    per_window_pair: float = 0.0
    window: int = 0

    def training_flops(self, works: Iterable[Workload], *, halved: bool = True) -> float:
        """Operations of forward and backward. `halved` counts the half of a square that causal attention needs; other
        programs often report the whole square."""
        return sum(
            self.per_token * work.tokens
            + self.per_pair * work.pairs * (1 if halved else 2)
            + self.per_supervised * work.supervised
            + self.per_patch * work.patches
            + self.per_patch_pair * work.patch_pairs
            + (self.per_window_pair * _window_pairs(work.grids, self.window) if self.window else 0.0)
            for work in works
        )


def _window_pairs(grids: Iterable[tuple[int, int, int]], window: int) -> int:
    """Pairs of patches inside the windows of every frame; the last window of a side may be smaller."""

    def squares(side: int) -> int:
        whole, rest = divmod(side, window)
        return whole * window**2 + rest**2

    return sum(t * squares(h) * squares(w) for t, h, w in grids)


def flops_model(sizes: Sizes, *, vision_trains: bool, decoder_trains: bool) -> FlopsModel:
    """The FlopsModel of a model. `decoder_trains` is False for LoRA: the base has no weight gradients. The same holds
    for a vision tower with adapters."""
    text, vision = sizes.text, sizes.vision
    layer = text.hidden * (2 * text.queries + 2 * text.keys + 3 * text.intermediate)
    block = vision.hidden * (4 * vision.hidden + (3 if vision.gated else 2) * vision.intermediate)
    mergers = (1 + vision.taps) * vision.merged * (vision.merged + vision.out)
    embed = vision.patch_values * vision.hidden
    whole = vision.whole if vision.window else vision.blocks
    decoder_passes = 3 if decoder_trains else 2
    vision_passes = decoder_passes if vision_trains else 1
    attention_passes = 3 if vision_trains else 1  # attention has no weights
    return FlopsModel(
        per_token=2 * decoder_passes * text.layers * layer,
        per_pair=3 * 2 * text.layers * text.queries,
        per_supervised=2 * decoder_passes * text.hidden * text.vocabulary,
        per_patch=2 * vision_passes * (vision.blocks * block + embed + mergers / vision.merge**2),
        per_patch_pair=4 * attention_passes * whole * vision.hidden,
        per_window_pair=4 * attention_passes * (vision.blocks - whole) * vision.hidden,
        window=vision.window,
    )


def flops_of(spec: TrainSpec, model: ParamCounts) -> FlopsModel:
    """The `flops_model` of a TrainSpec."""
    return flops_model(model.sizes, vision_trains=model.vision.trained > 0, decoder_trains=spec.policy.lora is None)


def recomputed_flops_share(spec: TrainSpec, model: ParamCounts, recompute: Recompute, pack: MicroStep) -> float:
    """FLOPs that backward repeats in a pack, as a share of the pack's own. Attention over tokens is counted for samples
    half as long as the pack; attention over patches, which is little, and the head are left out."""
    text, vision = model.sizes.text, model.sizes.vision
    vision_trains, decoder_trains = model.vision.trained > 0, spec.policy.lora is None
    ranks = spec.policy.parallelism.cp_size  # each has a part of the pack
    tokens, patches = pack.tokens * ranks, pack.patches * ranks
    layer = {
        "projections": text.hidden * (text.queries + 2 * text.keys),
        "linear": text.hidden * (text.queries + 2 * text.intermediate),
        "layer": text.hidden * text.intermediate + text.queries * tokens / 2,
    }
    block = {
        "projections": 3 * vision.hidden**2,
        "linear": vision.hidden * (vision.hidden + (2 if vision.gated else 1) * vision.intermediate),
        "layer": vision.hidden * vision.intermediate,
    }
    own = tokens * (3 if decoder_trains else 2) * text.layers * sum(layer.values())
    own += patches * (3 if vision_trains else 1) * vision.blocks * sum(block.values())
    repeated = tokens * sum(layer[part] * count for part, count in vars(recompute.decoder).items())
    repeated += patches * sum(block[part] * count for part, count in vars(recompute.vision).items()) * vision_trains
    return repeated / own


@dataclass(frozen=True)
class Gpu:
    """Dense bf16 FLOP/s with float32 accumulation, memory bandwidth in bytes/s, GiB visible to a process, and the
    source. `devices` are the driver's names of the GPU."""

    name: str
    peak: float
    bandwidth: float
    memory_gib: float
    source: str
    devices: tuple[str, ...]


# Keys are our tables' names. A device is matched by its whole name: "H100" also occurs in names of GPUs that are a
# quarter slower, "H200" in GH200, and the name of a slice of a GPU contains the GPU's.
GPUS = {
    "H200": Gpu("H200 141 GB", 989e12, 4.8e12, 139.8, "NVIDIA H200 data sheet", ("H200",)),
    "H100": Gpu("H100 80 GB (SXM)", 989e12, 3.35e12, 79.6, "NVIDIA H100 data sheet", ("H100 80GB HBM3",)),
    "H100 PCIe": Gpu("H100 80 GB (PCIe)", 756e12, 2.0e12, 79.6, "NVIDIA H100 data sheet", ("H100 PCIe",)),
    "H100 NVL": Gpu("H100 94 GB (NVL)", 835e12, 3.9e12, 93.1, "NVIDIA H100 NVL data sheet", ("H100 NVL",)),
    "H20": Gpu("H20 96 GB", 148e12, 4.0e12, 95.0, "NVIDIA H20 data sheet", ("H20",)),
    "B200": Gpu(
        "B200 180 GB", 2250e12, 7.67e12, 178.0, "NVIDIA HGX B200 data sheet, bandwidth by its driver", ("B200",)
    ),
    "A100": Gpu("A100 80 GB (SXM)", 312e12, 2.039e12, 79.2, "NVIDIA A100 data sheet", ("A100-SXM4-80GB",)),
    "A100 PCIe": Gpu("A100 80 GB (PCIe)", 312e12, 1.935e12, 79.2, "NVIDIA A100 data sheet", ("A100 80GB PCIe",)),
    "A100 40 GB": Gpu(
        "A100 40 GB", 312e12, 1.555e12, 39.4, "NVIDIA A100 data sheet", ("A100-SXM4-40GB", "A100-PCIE-40GB")
    ),
    "L40S": Gpu("L40S 48 GB", 362e12, 0.864e12, 44.4, "NVIDIA L40S data sheet", ("L40S",)),
    "RTX 4090": Gpu(
        "RTX 4090 24 GB", 165.2e12, 1.008e12, 23.5, "NVIDIA Ada GPU architecture paper", ("GeForce RTX 4090",)
    ),
    "RTX PRO 6000": Gpu(
        "RTX PRO 6000 96 GB",
        503.8e12,
        1.792e12,
        95.0,
        "NVIDIA RTX Blackwell PRO architecture paper",
        ("RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Server Edition"),
    ),
}
# Share of a step's time that is element-wise work, norms and copies on an H200 (benchmarks/README.md, "Where a step
# goes").
BANDWIDTH_SHARE, MEASURED_ON = 0.118, "H200"


def find_gpu(name: str) -> Gpu | None:
    """The GPU with a device name or a key of GPUS; None if it is not known."""
    device = name.removeprefix("NVIDIA ")
    return GPUS.get(name) or next((card for card in GPUS.values() if device in card.devices), None)


def gpu_peak_flops(name: str) -> float | None:
    """The bf16 peak of a GPU by its name, FLOP/s; None if it is not known."""
    return card.peak if (card := find_gpu(name)) else None


def mfu_on(card: Gpu, mfu: float, measured_on: Gpu) -> float:
    """The expected MFU on `card` of a training that reached `mfu` on the GPU `measured_on`."""
    return mfu * _relative_step_time(measured_on) / _relative_step_time(card)


def _relative_step_time(card: Gpu) -> float:
    """Time of a step relative to that on MEASURED_ON, both scaled to the same bf16 peak."""
    base = GPUS[MEASURED_ON]
    return 1 - BANDWIDTH_SHARE + BANDWIDTH_SHARE * (card.peak / base.peak) * (base.bandwidth / card.bandwidth)


@dataclass(frozen=True)
class Efficiency:
    """An MFU, the run that reached it, and the GPU of that run."""

    mfu: float
    source: str
    gpu: str = ""

    def on(self, name: str) -> Efficiency:
        """The same transferred to another GPU, if both are known."""
        here, there = find_gpu(self.gpu), find_gpu(name)
        if here is None or there is None or here == there:
            return self
        return replace(self, mfu=mfu_on(there, self.mfu, here))


ASSUMED = Efficiency(0.25, "assumed; nothing like it was measured")


class Measured(NamedTuple):
    """A training measured by benchmarks/policies.py or benchmarks/memory.py. `parameters` is the model's number of
    them, `recomputed` the FLOPs that backward repeated as a share of the step's own."""

    run: str
    gpu: str
    lora: bool
    compiled: bool
    keeps_weights: bool
    parameters: float
    recomputed: float
    mfu: float


H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
MEASURED = (  # the first of equally near rows counts
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
    """The MFU of the nearest measured training: of the same kind (LoRA or full, compiled or not), then of a similar
    share of FLOPs `recomputed`, then of the nearest size. It is corrected for the difference in recomputation."""

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
