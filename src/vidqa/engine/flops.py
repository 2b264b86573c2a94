"""Floating-point work of a training step from shapes alone, and what share of the device's peak it reached (MFU).

Strict accounting: a multiply-add is two operations, backward costs twice forward, recomputation is not counted,
causal attention counts half of the square. Frozen parts save their weight gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from vidqa.samples import Sample

# Dense bf16 peaks of the data sheets, FLOP/s, by a word in the device's name.
PEAKS = {"H200": 989e12, "H100": 989e12, "H20": 148e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}


@dataclass(frozen=True)
class FlopsModel:
    """Operations per token, token pair, patch and patch pair of one model."""

    per_token: float
    per_pair: float
    per_supervised: float
    per_patch: float
    per_patch_pair: float

    def of(self, samples: Iterable[Sample]) -> float:
        """Operations of forward and backward over the samples."""
        total = 0.0
        for sample in samples:
            total += self.per_token * sample.length + self.per_pair * sample.length**2
            total += self.per_supervised * sample.supervised
            for plan in sample.plans:
                frame = plan.grid[1] * plan.grid[2]
                total += self.per_patch * plan.patches + self.per_patch_pair * plan.grid[0] * frame**2
        return total


def flops_model(config: Any, *, vision_trains: bool, decoder_trains: bool) -> FlopsModel:
    """From a Qwen3-VL config. `decoder_trains` is False for LoRA, where the base has no weight gradients."""
    text, vision = config.text_config, config.vision_config
    heads = text.num_attention_heads * text.head_dim
    kv_heads = text.num_key_value_heads * text.head_dim
    layer = text.hidden_size * (2 * heads + 2 * kv_heads + 3 * text.intermediate_size)
    block = vision.hidden_size * (4 * vision.hidden_size + 2 * vision.intermediate_size)
    merged = vision.hidden_size * vision.spatial_merge_size**2
    mergers = (1 + len(vision.deepstack_visual_indexes)) * merged * (merged + vision.out_hidden_size)
    embed = 3 * vision.temporal_patch_size * vision.patch_size**2 * vision.hidden_size
    vision_passes = 3 if vision_trains else 1
    decoder_passes = 3 if decoder_trains else 2
    return FlopsModel(
        per_token=2 * decoder_passes * text.num_hidden_layers * layer,
        per_pair=3 * 2 * text.num_hidden_layers * heads,
        per_supervised=2 * decoder_passes * text.hidden_size * text.vocab_size,
        per_patch=2 * vision_passes * (vision.depth * block + embed + mergers / vision.spatial_merge_size**2),
        per_patch_pair=4 * vision_passes * vision.depth * vision.hidden_size,
    )


def peak_flops(device: torch.device) -> float | None:
    """The device's peak in bf16, or None when it is not known (a CPU, an unlisted GPU)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for word, peak in PEAKS.items() if word in name), None)
