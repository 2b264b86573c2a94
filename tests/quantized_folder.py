"""Folders of weights quantized by compressed-tensors alone: rounded to nearest, with a fixed range of activations.

folder = quantized(tmp / "fp8", model, "FP8_DYNAMIC")
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, apply_quantization_config
from compressed_tensors.quantization.quant_args import QuantizationStrategy
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from vidqa.engine.export.weights import load_weights

LARGEST_INPUT = 6.0  # of a calibrated activation
GROUP = 32  # elements of a group of int4 weights: a tiny model is 64 wide
VISION = "re:.*visual.*"
SETTINGS = ("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json")


def quantized(
    folder: Path, model: Path, scheme: str, *, keep: Sequence[str] = (VISION,), dtype: torch.dtype = torch.float32
) -> Path:
    """Write the model folder `model` with its linear layers quantized by a preset of compressed-tensors, except the
    head and layers that match `keep`."""
    plan = preset_name_to_scheme(scheme, ["Linear"])
    if plan.weights.strategy == QuantizationStrategy.GROUP:
        plan.weights.group_size = GROUP
    stock = load_weights(model, dtype)
    ignored = ["lm_head", *keep]
    apply_quantization_config(stock, QuantizationConfig(config_groups={"group_0": plan}, ignore=ignored))
    for module in stock.modules():
        if isinstance(getattr(module, "quantization_scheme", None), QuantizationScheme):
            _calibrate(module, plan)
    compressor = ModelCompressor.from_pretrained_model(stock)
    compressor.compress_model(stock)
    stock.save_pretrained(folder)
    compressor.update_config(folder)
    for path in model.iterdir():
        if path.is_file() and path.name not in SETTINGS and path.suffix != ".safetensors":
            shutil.copy(path, folder / path.name)
    return folder


@torch.no_grad()
def _calibrate(module: Any, plan: QuantizationScheme) -> None:
    """Set the scales of a layer: of its weight by its largest values, of its input by LARGEST_INPUT."""
    weight, args = module.weight, plan.weights
    if args.strategy == QuantizationStrategy.TENSOR:
        low, high = weight.amin().reshape(1), weight.amax().reshape(1)
    elif args.strategy == QuantizationStrategy.CHANNEL:
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        groups = weight.unflatten(1, (-1, args.group_size))
        low, high = groups.amin(-1), groups.amax(-1)
    whole = None
    if args.strategy == QuantizationStrategy.TENSOR_GROUP:
        whole = generate_gparam(weight.amin().reshape(1), weight.amax().reshape(1))
        module.weight_global_scale.data.copy_(whole)
    module.weight_scale.data.copy_(calculate_qparams(low, high, args, global_scale=whole)[0])
    if plan.input_activations is None or plan.input_activations.dynamic is True:
        return
    largest = torch.tensor([LARGEST_INPUT])
    if plan.input_activations.strategy == QuantizationStrategy.TENSOR_GROUP:
        module.input_global_scale.data.copy_(generate_gparam(-largest, largest))
    else:
        module.input_scale.data.copy_(calculate_qparams(-largest, largest, plan.input_activations)[0])
