"""The share of a frozen vision tower's features that fits into the cache of a training, beside its frames.

The features of a token are `out` numbers at the tower's end and at every tap (deepstack): 32 KiB in the 8B model, while
its pixels are 6 KiB. So caching them is opt-in, frames come first, and features get the rest of the cache.
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

USABLE_CACHE = 0.95  # share of the cache; the rest is for headers of entries, and entries of other runs


@dataclass(frozen=True)
class CacheShare:
    """The division of a cache between frames and features."""

    frame_bytes: int  # of all frames
    feature_bytes: int  # of all features
    share: float  # 0..1, share of the features that fits


def plans_by_view(samples: Iterable[Sample]) -> dict[Hashable, FramePlan]:
    """The frame plan of every view (a medium with its span and keys), once for all samples that contain it."""
    return {ref.view: plan for sample in samples for ref, plan in zip(sample.record.media, sample.plans, strict=True)}


def frame_bytes(plans: Iterable[FramePlan]) -> int:
    """Bytes of the resized frames, uint8 RGB."""
    return sum(len(plan.indices) * plan.height * plan.width * 3 for plan in plans)


def cache_share(
    trained: Iterable[Sample], others: Iterable[Sample], bytes_per_token: int, limit_bytes: float
) -> CacheShare:
    """The division of a cache of `limit_bytes` that holds the frames of all samples, and the features of the `trained`
    ones only; `others` are the validation samples."""
    plans = plans_by_view(trained)
    features = bytes_per_token * sum(plan.tokens for plan in plans.values())
    frames = frame_bytes((plans_by_view(others) | plans).values())
    free_bytes = max(0.0, USABLE_CACHE * limit_bytes - frames)
    return CacheShare(frames, features, min(1.0, free_bytes / features) if features else 0.0)


def feature_cache_share(
    spec: TrainSpec,
    family: Family,
    sizes: Sizes,
    trained: Iterable[Sample],
    others: Iterable[Sample],
    limit_bytes: float,
) -> CacheShare | str:
    """The `cache_share` of a TrainSpec, or the reason why it caches no features: they must not change, so the vision
    tower must be frozen and without adapters."""
    tower = (p for p in parameters(family.tensors(sizes), spec.policy) if p.name.startswith(family.tower))
    if any(parameter.trains or parameter.added for parameter in tower):
        return "the vision tower trains"
    if spec.policy.parallelism.cp_size > 1:
        return "ranks share a sample (policy.parallelism.cp_size)"
    bytes_per_token = (1 + sizes.vision.taps) * sizes.vision.out * BYTES_OF[spec.train.param_dtype]
    return cache_share(trained, others, bytes_per_token, limit_bytes)
