"""Which records a run works on, by the sets that its action declares: "train" and "validation", or "evaluation".

Preflight and the engine share this rule; each passes a `Read` that handles problems in its own way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vidqa.core.actions import action_for
from vidqa.core.problem import Problem, ProblemError
from vidqa.data import load_records, open_source, split_by_video
from vidqa.data.record import Record
from vidqa.planning.windows import cut_into_windows
from vidqa.spec.keys import value_at
from vidqa.spec.models import Spec


@dataclass(frozen=True)
class SetSource:
    """The annotations of one set, as the spec writes them. With `keep_missing` a record with a missing medium is a bad
    sample and not an error. `prompt` is the question of a record without one."""

    name: str
    annotation_path: str
    media_path: str
    keep_missing: bool = False
    need_answers: bool = True
    prompt: str = ""

    @property
    def how(self) -> dict[str, Any]:
        """The options of `load_records`."""
        return {"need_answers": self.need_answers, "keep_missing": self.keep_missing, "prompt": self.prompt}


@dataclass(frozen=True)
class RecordSet:
    """The valid records of a set, and the problems of the others."""

    name: str
    records: list[Record]
    problems: list[Problem]


Read = Callable[[SetSource], RecordSet]


def leaves_out_bad_samples(spec: Spec) -> bool:
    """Whether a run continues without its bad samples (on_bad_sample = "quarantine")."""
    table = action_for(spec).decoding
    return bool(table) and value_at(spec, table).on_bad_sample == "quarantine"


def sources(spec: Spec) -> list[SetSource]:
    """The annotations that a spec names."""
    action, without = action_for(spec), leaves_out_bad_samples(spec)
    named = [(data.name, value_at(spec, data.annotations), value_at(spec, data.media)) for data in action.data]
    prompt = action.sampling.prompt(spec) if action.sampling else ""
    return [SetSource(*places, without, action.needs_answers, prompt) for places in named if places[1]]


def media_roots(spec: Spec) -> list[Path]:
    """The media folder or archive of each source. Raises DATA_FILE_MISSING."""
    places = [open_source(source.annotation_path, source.media_path).media.root for source in sources(spec)]
    return [Path(os.path.abspath(os.path.expanduser(place))) for place in places]


def read_record_sets(spec: Spec, read: Read) -> list[RecordSet]:
    """The sets of a run, one for each source. The second one may be held out of the first, by video; without a second
    set in the action that part is left out. A limit takes the first records; long videos are cut into windows."""
    record_sets, action = [read(source) for source in sources(spec)], action_for(spec)
    if action.sampling is None:
        return record_sets
    limit = action.sampling.limit(spec)
    seconds = action.sampling.windows(spec)
    record_sets = [replace(part, records=cut_into_windows(part.records[:limit], *seconds)) for part in record_sets]
    held_out = action.sampling.held_out(spec)
    if not held_out or not record_sets[0].records:
        return record_sets
    (whole,) = record_sets
    try:
        first, held = split_by_video(whole.records, *held_out)
    except ProblemError as impossible:
        return [replace(whole, problems=[*whole.problems, *impossible.problems])]
    return [replace(whole, records=first), *(RecordSet(data.name, held, []) for data in action.data[1:])]


def load_sets(spec: Spec) -> dict[str, list[Record]]:
    """The records of a run by set. Raises ProblemError where annotations are wrong, or cannot be split."""

    def read(source: SetSource) -> RecordSet:
        return RecordSet(source.name, load_records(source.annotation_path, source.media_path, **source.how), [])

    record_sets = read_record_sets(spec, read)
    if problems := [problem for part in record_sets for problem in part.problems]:
        raise ProblemError(problems)
    return {part.name: part.records for part in record_sets}
