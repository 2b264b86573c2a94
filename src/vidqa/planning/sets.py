"""Which records a run works on, by the sets that its action declares: "train" and "validation", or "evaluation".

Preflight and the engine read them by the same rule; each says with a `Read` of its own what becomes of problems.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.actions import action_for
from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset import load_records, split_by_video
from vidqa.dataset.reader import annotation_file
from vidqa.dataset.record import Record
from vidqa.spec.keys import value_at


@dataclass(frozen=True)
class Source:
    """The annotations of one set, as the spec writes them. With `keep_missing` a record whose medium is not there is a
    bad sample and not an error."""

    name: str
    annotation_path: str
    media_path: str
    keep_missing: bool = False
    need_answers: bool = True


@dataclass(frozen=True)
class RecordSet:
    """One set of records, and what is wrong with others of its annotations."""

    name: str
    records: list[Record]
    problems: list[Problem]


Read = Callable[[Source], RecordSet]


def quarantines(spec: Any) -> bool:
    """Whether a run goes on without a sample that cannot be used."""
    table = action_for(spec).decoding
    return bool(table) and value_at(spec, table).on_bad_sample == "quarantine"


def sources(spec: Any) -> list[Source]:
    """The annotations that a spec names."""
    action, without = action_for(spec), quarantines(spec)
    found = [(data.name, value_at(spec, data.annotations), value_at(spec, data.media)) for data in action.data]
    return [Source(*each, without, action.needs_answers) for each in found if each[1]]


def looked_in(spec: Any) -> list[Path]:
    """Where media are looked for, one for each source: a folder, or an archive. Raises DATA_FILE_MISSING."""
    places = [each.media_path or annotation_file(each.annotation_path).parent for each in sources(spec)]
    return [Path(os.path.abspath(os.path.expanduser(place))) for place in places]


def record_sets(spec: Any, read: Read) -> list[RecordSet]:
    """The sets of a run: what `read` gives of each source. The second one may be held out of the first, by video; where
    the action has a limit, the first records count."""
    found, action = [read(source) for source in sources(spec)], action_for(spec)
    if action.sampling is None:
        return found
    limit = action.sampling.limit(spec)
    found = [replace(part, records=part.records[:limit]) for part in found]
    held_out = action.sampling.held_out(spec)
    if not held_out or not found[0].records:
        return found
    (whole,) = found
    try:
        first, held = split_by_video(whole.records, *held_out)
    except ProblemError as impossible:
        return [replace(whole, problems=[*whole.problems, *impossible.problems])]
    return [replace(whole, records=first), RecordSet(action.data[1].name, held, [])]


def load_sets(spec: Any) -> dict[str, list[Record]]:
    """The records of a run by set. Raises ProblemError where annotations are wrong, or cannot be split."""

    def read(source: Source) -> RecordSet:
        how = {"need_answers": source.need_answers, "keep_missing": source.keep_missing}
        return RecordSet(source.name, load_records(source.annotation_path, source.media_path, **how), [])

    found = record_sets(spec, read)
    if problems := [problem for part in found for problem in part.problems]:
        raise ProblemError(problems)
    return {part.name: part.records for part in found}
