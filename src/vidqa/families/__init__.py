"""Model families: patch sizes, token ids, chat and memory of each architecture, without torch.

A family answers, from a model folder's own files, how frames become tokens. `vidqa.engine.model` holds each
family's torch half.
"""

from vidqa.families._base import Family, Geometry, families, family_of
from vidqa.families.quantization import quantization_of, require_plain_weights

__all__ = ["Family", "Geometry", "families", "family_of", "quantization_of", "require_plain_weights"]
