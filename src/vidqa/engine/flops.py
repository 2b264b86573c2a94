"""Floating-point work of the model in memory, and the peak of the device that it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vidqa.families.qwen3_vl_sizes import sizes
from vidqa.planning.budget import work


def flops_model(config: Any, *, vision_trains: bool, decoder_trains: bool) -> work.FlopsModel:
    """From a Qwen3-VL config. `decoder_trains` is False for LoRA, where the base has no weight gradients."""
    shapes = sizes(config.to_dict(), Path("config.json"))
    return work.flops_model(shapes, vision_trains=vision_trains, decoder_trains=decoder_trains)


def peak_flops(device: torch.device) -> float | None:
    """The device's peak in bf16, or None when it is not known (a CPU, an unlisted GPU)."""
    return work.peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
