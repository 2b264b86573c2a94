"""Which records a run works on, by set: "train" and "validation" of a training, "evaluation" of an evaluation.

Preflight and the engine read them by the same rule; each says with a `Read` of its own what becomes of problems.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset import load_records, split_by_video
from vidqa.dataset.reader import annotation_file
from vidqa.dataset.record import Record


@dataclass(frozen=True)
class Source:
    """The annotations of one set, as the spec writes them. With `keep_missing` a record whose medium is not there is a
    bad sample and not an error."""

    name: str
    annotation_path: str
    media_path: str
    keep_missing: bool


@dataclass(frozen=True)
class RecordSet:
    """One set of records, and what is wrong with others of its annotations."""

    name: str
    records: list[Record]
    problems: list[Problem]


Read = Callable[[Source], RecordSet]


def sources(spec: Any) -> list[Source]:
    """The annotations that a spec names."""
    without = spec.engine.on_bad_sample == "quarantine"
    if not hasattr(spec, "custom"):
        return [Source("evaluation", spec.dataset.annotation_path, spec.dataset.media_dir, without)]
    tables = {"train": spec.custom.train_dataset, "validation": spec.custom.val_dataset}
    return [
        Source(name, table.annotation_path, table.media_path, without)
        for name, table in tables.items()
        if name == "train" or table.annotation_path
    ]


def looked_in(spec: Any) -> list[Path]:
    """Where media are looked for, one for each source: a folder, or an archive."""
    places = []
    for source in sources(spec):
        place = source.media_path or annotation_file(source.annotation_path).parent
        places.append(Path(os.path.abspath(os.path.expanduser(place))))
    return places


def record_sets(spec: Any, read: Read) -> list[RecordSet]:
    """The sets of a run: what `read` gives of each source. A training without validation annotations may hold a part
    out of its own, by video; of an evaluation the first `limit` records count."""
    found = [read(source) for source in sources(spec)]
    if not hasattr(spec, "custom"):
        limit = spec.evaluation.limit
        return [replace(part, records=part.records[:limit]) for part in found] if limit >= 0 else found
    policy = spec.train.train_policy
    if len(found) > 1 or not policy.dataset.test_size or not found[0].records:
        return found
    (whole,) = found
    try:
        train, held = split_by_video(whole.records, policy.dataset.test_size, policy.dataloader_seed)
    except ProblemError as impossible:
        return [replace(whole, problems=[*whole.problems, *impossible.problems])]
    return [replace(whole, records=train), RecordSet("validation", held, [])]


def load_sets(spec: Any) -> dict[str, list[Record]]:
    """The records of a run by set. Raises ProblemError where annotations are wrong, or cannot be split."""

    def read(source: Source) -> RecordSet:
        records = load_records(source.annotation_path, source.media_path, keep_missing=source.keep_missing)
        return RecordSet(source.name, records, [])

    found = record_sets(spec, read)
    if problems := [problem for part in found for problem in part.problems]:
        raise ProblemError(problems)
    return {part.name: part.records for part in found}
