"""Model families: patch sizes, token ids, chat and parameters of each architecture, without torch.

A family reads a model folder's own files. `vidqa.engine.families` holds each family's torch half.
"""

from __future__ import annotations

from pathlib import Path

from vidqa.families._base import Family, Geometry, Sizes, Tensor, TextSizes, VisionSizes
from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.qwen2_5_vl import QWEN2_5_VL
from vidqa.families.qwen3_vl import QWEN3_VL
from vidqa.families.weights import quantization_of, require_plain_weights

__all__ = [
    "FAMILIES",
    "Family",
    "Geometry",
    "Sizes",
    "Tensor",
    "TextSizes",
    "VisionSizes",
    "family_of",
    "quantization_of",
    "require_plain_weights",
]


FAMILIES = (QWEN3_VL, QWEN2_5_VL)
# Architectures similar to those of the families, and the features that this program lacks for them.
LACKING = {
    "qwen3_vl_moe": "a mixture of experts (Qwen3-VL-30B-A3B), which needs its own family (sizes, names and "
    "work of its parameters), products of tokens grouped by their expert, the router's balancing loss, adapters on "
    "stacked experts, and their export",
    "cosmos3_omni": "Cosmos3's own bundle; convert its reasoner to a folder of qwen3_vl first: "
    "references/families.md has the commands",
    "cosmos3_edge": "Cosmos3-Edge, which is not a Qwen3-VL architecture and has no converter",
}


def family_of(folder: Path) -> Family:
    """The family of the model in `folder`, by config.json's model_type; its weights may be quantized in a format of
    compressed-tensors. Raises MODEL_UNSUPPORTED, MODEL_QUANTIZED."""
    config = read_json(folder, "config.json")
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            quantization_of(folder)
            return family
    supported = ", ".join(t for family in FAMILIES for t in family.model_types)
    lacking = f", {LACKING[model_type]}" if isinstance(model_type, str) and model_type in LACKING else ""
    message = f"model_type is {model_type!r}{lacking}; supported: {supported}"
    raise MODEL_UNSUPPORTED.error(folder / "config.json", message)
