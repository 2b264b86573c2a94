"""Proof of a quantized folder: only planned layers are quantized, and log-probabilities equal those before writing.

1. Names of tensors, the ignore list and the settings agree with the plan and the source folder.
2. Stock transformers loads the folder, and every supervised token of the proving samples has the log-probability that
   it had before the folder was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidqa.core.files import read_object
from vidqa.engine.export.proof import token_losses
from vidqa.engine.export.weights import load_weights
from vidqa.engine.families import family_of
from vidqa.engine.loading.safetensors_reader import model_tensors
from vidqa.engine.problems import ENGINE_UNPROVEN
from vidqa.families import quantization_of
from vidqa.planning.quantization import WEIGHT, QuantizationPlan
from vidqa.planning.samples import Planner, Sample

TOLERANCE = 1e-4  # of a log-probability; equal products of equal values agree to the bit
PACKED = ("weight_packed", "weight_scale", "weight_shape")
FLOAT4 = ("weight_packed", "weight_scale", "weight_global_scale")
# The tensors of a quantized layer in a file.
PARTS = {
    **dict.fromkeys(("FP8_DYNAMIC", "W8A8"), ("weight", "weight_scale")),
    "FP8": ("weight", "weight_scale", "input_scale"),
    **dict.fromkeys(("W8A16", "W4A16"), PACKED),
    "NVFP4A16": FLOAT4,
    "NVFP4": (*FLOAT4, "input_global_scale"),
}
CACHE_SCALES = ("k_scale", "v_scale")
Decoded = Sequence[tuple[Sample, list[np.ndarray]]]


@dataclass(frozen=True)
class Measured:
    """Measurements of a model on the proving samples: losses, float32 [N], of the supervised tokens of each sample, and
    for the first sample the outputs [1, S, D] of the decoder's layers, in host memory."""

    losses: list[torch.Tensor]
    layers: list[torch.Tensor]

    @property
    def loss(self) -> float:
        return torch.cat(self.losses).mean().item()


def measure(model: Any, planner: Planner, proving: Decoded) -> Measured:
    """Measure losses and layer outputs of a stock model."""
    outputs: list[torch.Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        outputs.append((output[0] if isinstance(output, tuple) else output).cpu())

    losses: list[torch.Tensor] = []
    for number, (sample, frames) in enumerate(proving):
        with ExitStack() as hooks:
            for layer in family_of(model).decoder_units(model) if number == 0 else ():
                hooks.callback(layer.register_forward_hook(keep).remove)
            losses.append(token_losses(model, planner, sample, frames).cpu())
    return Measured(losses, outputs)


def prove(
    folder: Path,
    source: Path,
    plan: QuantizationPlan,
    quantize: Any,
    before: Measured,
    expected: Measured,
    planner: Planner,
    proving: Decoded,
    device: torch.device,
) -> dict[str, Any]:
    """Prove a folder that is not published yet: `before` was measured before the model was quantized, `expected` after.
    Raises ENGINE_UNPROVEN."""
    check_folder(folder, source, plan, quantize)
    model = load_weights(folder, torch.bfloat16).to(device).eval()
    model.hf_quantizer.compressor.decompress_model(model)  # the same as in its first forward pass
    reloaded = measure(model, planner, proving)
    apart = [(a - b).abs().max().item() for a, b in zip(reloaded.losses, expected.losses, strict=True)]
    if not max(apart) <= TOLERANCE:  # also for NaN
        worst = proving[int(np.argmax(apart))][0].record.id
        message = f"log-probabilities of sample {worst} are {max(apart):.3g} from those before it was written"
        raise ENGINE_UNPROVEN.error(folder, message)
    errors = [_relative(a, b) for a, b in zip(before.layers, expected.layers, strict=True)]
    worst_layer = int(np.argmax(errors))
    return {
        "samples": [sample.record.id for sample, _ in proving],
        "tokens": sum(map(len, expected.losses)),
        "loss": before.loss,
        "quantized_loss": expected.loss,
        "largest_difference": max(apart),
        "tolerance": TOLERANCE,
        "largest_layer_error": {"layer": worst_layer, "relative_error": errors[worst_layer]},
    }


def check_folder(folder: Path, source: Path, plan: QuantizationPlan, quantize: Any) -> None:
    """Check names of tensors, the ignore list and the settings of a folder. Raises ENGINE_UNPROVEN."""
    refuse = partial(ENGINE_UNPROVEN.error, folder)
    stored, base = set(model_tensors(folder)), set(model_tensors(source))
    quantized_modules = {name.removesuffix(".weight_scale") for name in stored if name.endswith(".weight_scale")}
    if wrong := sorted(quantized_modules ^ set(plan.modules)):
        raise refuse(f"{len(wrong)} modules are quantized but not planned, or planned but not quantized: {wrong[:3]}")
    expected = {name for name in base if name.removesuffix(WEIGHT) not in plan.modules}
    expected |= {f"{module}.{part}" for module in plan.modules for part in PARTS[quantize.quantization_scheme]}
    if quantize.kv_precision == "fp8":
        attentions = {name.rpartition(".")[0] for name in (*plan.modules, *plan.unquantized) if name.endswith("k_proj")}
        expected |= {f"{attention}.{scale}" for attention in attentions for scale in CACHE_SCALES}
    settings = read_object(source / "config.json")
    tied = {"lm_head.weight"} if settings.get("tie_word_embeddings") else set()  # in files once or twice
    if wrong := sorted((stored ^ expected) - tied):
        raise refuse(f"{len(wrong)} tensors are missing or surplus: {wrong[:3]}")
    ignored = set(quantization_of(folder).get("ignore", ()))
    if wrong := sorted(ignored & set(plan.modules) | set(plan.unquantized) - ignored):
        raise refuse(f"the ignore list names quantized modules, or lacks kept ones: {wrong[:3]}")
    config = read_object(folder / "config.json")
    del config["quantization_config"]
    if config != settings:
        raise refuse("config.json is not the source's")


def _relative(before: torch.Tensor, after: torch.Tensor) -> float:
    """The relative error |after - before| / |before|, in Frobenius norms."""
    return ((after.float() - before.float()).norm() / before.float().norm().clamp_min(1e-12)).item()
