"""The interface of a model family, and the sizes and parameters that it answers from a config.json, without weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vidqa.families.model_files import read_json
from vidqa.video.types import FramePlan, PixelRules


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


@dataclass(frozen=True)
class Geometry:
    """How one model's processor sees videos and images. `positions_per_s` is how far rope positions move on in a second
    of a video, in families where they tell the time."""

    video: PixelRules
    image: PixelRules
    positions_per_s: float = 0.0


@dataclass(frozen=True)
class Family:
    """The torch-free half of a model family.

    geometry(folder)            reads the processor's own files
    expand(plan, merge)         the text that stands for one planned video or image in the rendered chat
    placeholders                what the chat template writes for a medium, by its kind, to be replaced by `expand`
    token_ids                   keys of config.json that hold the id of a token, with (the token's text, the id that
                                transformers takes where the key is left out)
    rope_positions(ids, image_id, video_id, plans, geometry)   positions int64 [3, S] (time, row, column) of one
                                unpadded sequence `ids` [S]; `plans` of its media are in reading order. ValueError where
                                they are not those of the placeholders
    sizes(config, where)        the sizes in a config.json, which `where` names in problems
    tensors(sizes)              every parameter, as the model names it
    parameter_name(stored)      the model's name of a tensor that its files name `stored`; files may have that one, too
    write_frame_cap(folder, capped)   writes into a folder's processor settings whether frames are capped
    tower                       how names of the vision tower's parameters begin
    transformers                the release from which on the stock model places a video's frames as it should
    """

    name: str
    model_types: tuple[str, ...]
    geometry: Callable[[Path], Geometry]
    expand: Callable[[FramePlan, int], str]
    placeholders: Mapping[str, str]
    token_ids: Mapping[str, tuple[str, int]]
    rope_positions: Callable[..., np.ndarray]
    sizes: Callable[[dict, Path], Sizes]
    tensors: Callable[[Sizes], list[Tensor]]
    parameter_name: Callable[[str], str] = str
    write_frame_cap: Callable[[Path, bool | None], None] = lambda folder, capped: None
    tower: str = "model.visual."
    transformers: str = ""

    def sizes_of(self, folder: Path) -> Sizes:
        """The sizes of the model in `folder`. Raises MODEL_BROKEN, MODEL_UNSUPPORTED."""
        return self.sizes(read_json(folder, "config.json"), folder / "config.json")
