"""Split syntax as Hugging Face's `datasets` has it: train, train[:100], train[10%:20%], train+test[-5:]."""

from __future__ import annotations

import re
from typing import NamedTuple

from vidqa.data.problems import SPLIT

ONE = re.compile(r"(?P<name>[\w.-]*)(?:\[(?P<low>-?\d+%?)?:(?P<high>-?\d+%?)?\])?")


class Cut(NamedTuple):
    """Rows of one split: `low` and `high` as they are written, a number or a share such as "10%", None where left out.
    `name` is empty where the only split is meant."""

    name: str
    low: str | None
    high: str | None

    def range_of(self, rows: int) -> range:
        """The places of its rows among `rows`. Shares are rounded to the nearest row, half of one to the even one."""
        return range(rows)[slice(_bound(self.low, rows), _bound(self.high, rows))]

    @property
    def needs_count(self) -> bool:
        """Whether a bound is counted from the end, or is a share."""
        return any(bound.startswith("-") or bound.endswith("%") for bound in (self.low, self.high) if bound)


def _bound(written: str | None, rows: int) -> int | None:
    if written is None:
        return None
    if not written.endswith("%"):
        return int(written)
    share = int(written[:-1])
    place = round(abs(share) * rows / 100)
    return max(0, rows - place) if share < 0 else min(rows, place)


def subset_and_cuts(part: str, where: str) -> tuple[str, list[Cut]]:
    """`robovqa:train[:9]+test` -> ("robovqa", two cuts). Raises DATA_SPLIT for what is no such syntax."""
    subset, _, splits = part.partition(":") if re.match(r"[\w.-]+:", part) else ("", "", part)
    cuts = []
    for written in splits.split("+") if splits else [""]:
        match = ONE.fullmatch(written.strip())
        if match is None:
            example = "train, train[:100], train[10%:20%], train+test, or SUBSET:train"
            raise SPLIT.error(where, f"{part!r} is no split: it is written as {example}")
        cuts.append(Cut(match["name"], match["low"], match["high"]))
    return subset, cuts
