"""Where every token of a pack stands: samples side by side, shared prefixes once, suffixes behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vidqa.engine.model.attention import Segments, Suffixes, segments_of
from vidqa.planning.packing.sharing import Unit, groups
from vidqa.planning.samples import Sample


@dataclass(frozen=True)
class Layout:
    """`units` are places in the given samples, longest first; `rows[i]` is int64 [S], the row of the pack for each
    token of sample i. `total` counts rows, padding among them."""

    units: tuple[Unit, ...]
    rows: tuple[np.ndarray, ...]
    segments: Segments
    suffixes: Suffixes | None
    total: int

    @property
    def order(self) -> tuple[int, ...]:
        """The samples in the order of their units."""
        return tuple(number for unit in self.units for number in unit)


def prefixes_of(samples: Sequence[Sample], padded: Callable[[int], int], *, share: bool) -> dict[Unit, int]:
    """The units of a pack in their order, and how many tokens of each stand among the segments: all of a single sample,
    the prefix of samples that share one."""
    numbers = range(len(samples))
    found = groups(numbers, samples) if share else [(number,) for number in numbers]
    prefixes = {unit: samples[unit[0]].length if len(unit) == 1 else samples[unit[0]].prefix for unit in found}
    return dict(sorted(prefixes.items(), key=lambda item: -padded(item[1])))


def prefix_lengths(prefixes: Mapping[Unit, int], padded: Callable[[int], int]) -> list[int]:
    """The rows that each prefix takes; an empty pack has one."""
    return [padded(prefix) for prefix in prefixes.values()] or [padded(1)]


def lay_out(
    samples: Sequence[Sample],
    padded: Callable[[int], int],
    *,
    share: bool,
    count_bits: int | None = None,
    ranks: int = 1,
) -> Layout:
    """A layout of one pack. With `share`, samples of one prefix keep it once; `count_bits` as in `segments_of`. `ranks`
    divides its rows: padding at the end sees itself, as a suffix of nothing."""
    prefixes = prefixes_of(samples, padded, share=share)
    found = list(prefixes)
    lengths = prefix_lengths(prefixes, padded)
    starts = np.cumsum([0, *lengths])
    rows: list[np.ndarray] = [np.zeros(0, np.int64)] * len(samples)
    suffixes, end = [], int(starts[-1])
    for unit, start in zip(found, starts, strict=False):
        prefix = np.arange(start, start + prefixes[unit])
        for number in unit:
            own = samples[number].length - prefixes[unit]
            rows[number] = np.concatenate([prefix, np.arange(end, end + own)])
            end += own
            if len(unit) > 1:
                suffixes.append((rows[number], own))
    if missing := -end % ranks:
        suffixes.append((np.arange(end, end + missing), missing))
        end += missing
    return Layout(tuple(found), tuple(rows), segments_of(lengths, count_bits=count_bits), _suffixes(suffixes), end)


def _suffixes(found: Sequence[tuple[np.ndarray, int]]) -> Suffixes | None:
    """From (rows seen, own tokens) of each suffix; a suffix sees exactly the rows of its sample."""
    if not found:
        return None
    lengths = tuple((own, len(seen)) for seen, own in found)
    query_bounds, key_bounds = (
        torch.tensor(np.cumsum([0, *column]), dtype=torch.int32) for column in zip(*lengths, strict=True)
    )
    return Suffixes(torch.from_numpy(np.concatenate([seen for seen, _ in found])), lengths, query_bounds, key_bounds)
