"""Where every token of a pack stands: samples side by side, shared beginnings once, tails behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vidqa.engine.model.attention import Segments, Tails, segments_of
from vidqa.planning.packing.sharing import Unit, groups
from vidqa.planning.samples import Sample


@dataclass(frozen=True)
class Layout:
    """`units` are places in the given samples, longest first; `rows[i]` is int64 [S], the row of the pack for each
    token of sample i. `total` counts rows, padding among them."""

    units: tuple[Unit, ...]
    rows: tuple[np.ndarray, ...]
    segments: Segments
    tails: Tails | None
    total: int

    @property
    def order(self) -> tuple[int, ...]:
        """The samples in the order of their units."""
        return tuple(number for unit in self.units for number in unit)


def heads_of(samples: Sequence[Sample], padded: Callable[[int], int], *, share: bool) -> dict[Unit, int]:
    """The units of a pack in their order, and the tokens that stand among the segments: of a sample that shares nothing
    all, of samples that share a beginning that beginning."""
    numbers = range(len(samples))
    found = groups(numbers, samples) if share else [(number,) for number in numbers]
    heads = {unit: samples[unit[0]].length if len(unit) == 1 else samples[unit[0]].prefix for unit in found}
    return dict(sorted(heads.items(), key=lambda item: -padded(item[1])))


def head_lengths(heads: Mapping[Unit, int], padded: Callable[[int], int]) -> list[int]:
    """The rows that each head takes; an empty pack has one."""
    return [padded(head) for head in heads.values()] or [padded(1)]


def lay_out(
    samples: Sequence[Sample], padded: Callable[[int], int], *, share: bool, digits: int | None = None
) -> Layout:
    """A layout of one pack. With `share`, samples of one prefix keep it once; `digits` as in `segments_of`."""
    heads = heads_of(samples, padded, share=share)
    found = list(heads)
    lengths = head_lengths(heads, padded)
    starts = np.cumsum([0, *lengths])
    rows: list[np.ndarray] = [np.zeros(0, np.int64)] * len(samples)
    tails, end = [], int(starts[-1])
    for unit, start in zip(found, starts, strict=False):
        head = np.arange(start, start + heads[unit])
        for number in unit:
            own = samples[number].length - heads[unit]
            rows[number] = np.concatenate([head, np.arange(end, end + own)])
            end += own
            if len(unit) > 1:
                tails.append((rows[number], own))
    return Layout(tuple(found), tuple(rows), segments_of(lengths, digits=digits), _tails(tails), end)


def _tails(tails: Sequence[tuple[np.ndarray, int]]) -> Tails | None:
    """From (rows seen, own tokens) of each tail; a tail sees exactly the rows of its sample."""
    if not tails:
        return None
    lengths = tuple((own, len(seen)) for seen, own in tails)
    query_bounds, key_bounds = (
        torch.tensor(np.cumsum([0, *column]), dtype=torch.int32) for column in zip(*lengths, strict=True)
    )
    return Tails(torch.from_numpy(np.concatenate([seen for seen, _ in tails])), lengths, query_bounds, key_bounds)
