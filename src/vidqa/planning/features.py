"""Cached features of a frozen vision tower: their bytes, and the share of media that fits into the cache.

A token has `out` numbers at the tower's end and at every tap: 32 KiB in the 8B model, compared with 6 KiB of pixels. So
the cache is opt-in, frames come first, and the rest of the space holds features.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from vidqa.families import Family, Sizes
from vidqa.planning.budget.memory import BYTES_OF
from vidqa.planning.budget.params import parameters
from vidqa.planning.samples import Sample
from vidqa.spec.models import TrainSpec
from vidqa.video.types import FramePlan

USABLE_CACHE = 0.95  # of the cache; entries have headers, and other runs leave some


@dataclass(frozen=True)
class CacheShare:
    """Bytes of all frames and of all features, and the share of media whose features fit."""

    frame_bytes: int
    feature_bytes: int
    share: float


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


def kept_share(
    spec: TrainSpec,
    family: Family,
    sizes: Sizes,
    trained: Iterable[Sample],
    others: Iterable[Sample],
    limit_bytes: float,
) -> CacheShare | str:
    """The `cache_share` of a TrainSpec, or why it keeps no features. They stay what they are where the vision tower is
    the base's own and nothing in it trains."""
    tower = (p for p in parameters(family.tensors(sizes), spec.policy) if p.name.startswith(family.tower))
    if any(parameter.trains or parameter.added for parameter in tower):
        return "the vision tower trains"
    if spec.policy.parallelism.cp_size > 1:
        return "ranks share a sample (policy.parallelism.cp_size)"
    per_token = (1 + sizes.vision.taps) * sizes.vision.out * BYTES_OF[spec.train.param_dtype]
    return cache_share(trained, others, per_token, limit_bytes)
