"""The interface of a model family, and the sizes and parameters that it derives from a config.json, without weights."""

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
    """Sizes of a decoder with grouped-query attention and a gated MLP; `head_norms`: queries and keys have norms."""

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
    """Sizes of a vision tower; `taps` counts the blocks besides the last one whose features go to the decoder.

    With a `window`, its side in patches, attention is limited to windows of a frame in all but `whole` blocks.
    `positions` is the size of a trained position table, 0 if there is none; `gated`: the MLP is gated."""

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
        """Width of the concatenated patches of one token."""
        return self.hidden * self.merge**2

    @property
    def patch_values(self) -> int:
        """Number of values in one patch."""
        return self.channels * self.temporal_patch * self.patch**2


@dataclass(frozen=True)
class Sizes:
    """Sizes of a whole model."""

    text: TextSizes
    vision: VisionSizes


@dataclass(frozen=True)
class Tensor:
    """One parameter of a model. `unit` names the layer or block with which it is sharded, "" for the rest of the model;
    `linear`: it belongs to a linear layer; `tied` is the name under which a linear layer shares it."""

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
    """Preprocessing of videos and images by one model's processor. `positions_per_s` is the step of rope positions per
    second of video, in families whose positions encode time."""

    video: PixelRules
    image: PixelRules
    positions_per_s: float = 0.0


@dataclass(frozen=True)
class Family:
    """The torch-free half of a model family.

    geometry(folder)            reads the processor's own files
    expand(plan, merge)         the text of one planned video or image in the rendered chat
    placeholders                the chat template's text for a medium, by its kind, which `expand` replaces
    token_ids                   keys of config.json with the id of a token: (the token's text, transformers' default
                                 id for an absent key)
    rope_positions(ids, image_id, video_id, plans, geometry)   positions int64 [3, S] (time, row, column) of one
                                 unpadded sequence `ids` [S]; `plans` of its media are in reading order. ValueError if
                                 they do not match the placeholders
    sizes(config, where)        the sizes in a config.json, which `where` names in problems
    tensors(sizes)              every parameter, by its name in the model
    parameter_name(stored)      the model's name of a tensor that its files call `stored`; both names may occur in files
    write_frame_cap(folder, capped)   writes into a folder's processor settings whether frames are capped
    tower                       the prefix of names of the vision tower's parameters
    transformers                the first release whose stock model has correct positions for video frames
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
