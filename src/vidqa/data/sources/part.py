"""A split of a source that is one list of rows: annotations.json#train[:100], questions.csv#[10%:20%]."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial

from vidqa.data.data_files import require_split_of
from vidqa.data.problem_collector import ProblemCollector
from vidqa.data.problems import EMPTY
from vidqa.data.sources._base import Rows, Source
from vidqa.data.split_syntax import cut_rows, subset_and_cuts


def part_of(source: Source, part: str) -> Source:
    """The source with the rows of `part` alone, which keep their indices; with all rows where `part` is empty.

    Raises DATA_SPLIT for a subset, and for a split that is not the one which the file holds.
    """
    if not part:
        return source
    subset, cuts = subset_and_cuts(part, str(source.path))
    for cut in cuts:
        require_split_of(source.path, subset, cut.name)

    def rows(collector: ProblemCollector) -> Rows:
        count = 0
        for cut in cuts:
            for row in cut_rows(cut, partial(_count, source), partial(source.rows, collector)):
                count += 1
                yield row
        if not count and not collector.errors:
            collector.add(EMPTY, str(source.path), f"no row of {part} is there")

    def fingerprint() -> str:
        return hashlib.sha256(repr((source.fingerprint(), [cut[1:] for cut in cuts])).encode()).hexdigest()

    return replace(source, rows=rows, fingerprint=fingerprint)


def _count(source: Source) -> int:
    return sum(1 for _ in source.rows(ProblemCollector(str(source.path))))
