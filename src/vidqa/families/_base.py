"""What a family is, and how a model folder names its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vidqa.families.json_files import read_json
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.quantization import quantization_of
from vidqa.families.sizes import Sizes, Tensor
from vidqa.video.types import FramePlan, PixelRules

# Architectures near to those of the families, and what of them this program lacks.
LACKING = {
    "qwen3_vl_moe": "a mixture of experts (Qwen3-VL-30B-A3B), for which this program lacks a family (sizes, names and "
    "work of its parameters), products of tokens grouped by their expert, the router's balancing loss, adapters on "
    "stacked experts, and their export",
    "cosmos3_omni": "Cosmos3's own bundle, whose reasoner is converted to a folder of qwen3_vl first: "
    "references/families.md has the commands",
    "cosmos3_edge": "Cosmos3-Edge, an architecture that is not Qwen3-VL's and has no converter to it",
}


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
    template_slot(kind)         what the chat template writes for a medium, to be replaced by `expand`
    vision_token_ids(folder)    (image placeholder id, video placeholder id)
    rope_positions(ids, image_id, video_id, plans, geometry)   positions int64 [3, S] (time, row, column) of one
                                unpadded sequence `ids` [S]; `plans` of its media are in reading order. ValueError where
                                they are not those of the placeholders
    sizes(config, where)        the sizes in a config.json, which `where` names in problems
    tensors(sizes)              every parameter, as the model names it
    parameter_name(stored)      the model's name of a tensor that its files name `stored`; files may have that one, too
    state_frame_cap(folder, capped)   writes into a folder's processor settings whether frames are capped
    tower                       how names of the vision tower's parameters begin
    transformers                the release from which on the stock model places a video's frames as it should
    """

    name: str
    model_types: tuple[str, ...]
    geometry: Callable[[Path], Geometry]
    expand: Callable[[FramePlan, int], str]
    template_slot: Callable[[str], str]
    vision_token_ids: Callable[[Path], tuple[int, int]]
    rope_positions: Callable[..., np.ndarray]
    sizes: Callable[[dict, Path], Sizes]
    tensors: Callable[[Sizes], list[Tensor]]
    parameter_name: Callable[[str], str] = str
    state_frame_cap: Callable[[Path, bool | None], None] = lambda folder, capped: None
    tower: str = "model.visual."
    transformers: str = ""

    def sizes_of(self, folder: Path) -> Sizes:
        """The sizes of the model in `folder`. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
        return self.sizes(read_json(folder, "config.json"), folder / "config.json")


def families() -> tuple[Family, ...]:
    """All families."""
    from vidqa.families.qwen2_5_vl import QWEN2_5_VL
    from vidqa.families.qwen3_vl import QWEN3_VL

    return QWEN3_VL, QWEN2_5_VL


def family_of(folder: Path) -> Family:
    """The family of the model in `folder`, by config.json's model_type; its weights may be quantized in a way that
    compressed-tensors reads. Raises MODEL_UNSUPPORTED, MODEL_QUANTIZED."""
    config = read_json(folder, "config.json")
    model_type = config.get("model_type")
    for family in families():
        if model_type in family.model_types:
            quantization_of(folder)
            return family
    supported = ", ".join(t for family in families() for t in family.model_types)
    message = f"model_type is {model_type!r}; supported: {supported}"
    if lacking := LACKING.get(str(model_type)):
        message = f"model_type is {model_type!r}, {lacking}; supported: {supported}"
    raise MODEL_UNSUPPORTED.error(folder / "config.json", message)
