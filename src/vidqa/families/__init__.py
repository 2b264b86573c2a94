"""Model families: patch sizes, token ids, chat and parameters of each architecture, without torch.

A family answers from a model folder's own files. `vidqa.engine.families` holds each family's torch half.
"""

from vidqa.families._base import Family, Geometry
from vidqa.families.quantization import quantization_of, require_plain_weights
from vidqa.families.registry import FAMILIES, family_of

__all__ = ["FAMILIES", "Family", "Geometry", "family_of", "quantization_of", "require_plain_weights"]
