"""Model families: the only modules of the engine with code for particular model classes, parts and forward passes.

`vidqa.families` has the half that needs no torch: sizes, tokens, placeholders, rope positions.
"""

from typing import Any

from vidqa.engine.families._base import TorchFamily
from vidqa.engine.families.qwen2_5_vl import QWEN2_5_VL
from vidqa.engine.families.qwen3_vl import QWEN3_VL
from vidqa.families import Family

FAMILIES = (QWEN3_VL, QWEN2_5_VL)

__all__ = ["FAMILIES", "TorchFamily", "family_of", "torch_half"]


def torch_half(tables: Family) -> TorchFamily:
    """The torch half of a family."""
    return next(family for family in FAMILIES if family.tables is tables)


def family_of(model: Any) -> TorchFamily:
    """The family of a model in memory, or of its config."""
    model_type = getattr(model, "config", model).model_type
    return next(family for family in FAMILIES if model_type in family.tables.model_types)
