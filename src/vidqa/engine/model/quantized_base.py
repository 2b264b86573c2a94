"""Frozen linear layers of the decoder in 4 or 8 bits, under adapters that train. Every product dequantizes its weight
again: backward saves only the quantized weight, which the layer holds anyway.

nf4   bitsandbytes' NormalFloat4 with double quantization: codes uint8 [O, D/2], two to a byte; a scale per 64 values
      in 8 bits, uint8 [O D / 64]; a scale per 256 scales, float32 [S]; and the mean added to scales, float32 [1]
fp8   E4M3 with a scale for each row, as the quantize action writes it: codes [O, D], scales bfloat16 [O, 1]

Shape letters: O outputs, D width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vidqa.core._optional import require
from vidqa.engine.model.float8 import LEAST, NARROW

EXTRA = "bitsandbytes"  # the extra of this project that installs bitsandbytes
BLOCK, OUTER_BLOCK = 64, 256  # values per scale; scales per outer scale
Parts = tuple[torch.Tensor, ...]


class QuantizedLinear(nn.Module):
    """A frozen quantized linear layer. Its parts are buffers, which are not optimized, saved or sharded: every rank
    holds all of them. `weight` is the input of `dense`."""

    def __init__(self, linear: nn.Linear, precision: str) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.out_features, linear.in_features
        self.bias, self.precision = linear.bias, precision
        for number, part in enumerate(_empty_parts(self.out_features, self.in_features, precision)):
            self.register_buffer(f"part_{number}", part, persistent=False)

    @property
    def weight(self) -> Parts:
        return tuple(self._buffers.values())  # type: ignore[arg-type]

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features

    @torch.no_grad()
    def fill(self, weight: torch.Tensor) -> None:
        """Quantize a weight [O, D] on its device into the layer's memory, also between a forward and its backward: the
        warm-up runs both while weights are read."""
        for part, values in zip(self.weight, quantized(weight, self.precision), strict=True):
            part.data.copy_(values)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, dense(self.weight, hidden.detach()), self.bias)


def quantize_layers(units: Iterable[nn.Module], precision: str) -> None:
    """Replace the base model's linear layers in `units`, adapted or not, by quantized layers, still empty."""
    for unit in units:
        for name, module in _base_layers(unit):
            parent, _, leaf = name.rpartition(".")
            setattr(unit.get_submodule(parent), leaf, QuantizedLinear(module, precision))


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, QuantizedLinear]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, QuantizedLinear))


@torch.no_grad()
def round_layers(units: Iterable[nn.Module], precision: str) -> None:
    """Round the linear layers of a stock model, with or without stock adapters, to the values of quantized layers."""
    for unit in units:
        for _, module in _base_layers(unit):
            weight = module.weight.data
            weight.copy_(dense(quantized(weight, precision), weight))


def _base_layers(unit: nn.Module) -> list[tuple[str, nn.Linear]]:
    """The linear layers of the base model in a unit: no adapters, and no modules of modules_to_save."""
    added = (".lora_", "modules_to_save", "original_module")
    return [
        (name, module)
        for name, module in unit.named_modules()
        if isinstance(module, nn.Linear) and not any(part in name for part in added)
    ]


def dense(weight: torch.Tensor | Parts, after: torch.Tensor) -> torch.Tensor:
    """The weight [O, D] in the precision of `after`, without gradient; an ordinary weight is returned unchanged."""
    return dequantized(list(weight), after) if isinstance(weight, tuple) else weight


@torch.library.custom_op("vidqa::dequantized", mutates_args=())
def dequantized(parts: list[torch.Tensor], after: torch.Tensor) -> torch.Tensor:
    """Dequantize the weight [O, D]. Only the precision of `after` is read: in backward it is a gradient, and this
    dependency keeps the compiler from computing the weight in forward and saving it."""
    codes, *scales = parts
    if codes.dtype == NARROW:
        # Codes have 4 digits, scales 8: the product is rounded once.
        return codes.to(after.dtype) * scales[0].to(after.dtype)
    functional, shape = require("bitsandbytes.functional", EXTRA), (codes.shape[0], 2 * codes.shape[1])
    return functional.dequantize_4bit(codes.view(-1, 1), _nf4_state(functional, shape, scales, after.dtype))


@dequantized.register_fake
def _(parts: list[torch.Tensor], after: torch.Tensor) -> Any:
    rows, columns = parts[0].shape
    return after.new_empty(rows, columns if parts[0].dtype == NARROW else 2 * columns)


def quantized(weight: torch.Tensor, precision: str) -> Parts:
    """Quantize a weight [O, D] to its parts."""
    if precision == "fp8":
        largest = weight.abs().amax(1, keepdim=True).float().clamp(min=LEAST)
        scale = (largest / torch.finfo(NARROW).max).to(torch.bfloat16)
        most = torch.finfo(NARROW).max  # the scale may have been rounded down
        return (weight.float() / scale.float()).clamp(-most, most).to(NARROW), scale
    functional = require("bitsandbytes.functional", EXTRA)
    codes, state = functional.quantize_4bit(weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
    outer = state.state2.absmax
    return codes.view(len(weight), -1), state.absmax, outer, state.offset.reshape(1)


def _empty_parts(outputs: int, width: int, precision: str) -> Parts:
    meta = torch.device("meta")
    if precision == "fp8":
        return (
            torch.empty((outputs, width), dtype=NARROW, device=meta),
            torch.empty((outputs, 1), dtype=torch.bfloat16, device=meta),
        )
    blocks = math.ceil(outputs * width / BLOCK)
    return (
        torch.empty((outputs, width // 2), dtype=torch.uint8, device=meta),
        torch.empty(blocks, dtype=torch.uint8, device=meta),
        torch.empty(math.ceil(blocks / OUTER_BLOCK), device=meta),
        torch.empty(1, device=meta),
    )


def _nf4_state(functional: Any, shape: tuple[int, int], scales: list[torch.Tensor], dtype: torch.dtype) -> Any:
    """The QuantState of bitsandbytes for the scales."""
    inner, outer, mean = scales
    code, outer_code = _tables(inner.device)
    nested = functional.QuantState(absmax=outer, code=outer_code, blocksize=OUTER_BLOCK, dtype=torch.float32)
    return functional.QuantState(
        absmax=inner,
        shape=torch.Size(shape),
        code=code,
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=dtype,
        offset=mean,
        state2=nested,
    )


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    functional = require("bitsandbytes.functional", EXTRA)
    return functional.get_4bit_type("nf4", device=device), functional.create_dynamic_map().to(device)
