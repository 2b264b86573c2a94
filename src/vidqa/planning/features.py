"""Features of a frozen vision tower, kept from the first epoch on: what they take, and for how many media is room.

A token has `out` numbers at the tower's end and at every tap: 32 KiB in the 8B model, where its pixels take 6 KiB. So
features are kept only where the spec asks for it, and frames come first: the rest of the cache is for features, of
as many media as fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from vidqa.families.sizes import VisionSizes
from vidqa.planning.budget.memory import BYTES_OF
from vidqa.planning.budget.params import Parameter
from vidqa.planning.samples import Sample
from vidqa.video.types import FramePlan

USABLE_CACHE = 0.95  # of the cache; entries have headers, and other runs leave some


@dataclass(frozen=True)
class CacheShare:
    """Bytes of all frames and of all features, and the share of media whose features are kept."""

    frame_bytes: int
    feature_bytes: int
    share: float


def token_bytes(vision: VisionSizes, dtype: str) -> int:
    """Bytes that the features of one token take; `dtype` is train.param_dtype."""
    return (1 + vision.taps) * vision.out * BYTES_OF[dtype]


def is_tower_frozen(parameters: Iterable[Parameter], tower: str) -> bool:
    """Whether the vision tower, whose parameters' names begin with `tower`, is the base's own and nothing in it trains,
    so that its features stay what they are."""
    return not any(parameter.trains or parameter.added for parameter in parameters if parameter.name.startswith(tower))


def plans_by_view(samples: Iterable[Sample]) -> dict[Hashable, FramePlan]:
    """The frame plan of every view of a medium, once."""
    return {ref.view: plan for sample in samples for ref, plan in zip(sample.record.media, sample.plans, strict=True)}


def cache_share(trained: Iterable[Sample], others: Iterable[Sample], per_token: int, limit_bytes: float) -> CacheShare:
    """Of the samples that are trained on, within a cache of so many bytes that holds the frames of others, too."""
    plans = plans_by_view(trained)
    features = per_token * sum(plan.tokens for plan in plans.values())
    frames = sum(len(plan.indices) * plan.height * plan.width * 3 for plan in (plans_by_view(others) | plans).values())
    left = max(0.0, USABLE_CACHE * limit_bytes - frames)
    return CacheShare(frames, features, min(1.0, left / features) if features else 0.0)
