"""Near duplicates: files of the same scene, cut or encoded again, whatever they are called and hold."""

from vidqa.dataset.near_duplicates.perceptual_hash import (
    near_duplicate_groups,
    near_duplicate_pairs,
    signature,
    thumbnails,
)
from vidqa.dataset.near_duplicates.signatures import THUMBNAILS, keep_signatures, signatures

__all__ = [
    "THUMBNAILS",
    "keep_signatures",
    "near_duplicate_groups",
    "near_duplicate_pairs",
    "signature",
    "signatures",
    "thumbnails",
]
