"""95 % intervals of an accuracy whose answers come in clusters: questions about one video stand or fall together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000


def accuracy_interval(correct: Sequence[bool], clusters: Sequence[str], seed: int) -> tuple[list[float] | None, str]:
    """([low, high], method). Resamples whole videos with replacement; `clusters` names the video of each answer.

    Where every video has the same accuracy a bootstrap would give an interval of no width, which is too sure of
    itself; then it is Wilson's interval with the number of videos as the sample size. None without answers.
    """
    if not correct:
        return None, "none"
    per_video: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for right, video in zip(correct, clusters, strict=True):
        counts = per_video[video]
        counts[0] += 1
        counts[1] += right
    # Videos with the same (answers, right answers) are alike: drawing how often each type comes is the same bootstrap.
    types = sorted(Counter(map(tuple, per_video.values())).items())
    if len({right * 10**9 // total for (total, right), _ in types}) == 1:
        return _wilson(sum(correct) / len(correct), len(per_video)), "wilson by video"
    weights = np.array([many for _, many in types], dtype=np.float64)
    draws = np.random.default_rng(seed).multinomial(len(per_video), weights / weights.sum(), size=RESAMPLES)
    totals = draws @ np.array([total for (total, _), _ in types])
    rights = draws @ np.array([right for (_, right), _ in types])
    low, high = np.percentile(rights / totals, [2.5, 97.5])
    return [round(float(low), 6), round(float(high), 6)], "bootstrap by video"


def _wilson(share: float, n: int) -> list[float]:
    """Wilson (1927) score interval of a share among n."""
    z = 1.959964
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * ((share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5)
    return [round(max(0.0, middle - half), 6), round(min(1.0, middle + half), 6)]
