"""95 % intervals of an accuracy whose answers come in clusters: questions about one video stand or fall together.

The limits are Clopper and Pearson's (1934), taken at the effective sample size as Korn and Graubard (1998) do for
surveys: they hold at any size and near 0 and 1, where normal and bootstrap limits are too narrow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

METHOD = "Clopper-Pearson by video"
_TAIL = 0.025
_CAUTION = 2  # with less, limits of few videos are too narrow where most answers are right


class Interval(NamedTuple):
    """Limits of a share and the number of independent answers that the answers are worth."""

    low: float
    high: float
    n_effective: float


def video_clusters(videos: Iterable[str]) -> list[str]:
    """The cluster of each answer: its video, or, for an answer about no video, a cluster of its own."""
    return [video or f"\0answer {at}" for at, video in enumerate(videos)]


def accuracy_interval(correct: Sequence[bool], videos: Iterable[str]) -> Interval | None:
    """The interval of the share of right answers; `videos` has the video of each answer, or "". None without answers.

    n answers in videos of n_i are worth n / (1 + (sum(n_i^2) / n - 1) r) independent ones, where r in 0..1 is how
    alike the answers about one video are. One answer a video is worth one; with r = 1 a video is worth one.
    """
    if not correct:
        return None
    per_video: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for right, cluster in zip(correct, video_clusters(videos), strict=True):
        counts = per_video[cluster]
        counts[0] += 1
        counts[1] += right
    n, rights = len(correct), sum(correct)
    shared = sum(count * count for count, _ in per_video.values()) / n
    worth = n / (1 + (shared - 1) * _likeness(list(per_video.values())))
    low, high = _limits(rights / n, worth)
    return Interval(round(low, 6), round(high, 6), round(worth, 2))


def _likeness(videos: Sequence[Sequence[int]]) -> float:
    """The intraclass correlation of answers about one video, from (answers, right answers) of each.

    The estimate of the analysis of variance, drawn towards 1: it counts once for every video that holds an answer of
    the rarer outcome, and 1 counts _CAUTION times. Such videos are all that tells how wrong answers gather; with none
    of them (a perfect score) nothing does, and a video is worth one answer.
    """
    n, rights = sum(count for count, _ in videos), sum(right for _, right in videos)
    rare = [right if 2 * rights <= n else count - right for count, right in videos]
    informative = min(sum(map(bool, rare)), len(videos) - 1)
    if not informative or n == len(videos):
        return 1.0
    share = rights / n
    between = sum(count * (right / count - share) ** 2 for count, right in videos) / (len(videos) - 1)
    within = sum(right * (count - right) / count for count, right in videos) / (n - len(videos))
    size = (n - sum(count * count for count, _ in videos) / n) / (len(videos) - 1)
    estimate = (between - within) / (between + (size - 1) * within)
    return (informative * min(max(estimate, 0.0), 1.0) + _CAUTION) / (informative + _CAUTION)


def _limits(share: float, n: float) -> tuple[float, float]:
    """Clopper and Pearson's limits of a share among n, which need not be whole: quantiles of the beta distribution."""
    hits, misses = share * n, (1 - share) * n
    low = _beta_quantile(_TAIL, hits, misses + 1) if hits > 0 else 0.0
    high = _beta_quantile(1 - _TAIL, hits + 1, misses) if misses > 0 else 1.0
    return low, high


def _beta_quantile(p: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(24):  # to 1e-7
        middle = (low + high) / 2
        if _beta_below(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_below(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), 0 < x < 1, by Lentz's continued fraction (DLMF 8.17.22)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_below(1 - x, b, a)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    log_front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) * fraction / a
