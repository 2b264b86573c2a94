"""What is said instead: false positives and negatives of yes/no questions, and the pairs that are mixed up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from vidqa.evaluation.gaps.scored_answers import Judged
from vidqa.evaluation.intervals import accuracy_interval
from vidqa.evaluation.options import options_of
from vidqa.evaluation.text import normalise

MOST_PAIRS = 100
MOST_SHOWN = 80  # characters of an answer


def yes_no(judged: Sequence[Judged]) -> dict[str, Any] | None:
    """False positives among questions whose answer is no, false negatives among those whose answer is yes; by kind,
    too. None where there is no such question."""
    answers = [each for each in judged if each.answer_kind == "yes_no" and each.is_answer]
    if not answers:
        return None
    by_kind: dict[str, list[Judged]] = defaultdict(list)
    for each in answers:
        by_kind[each.kind].append(each)
    return {**_both(answers), "by_kind": {kind: _both(inside) for kind, inside in sorted(by_kind.items())}}


def _both(answers: Sequence[Judged]) -> dict[str, Any]:
    return {
        "false_positives": _wrong([each for each in answers if each.parsed_truth == "no"]),
        "false_negatives": _wrong([each for each in answers if each.parsed_truth == "yes"]),
    }


def _wrong(answers: Sequence[Judged]) -> dict[str, Any]:
    wrong = [each.error == "wrong" for each in answers]
    limits = accuracy_interval(wrong, [each.video for each in answers])
    rate = sum(wrong) / len(wrong) if wrong else None
    return {"n": len(wrong), "wrong": sum(wrong), "rate": rate, "ci95": [limits.low, limits.high] if limits else None}


def confusions(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """(expected, said) pairs of wrong answers by kind, the commonest first: of how many with that expected answer, and
    whether the other way round is as common. An option's letter stands for its text."""
    pairs: Counter[tuple[str, str, str]] = Counter()
    expected: Counter[tuple[str, str]] = Counter()
    for each in judged:
        if not each.is_answer:
            continue
        truth = _said(each, each.parsed_truth)
        expected[each.kind, truth] += 1
        if each.error == "wrong":
            pairs[each.kind, truth, _said(each, each.parsed)] += 1
    return [
        {
            "kind": kind,
            "expected": truth,
            "said": said,
            "count": count,
            "of": expected[kind, truth],
            "rate": round(count / expected[kind, truth], 6),
            "other_way": pairs[kind, said, truth],
        }
        for (kind, truth, said), count in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:MOST_PAIRS]
    ]


def _said(each: Judged, answer: str) -> str:
    if each.answer_kind == "letter":
        answer = normalise(options_of(each.question).get(answer, answer)) or answer
    return answer if len(answer) <= MOST_SHOWN else f"{answer[: MOST_SHOWN - 1]}…"
