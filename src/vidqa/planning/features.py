"""Cached features of a frozen vision tower: their bytes, and the share of media that fits into the cache.

A token has `out` numbers at the tower's end and at every tap: 32 KiB in the 8B model, compared with 6 KiB of pixels. So
the cache is opt-in, frames come first, and the rest of the space holds features.
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
    """Bytes of all frames and of all features, and the share of media whose features fit."""

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


def frame_bytes(plans: Iterable[FramePlan]) -> int:
    """Bytes of the resized frames."""
    return sum(len(plan.indices) * plan.height * plan.width * 3 for plan in plans)


def cache_share(trained: Iterable[Sample], others: Iterable[Sample], per_token: int, limit_bytes: float) -> CacheShare:
    """For training samples, in a cache of `limit_bytes` that also holds the frames of `others`."""
    plans = plans_by_view(trained)
    features = per_token * sum(plan.tokens for plan in plans.values())
    frames = frame_bytes((plans_by_view(others) | plans).values())
    left = max(0.0, USABLE_CACHE * limit_bytes - frames)
    return CacheShare(frames, features, min(1.0, left / features) if features else 0.0)
