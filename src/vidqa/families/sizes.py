"""The sizes of a model, from which parameters, memory and FLOPs are computed without any weights."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TextSizes:
    """A decoder with grouped-query attention and a gated MLP; `head_norms` are norms of its queries and keys."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool  # one matrix is both embedding and head
    attention_bias: bool = False
    head_norms: bool = True

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class VisionSizes:
    """A vision tower; `taps` counts the blocks whose features the decoder takes in besides the last one's.

    With a `window`, which is its side in patches, attention stays inside of windows of a frame in all but `whole`
    blocks. `positions` are those of a trained table, 0 where there is none; `gated` tells the form of the MLP."""

    hidden: int
    blocks: int
    intermediate: int
    out: int
    taps: int
    patch: int
    temporal_patch: int
    merge: int
    channels: int
    positions: int
    gated: bool = False
    window: int = 0
    whole: int = 0

    @property
    def merged(self) -> int:
        """Width of the patches that become one token, side by side."""
        return self.hidden * self.merge**2

    @property
    def patch_values(self) -> int:
        """Numbers in one patch."""
        return self.channels * self.temporal_patch * self.patch**2


@dataclass(frozen=True)
class Sizes:
    """A whole model."""

    text: TextSizes
    vision: VisionSizes


@dataclass(frozen=True)
class Tensor:
    """One parameter of a model. `unit` names the layer or block that it is sharded with, "" the rest of the model;
    `linear` that it belongs to a linear layer; `tied` is the other name of one that a linear layer uses as well."""

    name: str
    shape: tuple[int, ...]
    unit: str = ""
    linear: bool = False
    tied: str = ""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)
