"""Matrix products of the decoder in 8-bit floats, by torchao: a tenth more tokens a second, and losses a third of a
percent off (benchmarks/float8.py). Weights, gradients, optimizer and all that is saved stay as they are.

Every product casts its factors with scales found on the spot, one for all numbers or one for each row. Scales for rows
cost more than the faster product gains: every factor is cast twice, along its rows and along its columns. The vision
tower, the embedding and the head keep bf16; so does whatever is not training, so that validation and the proof of an
export measure what the export will do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vidqa.contract._optional import require
from vidqa.engine.families import family_of
from vidqa.engine.model.layers import FLOAT8, Float8


def use_float8(model: Any, granularity: str, device: torch.device) -> None:
    """Let the decoder's linear layers multiply in fp8 while they train. `granularity` is "rowwise" or "tensorwise". A
    CPU rounds to fp8 and multiplies in the ordinary precision. Raises PACKAGE_MISSING."""
    torchao = require("torchao.float8.float8_linear", "fp8")
    recipe = replace(torchao.Float8LinearConfig.from_recipe_name(granularity), emulate=device.type == "cpu")
    sample = torchao.Float8Linear.from_float(nn.Linear(16, 16, bias=False, device="meta"), recipe)
    how = Float8(torchao.matmul_with_hp_or_float8_args.apply, sample.linear_mm_config, sample.config)
    for layer in family_of(model).decoder_units(model):
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                setattr(module, FLOAT8, how)
