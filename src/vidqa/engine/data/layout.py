"""The row of every token of a pack: one sample after the other, each shared prefix once, then suffixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vidqa.engine.model.attention import Segments, segments_of
from vidqa.engine.model.suffixes import Suffixes, suffixes_of
from vidqa.planning.prefix_sharing import PrefixGroup, prefix_groups
from vidqa.planning.samples import Sample


@dataclass(frozen=True)
class Layout:
    """The layout of a pack. `units` are indices of the samples, longest first; `rows[i]` is int64 [S], the row of each
    token of sample i. `total` counts rows, including padding."""

    units: tuple[PrefixGroup, ...]
    rows: tuple[np.ndarray, ...]
    segments: Segments
    suffixes: Suffixes | None
    total: int

    @property
    def order(self) -> tuple[int, ...]:
        """The sample indices in the order of their units."""
        return tuple(number for unit in self.units for number in unit)


def prefixes_of(samples: Sequence[Sample], padded: Callable[[int], int], *, share: bool) -> dict[PrefixGroup, int]:
    """The units of a pack in their order, and the number of tokens of each among the segments: all tokens of a single
    sample, the prefix of samples that share one."""
    numbers = range(len(samples))
    units = prefix_groups(numbers, samples) if share else [(number,) for number in numbers]
    prefixes = {unit: samples[unit[0]].length if len(unit) == 1 else samples[unit[0]].prefix for unit in units}
    return dict(sorted(prefixes.items(), key=lambda item: -padded(item[1])))


def prefix_lengths(prefixes: Mapping[PrefixGroup, int], padded: Callable[[int], int]) -> list[int]:
    """The number of rows of each prefix; an empty pack has one prefix."""
    return [padded(prefix) for prefix in prefixes.values()] or [padded(1)]


def lay_out(
    samples: Sequence[Sample],
    padded: Callable[[int], int],
    *,
    share: bool,
    count_bits: int | None = None,
    ranks: int = 1,
) -> Layout:
    """Lay out one pack. With `share`, samples with a common prefix store it once; `count_bits` as in `segments_of`. The
    number of rows is a multiple of `ranks`: padding at the end is a suffix without a prefix, which sees only itself."""
    prefixes = prefixes_of(samples, padded, share=share)
    units = list(prefixes)
    lengths = prefix_lengths(prefixes, padded)
    starts = np.cumsum([0, *lengths])
    rows: list[np.ndarray] = [np.zeros(0, np.int64)] * len(samples)
    shared, suffixes, end = [], list[int](), int(starts[-1])
    for unit, start in zip(units, starts, strict=False):
        prefix, first = np.arange(start, start + prefixes[unit]), end
        for number in unit:
            own = samples[number].length - prefixes[unit]
            rows[number] = np.concatenate([prefix, np.arange(end, end + own)])
            end += own
            if len(unit) > 1:
                suffixes.append(own)
        if len(unit) > 1:
            shared.append((int(start), len(prefix), end - first))
    if missing := -end % ranks:
        suffixes.append(missing)
        end += missing
    behind = suffixes_of(shared, suffixes) if suffixes else None
    return Layout(tuple(units), tuple(rows), segments_of(lengths, count_bits=count_bits), behind, end)
