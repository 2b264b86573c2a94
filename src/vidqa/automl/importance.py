"""How much of what trials reached goes with each parameter, and where they lie on its axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from vidqa.automl.history import Entry
from vidqa.automl.parameters import Parameter
from vidqa.automl.space import Space

PARTS = 3  # of a range of numbers
FEWEST = 6  # trials; with less, everything looks important


def importance(space: Space, trials: Sequence[Entry]) -> dict[str, float]:
    """For each parameter the share 0..1 of the ranks' variance that lies between the parts of its range, corrected for
    what chance alone gives (omega squared). Ranks, since one diverged trial would outweigh all others. Empty for few
    trials: this is a look at what was tried, not a proof."""
    if len(trials) < FEWEST:
        return {}
    order = sorted(trials, key=lambda entry: entry.objective or 0.0)
    ranks = {entry.number: float(place) for place, entry in enumerate(order)}
    found = {each.name: _share(each, trials, ranks) for each in space.parameters}
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _share(parameter: Parameter, trials: Sequence[Entry], ranks: dict[int, float]) -> float:
    groups: dict[Any, list[float]] = defaultdict(list)
    for entry in trials:
        groups[_part(parameter, entry)].append(ranks[entry.number])
    every = [rank for group in groups.values() for rank in group]
    middle, left = fmean(every), len(every) - len(groups)
    total = sum((rank - middle) ** 2 for rank in every)
    if len(groups) < 2 or not left or not total:
        return 0.0
    between = sum(len(group) * (fmean(group) - middle) ** 2 for group in groups.values())
    within = (total - between) / left
    return round(max(0.0, (between - (len(groups) - 1) * within) / (total + within)), 4)


def _part(parameter: Parameter, entry: Entry) -> Any:
    """The part of the range that a trial is in; a parameter that does not apply there is a part of its own."""
    if parameter.name not in entry.values:
        return None
    place = parameter.unit(entry.values[parameter.name])
    return round(place, 6) if parameter.options else min(int(place * PARTS), PARTS - 1)


def coordinates(space: Space, entry: Entry) -> list[float | None]:
    """Where a trial lies on the axis of each parameter, 0..1; None where one does not apply."""
    return [each.unit(entry.values[each.name]) if each.name in entry.values else None for each in space.parameters]
