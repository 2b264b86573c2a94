"""Where a model fails more than elsewhere: wrong answers by kind, tag, length, brightness, motion, place of the event.

Each slice has the number of its answers, how many are wrong, their share with its 95 % interval by video, and the lift:
that share by the share of all. Answers that were cut off or cannot be read are counted apart: they say nothing of what
the model knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vidqa.evaluation.gaps.scored_answers import Extra, Judged
from vidqa.evaluation.gaps.video_stats import Look
from vidqa.evaluation.intervals import accuracy_interval, video_clusters

FEWEST = 5  # answers of a slice that is listed
FEWEST_VIDEOS = 12  # that have a number, for slices by that number
MOST = 500  # slices that are kept, those with the highest lift first
THIRDS = ("first third", "middle third", "last third")


@dataclass(frozen=True)
class Slice:
    """`n` answers that could be read, `wrong` of them; `rate` their share with its limits; `lift` by that of all."""

    dimension: str
    name: str
    n: int
    videos: int
    wrong: int
    rate: float
    ci95: tuple[float, float]
    lift: float | None
    unanswered: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def slices_of(
    judged: Sequence[Judged], extras: Mapping[int, Extra], looks: Mapping[str, Look], clusters: Mapping[int, str]
) -> list[Slice]:
    """All slices, those that fail surely more than the whole first. `looks` are by video, `clusters` by the place of an
    answer in `judged`."""
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at, each in enumerate(judged):
        for place in _of_record(each, extras.get(each.row, Extra()), looks.get(each.video)):
            members[place].append(at)
        if at in clusters:
            members["cluster", clusters[at]].append(at)
    for place, chosen in _by_numbers(judged, looks):
        members[place] = chosen
    whole = _share(judged)
    found = [_slice(place, [judged[at] for at in chosen], whole) for place, chosen in members.items()]
    listed = [each for each in found if each.n >= FEWEST]
    return sorted(listed, key=lambda each: (-(each.ci95[0] / whole if whole else 0), -each.wrong, each.name))[:MOST]


def _share(judged: Sequence[Judged]) -> float:
    answers = [each for each in judged if each.is_answer]
    return sum(each.error == "wrong" for each in answers) / len(answers) if answers else 0.0


def _of_record(each: Judged, extra: Extra, look: Look | None) -> list[tuple[str, str]]:
    places = [("kind", each.kind), ("answer kind", each.answer_kind), *extra.tags]
    if extra.span and look and look.seconds > 0:
        middle = sum(extra.span) / 2 / look.seconds
        places.append(("place of the event", THIRDS[min(2, int(3 * middle))]))
    return [place for place in dict.fromkeys(places) if place[1]]


def _by_numbers(judged: Sequence[Judged], looks: Mapping[str, Look]) -> list[tuple[tuple[str, str], list[int]]]:
    """The answers by thirds of the videos' length, brightness and motion."""
    found = []
    for dimension, unit, scale, field in (
        ("length", " s", 1.0, "seconds"),
        ("brightness", " %", 100.0, "brightness"),
        ("motion", " %", 100.0, "motion"),
    ):
        values = {video: scale * getattr(look, field) for video, look in looks.items()}
        if len(values) < FEWEST_VIDEOS:
            continue
        low, high = (float(edge) for edge in np.quantile(sorted(values.values()), [1 / 3, 2 / 3]))
        if not low < high:
            continue
        names = (f"up to {low:.3g}{unit}", f"{low:.3g} to {high:.3g}{unit}", f"over {high:.3g}{unit}")
        for name, inside in zip(names, ((-1.0, low), (low, high), (high, np.inf)), strict=True):
            chosen = [at for at, each in enumerate(judged) if inside[0] < values.get(each.video, np.nan) <= inside[1]]
            if chosen:
                found.append(((dimension, name), chosen))
    return found


def _slice(place: tuple[str, str], inside: Sequence[Judged], whole: float) -> Slice:
    answers = [each for each in inside if each.is_answer]
    wrong = [each.error == "wrong" for each in answers]
    limits = accuracy_interval(wrong, [each.video for each in answers])
    rate = sum(wrong) / len(wrong) if wrong else 0.0
    return Slice(
        dimension=place[0],
        name=place[1],
        n=len(answers),
        videos=len(set(video_clusters(each.video for each in answers))),
        wrong=sum(wrong),
        rate=round(rate, 6),
        ci95=(limits.low, limits.high) if limits else (0.0, 1.0),
        lift=round(rate / whole, 4) if whole else None,
        unanswered=len(inside) - len(answers),
    )
