"""Where a model fails more than elsewhere: wrong answers by kind, tag, length, brightness, motion, place of the event,
and cluster; false positives and negatives; answers that are mixed up.

Each slice has the number of its answers, how many are wrong, their share with its 95 % interval by video, and the lift:
that share by the share of all. Answers that were cut off or cannot be read are counted apart: they say nothing of what
the model knows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vidqa.core.pages.page import percent
from vidqa.evaluation.accuracy import accuracy_interval, video_clusters
from vidqa.evaluation.choices import options_of
from vidqa.evaluation.text import normalise
from vidqa.gaps.analysis.annotations import Extra
from vidqa.gaps.analysis.scored_answers import ScoredAnswer
from vidqa.gaps.analysis.video_stats import VideoStats

FEWEST = 5  # answers of a slice that is listed
FEWEST_VIDEOS = 12  # that have a number, for slices by that number
MOST = 500  # slices that are kept, those with the highest lift first
THIRDS = ("first third", "middle third", "last third")
MOST_PAIRS = 100
MOST_SHOWN = 80  # characters of an answer
ON_TERMINAL, NAMED = 8, 3  # slices on the terminal, and in a sentence


@dataclass(frozen=True)
class Slice:
    """`n` readable answers, `wrong` of them; `rate` is that share, `lift` its ratio to the share of all answers."""

    dimension: str
    name: str
    n: int
    videos: int
    wrong: int
    rate: float
    ci95: tuple[float, float]
    lift: float | None
    unanswered: int


def slices_of(
    answers: Sequence[ScoredAnswer],
    extras: Mapping[int, Extra],
    stats: Mapping[str, VideoStats],
    clusters: Mapping[int, str],
) -> list[Slice]:
    """All slices, those that fail surely more than the whole first. `extras` are by annotation row, `stats` by video,
    `clusters` by the index of an answer."""
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, answer in enumerate(answers):
        for key in _keys(answer, extras.get(answer.row, Extra()), stats.get(answer.video)):
            members[key].append(index)
        if index in clusters:
            members["cluster", clusters[index]].append(index)
    members.update(_thirds(answers, stats))
    readable = [answer for answer in answers if answer.is_answer]
    whole = sum(answer.error == "wrong" for answer in readable) / len(readable) if readable else 0.0
    slices = [_slice(key, [answers[index] for index in indices], whole) for key, indices in members.items()]
    listed = [part for part in slices if part.n >= FEWEST]
    return sorted(listed, key=lambda part: (-(part.ci95[0] / whole if whole else 0), -part.wrong, part.name))[:MOST]


def _keys(answer: ScoredAnswer, extra: Extra, stats: VideoStats | None) -> list[tuple[str, str]]:
    """(dimension, name) of the slices that a record names itself."""
    keys = [("kind", answer.kind), ("answer kind", answer.answer_kind), *extra.tags]
    if extra.span and stats and stats.seconds > 0:
        middle = sum(extra.span) / 2 / stats.seconds
        keys.append(("place of the event", THIRDS[min(2, int(3 * middle))]))
    return [key for key in dict.fromkeys(keys) if key[1]]


def _thirds(answers: Sequence[ScoredAnswer], stats: Mapping[str, VideoStats]) -> dict[tuple[str, str], list[int]]:
    """Indices of answers by thirds of the videos' length, brightness and motion."""
    members = {}
    for dimension, unit, scale, field in (
        ("length", " s", 1.0, "seconds"),
        ("brightness", " %", 100.0, "brightness"),
        ("motion", " %", 100.0, "motion"),
    ):
        values = {video: scale * getattr(row, field) for video, row in stats.items()}
        if len(values) < FEWEST_VIDEOS:
            continue
        low, high = (float(edge) for edge in np.quantile(sorted(values.values()), [1 / 3, 2 / 3]))
        if not low < high:
            continue
        names = (f"up to {low:.3g}{unit}", f"{low:.3g} to {high:.3g}{unit}", f"over {high:.3g}{unit}")
        for name, (least, most) in zip(names, ((-1.0, low), (low, high), (high, np.inf)), strict=True):
            indices = [at for at, answer in enumerate(answers) if least < values.get(answer.video, np.nan) <= most]
            if indices:
                members[dimension, name] = indices
    return members


def _slice(key: tuple[str, str], answers: Sequence[ScoredAnswer], whole: float) -> Slice:
    readable = [answer for answer in answers if answer.is_answer]
    wrong = [answer.error == "wrong" for answer in readable]
    videos = [answer.video for answer in readable]
    limits = accuracy_interval(wrong, videos)
    rate = sum(wrong) / len(wrong) if wrong else 0.0
    return Slice(
        dimension=key[0],
        name=key[1],
        n=len(readable),
        videos=len(set(video_clusters(videos))),
        wrong=sum(wrong),
        rate=round(rate, 6),
        ci95=(limits.low, limits.high) if limits else (0.0, 1.0),
        lift=round(rate / whole, 4) if whole else None,
        unanswered=len(answers) - len(readable),
    )


def yes_no(answers: Sequence[ScoredAnswer]) -> dict[str, Any] | None:
    """False positives among readable answers to questions whose answer is no, false negatives among those whose answer
    is yes; also by kind. None without yes/no questions."""
    by_kind: dict[str, list[ScoredAnswer]] = defaultdict(list)
    for answer in answers:
        if answer.answer_kind == "yes_no":
            by_kind[answer.kind].append(answer)
    if not by_kind:
        return None
    whole = _both([answer for group in by_kind.values() for answer in group])
    return {**whole, "by_kind": {kind: _both(group) for kind, group in sorted(by_kind.items())}}


def _both(answers: Sequence[ScoredAnswer]) -> dict[str, Any]:
    return {
        "false_positives": _wrong([answer for answer in answers if answer.parsed_truth == "no"]),
        "false_negatives": _wrong([answer for answer in answers if answer.parsed_truth == "yes"]),
    }


def _wrong(answers: Sequence[ScoredAnswer]) -> dict[str, Any]:
    wrong = [answer.error == "wrong" for answer in answers]
    limits = accuracy_interval(wrong, [answer.video for answer in answers])
    rate = sum(wrong) / len(wrong) if wrong else None
    return {"n": len(wrong), "wrong": sum(wrong), "rate": rate, "ci95": [limits.low, limits.high] if limits else None}


def confusions(answers: Sequence[ScoredAnswer]) -> list[dict[str, Any]]:
    """(expected, said) pairs of wrong readable answers by kind, the commonest first: of how many with that expected
    answer, and whether the other way round is as common. An option's letter stands for its text."""
    pairs: Counter[tuple[str, str, str]] = Counter()
    totals: Counter[tuple[str, str]] = Counter()
    for answer in answers:
        truth = _shown(answer, answer.parsed_truth)
        totals[answer.kind, truth] += 1
        if answer.error == "wrong":
            pairs[answer.kind, truth, _shown(answer, answer.parsed)] += 1
    return [
        {
            "kind": kind,
            "expected": truth,
            "said": response,
            "count": count,
            "of": totals[kind, truth],
            "rate": round(count / totals[kind, truth], 6),
            "other_way": pairs[kind, response, truth],
        }
        for (kind, truth, response), count in sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:MOST_PAIRS]
    ]


def _shown(answer: ScoredAnswer, text: str) -> str:
    if answer.answer_kind == "letter":
        text = normalise(options_of(answer.question).get(text, text)) or text
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def slices_sentence(table: Mapping[str, Any]) -> str:
    """The slices that hold all wrong answers, and those that fail surely more than the whole."""
    parts = [part for part in table["slices"] if part["n"] < table["n"]]
    holding = [part for part in parts if 1 < part["wrong"] == table["wrong"]]
    others = [part for part in parts if part["ci95"][0] > (table["rate"] or 0.0) and part not in holding]
    sentences = []
    for start, slices in (("All wrong answers are in", holding), ("Wrong more often than elsewhere:", others)):
        names = [f"{part['dimension']} {part['name']} ({part['wrong']} of {part['n']})" for part in slices[:NAMED]]
        sentences += [f"{start} {', '.join(names)}."] if names else []
    return " ".join(sentences) or "No slice fails surely more than the whole."


def slices_text(table: Mapping[str, Any]) -> str:
    """The slices that fail surely more than the whole, a line each."""
    rate = table["rate"] or 0.0
    standing_out = [part for part in table["slices"] if part["ci95"][0] > rate][:ON_TERMINAL]
    if not standing_out:
        return "no slice fails surely more than the whole"
    rows = [
        f"  {part['dimension']} {part['name']}: {part['wrong']} of {part['n']} wrong, {percent(part['rate'])} "
        f"({percent(part['ci95'][0])} to {percent(part['ci95'][1])}), {part['lift']:.1f} times the whole"
        for part in standing_out
    ]
    return "\n".join([f"slices that fail more than the whole ({percent(rate)}):", *rows])
