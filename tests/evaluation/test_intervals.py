"""Intervals of an accuracy: exact for independent answers, by simulation for answers that share videos."""

from functools import cache
from itertools import pairwise
from math import comb

import numpy as np
import pytest

from vidqa.evaluation.accuracy import accuracy_interval
from vidqa.evaluation.metrics import score
from vidqa.evaluation.results import judged

Videos = tuple[tuple[int, int], ...]  # (answers, right answers) of each


@cache
def limits(videos: Videos) -> tuple[float, float]:
    correct = [at < right for asked, right in videos for at in range(asked)]
    found = accuracy_interval(correct, [str(v) for v, (asked, _) in enumerate(videos) for _ in range(asked)])
    assert found is not None
    return found.low, found.high


@pytest.mark.parametrize("n", [10, 15, 23, 50, 100, 200])
def test_coverage_of_independent_answers_is_never_below_95_percent(n):
    """Exactly, by summing over all outcomes, from shares of a half to 99 %."""
    intervals = [limits(((1, 1),) * right + ((1, 0),) * (n - right)) for right in range(n + 1)]
    for share in np.arange(0.5, 0.995, 0.005):
        chances = (comb(n, right) * share**right * (1 - share) ** (n - right) for right in range(n + 1))
        covered = sum(chance for chance, (low, high) in zip(chances, intervals, strict=True) if low <= share <= high)
        assert covered >= 0.95, share


CLUSTERED = [  # questions, questions about one video, how alike their answers are (intraclass correlation)
    (10, 2, 0.3),
    (23, 2, 0.6),
    (50, 5, 0.3),
    (50, 10, 0.6),
    (100, 5, 1.0),
    (200, 10, 0.3),
    (200, 10, 0.6),
]


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 0.98])
@pytest.mark.parametrize(("n", "per_video", "likeness"), CLUSTERED)
def test_coverage_of_answers_that_share_videos(n, per_video, likeness, share):
    rng = np.random.default_rng(n + per_video)
    asked = np.array([per_video] * (n // per_video) + ([n % per_video] if n % per_video else []))
    ease = rng.random((600, len(asked))) < share  # a video's answers are all right or all wrong
    if likeness < 1:
        a, b = share * (1 / likeness - 1), (1 - share) * (1 / likeness - 1)
        ease = rng.beta(a, b, (600, len(asked)))
    trials = rng.binomial(asked, ease)
    found = [limits(tuple(sorted(zip(asked.tolist(), right.tolist(), strict=True)))) for right in trials]
    assert np.mean([low <= share <= high for low, high in found]) >= 0.93


def in_videos(right: int, n: int, videos: int) -> tuple[float, float]:
    """Limits of `right` of n answers, the wrong ones spread over the videos."""
    wrong = [sum(at % videos == video for at in range(n - right)) for video in range(videos)]
    asked = [sum(at % videos == video for at in range(n)) for video in range(videos)]
    return limits(tuple((many, many - bad) for many, bad in zip(asked, wrong, strict=True)))


@pytest.mark.parametrize("videos", [23, 12])
def test_a_better_score_has_the_higher_limits(videos):
    for (worse_low, worse_high), (low, high) in pairwise(in_videos(right, 23, videos) for right in range(18, 24)):
        assert low > worse_low and high > worse_high
    assert in_videos(23, 23, videos)[1] == 1.0 > in_videos(20, 23, videos)[1]


def test_limits_that_others_publish():
    """Clopper and Pearson's, of independent answers: 23 of 23, 20 of 23 (R: binom.test), and 10 of 20."""
    assert limits(((1, 1),) * 23) == pytest.approx((0.851815, 1.0), abs=1e-6)
    assert limits(((1, 1),) * 20 + ((1, 0),) * 3) == pytest.approx((0.664111, 0.972248), abs=1e-6)
    assert limits(((1, 1),) * 10 + ((1, 0),) * 10) == pytest.approx((0.271958, 0.728042), abs=1e-6)


def test_interval_agrees_with_a_plain_bootstrap_over_many_videos():
    rng = np.random.default_rng(0)
    videos = np.repeat(np.arange(80), 5)
    ease = rng.random(80)
    correct = rng.random(400) < ease[videos]
    low, high, _ = accuracy_interval(list(map(bool, correct)), [str(v) for v in videos])
    means = correct.reshape(80, 5).mean(1)
    plain = [means[rng.integers(0, 80, 80)].mean() for _ in range(4000)]
    assert np.allclose([low, high], np.percentile(plain, [2.5, 97.5]), atol=0.012)
    # Answers about one video go together: taking them as independent would be too sure.
    apart = accuracy_interval(list(map(bool, correct)), [str(n) for n in range(400)])
    assert high - low > 1.2 * (apart.high - apart.low)


def test_a_perfect_score_is_worth_one_answer_a_video():
    found = accuracy_interval([True] * 20, [str(n // 2) for n in range(20)])
    assert found == pytest.approx((0.025**0.1, 1.0, 10), abs=1e-6)
    assert accuracy_interval([False] * 20, [str(n // 2) for n in range(20)])[:2] == pytest.approx((0, 1 - 0.025**0.1))
    assert accuracy_interval([], []) is None


def test_one_video_says_little_and_one_method_is_named_for_all():
    rows = [("yes", "yes")] * 9 + [("yes", "no")]
    items = [judged({"video_id": "a.mp4", "question": "q", "gt": gt, "response": said}) for gt, said in rows]
    found = score(items)
    assert found["n_effective"] == 1 and found["accuracy_ci95"][0] < 0.1
    assert {found["ci_method"], found["by_kind"]["yes_no"]["ci_method"]} == {"Clopper-Pearson by video"}
    apart = score([{**item, "video_id": f"{at}.mp4"} for at, item in enumerate(items)])
    assert apart["ci_method"] == "Clopper-Pearson by video" and apart["n_effective"] == 10
