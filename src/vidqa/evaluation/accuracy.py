"""Accuracy with its confidence interval and the majority-class baseline.

Answers are clustered: correctness is correlated among questions about one video. The 95 % limits are Clopper and
Pearson's (1934) at the effective sample size, as Korn and Graubard (1998) compute them for surveys: they hold at any
size and near 0 and 1, where normal and bootstrap limits are too narrow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from vidqa.core.problem import Problem
from vidqa.evaluation.problems import METRIC_ONE_ANSWER
from vidqa.evaluation.results import Item, groups

METHOD = "Clopper-Pearson by video"
_TAIL = 0.025
_CAUTION = 2  # with a smaller value, limits from few videos are too narrow if most answers are right
FEWEST = 5  # fewest answers for a warning that all are the same
LISTED = 10  # most kinds in a message
_SHOWN = 80  # most characters of an answer in a message


class Interval(NamedTuple):
    """Limits of a proportion, and the effective number of independent answers."""

    low: float
    high: float
    n_effective: float


def video_clusters(videos: Iterable[str]) -> list[str]:
    """The cluster of each answer: its video; an answer without a video is its own cluster."""
    return [video or f"\0answer {at}" for at, video in enumerate(videos)]


def accuracy_interval(correct: Sequence[bool], videos: Iterable[str]) -> Interval | None:
    """The interval of the share of right answers; `videos` has the video of each answer, or "". None without answers.

    n answers, n_i of them about video i, count as n / (1 + (sum(n_i^2) / n - 1) r) independent ones; r in 0..1 is the
    intraclass correlation within videos. One answer per video counts fully; with r = 1 each video counts as one.
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

    The estimate of the analysis of variance, shrunk towards 1: its weight is the number of videos with an answer of the
    rarer outcome, and the weight of 1 is _CAUTION. Only such videos show how wrong answers cluster; without any (a
    perfect score) the result is 1, so that a video counts as one answer.
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
    """Clopper and Pearson's limits of a proportion of n answers (n may be fractional), from the beta distribution."""
    from scipy.special import betaincinv  # its import takes half a second, which programs that only read answers avoid

    hits, misses = share * n, (1 - share) * n
    low = float(betaincinv(hits, misses + 1, _TAIL)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, misses, 1 - _TAIL)) if misses > 0 else 1.0
    return low, high


# --- the majority-class baseline --------------------------------------------------------------------------------------


def majority(items: Sequence[Item]) -> dict[str, Any]:
    """The majority-class baseline: the accuracy of giving the most common right answer of each answer kind to every
    question of that kind, and these answers ("no" to every yes/no question, "B" to every letter question)."""
    hits, answers = 0, {}
    for kind, group in groups(items, "answer_kind"):
        # Ties are broken by name, so that a score is reproducible.
        answer, count = min(Counter(item["parsed_gt"] for item in group).items(), key=lambda pair: (-pair[1], pair[0]))
        hits += count
        answers[kind] = _short(answer)
    return {"majority_accuracy": round(hits / len(items), 6) if items else None, "majority_answers": answers}


def one_answer(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The kinds of questions with one and the same answer by the model although the right answers differ: answer kinds,
    and for the remaining questions the user's kinds."""
    rows = [row for kind, group in groups(items, "answer_kind") if (row := _only(kind, group))]
    named = {row["kind"] for row in rows}
    others = [item for item in items if item["answer_kind"] not in named]
    return rows + [row for kind, group in groups(others, "kind") if (row := _only(kind, group))]


def _only(kind: str, items: Sequence[Item]) -> dict[str, Any] | None:
    answers = [item["parsed_response"] for item in items if item["parse_status"] == "parsed"]
    expected = Counter(item["parsed_gt"] for item in items)
    if len(answers) < FEWEST or len(set(answers)) > 1 or len(expected) == 1:
        return None
    commonest = {_short(answer): count for answer, count in expected.most_common(5)}
    return {"kind": kind, "answer": _short(answers[0]), "answers": len(answers), "expected": commonest}


def one_answer_problems(rows: Sequence[dict[str, Any]]) -> list[Problem]:
    """A warning for each kind with a single answer."""
    problems = []
    for row in rows[:LISTED]:
        expected = ", ".join(f"{count} x {answer!r}" for answer, count in row["expected"].items())
        message = f"all {row['answers']} answers are {row['answer']!r}; expected are {expected}"
        problems.append(METRIC_ONE_ANSWER.at(row["kind"], message, severity="warning"))
    if len(rows) > LISTED:
        message = f"{len(rows) - LISTED} more kinds have one answer only"
        problems.append(METRIC_ONE_ANSWER.at("by_kind", message, severity="warning"))
    return problems


def headline(scores: dict[str, Any]) -> str:
    """The accuracy in one sentence, with its interval, the majority-class baseline, and kinds with a single answer."""
    if scores["accuracy"] is None:
        return "no answer could be judged: there is no ground truth"
    low, high = scores["accuracy_ci95"]
    sentence = f"accuracy {_percent(scores['accuracy'])} % (95 % interval {_percent(low)} to {_percent(high)})"
    sentence += f"; majority-class baseline {_percent(scores['majority_accuracy'])} %"
    only = [f"{row['answer']!r} to every {row['kind']} question" for row in scores["one_answer"][:3]]
    return f"{sentence}; the model answers {', '.join(only)}" if only else sentence


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _short(answer: str) -> str:
    return answer if len(answer) <= _SHOWN else f"{answer[: _SHOWN - 1]}…"
