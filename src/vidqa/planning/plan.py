"""The plan of a run: its records by set, long videos cut into windows, their samples, and the usable ones of these.

The sets are those that an action declares: "train" and "validation", or "evaluation". Preflight and the engine share
this rule; each passes a `Read` that handles problems differently.

    cut_into_windows(records, 30.0, 5.0)     0 to 30 s, 25 to 55 s, 50 to 80 s, ...

A window of a video is planned as if it had been cut out as a clip: its frames are spread over the window alone, and its
timestamps begin at 0, as in the clips that a model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vidqa.core.actions import action_for, resolve
from vidqa.core.files import absolute
from vidqa.core.problem import Problem, ProblemError
from vidqa.data import fingerprint, load_records, open_source, split_by_video
from vidqa.data.problems import shown_names
from vidqa.data.record import MediaRef, Record
from vidqa.families.problems import SAMPLE_ANSWERS
from vidqa.planning.pairs import learns_pairs, plan_pairs
from vidqa.planning.samples import Planner, Sample
from vidqa.spec.keys import value_at
from vidqa.spec.models import Spec
from vidqa.video.probe import probe_many
from vidqa.video.types import VideoMeta

MARK = "#t="  # separates a record's id from its window
Span = tuple[float, float]


@dataclass(frozen=True)
class SetSource:
    """The annotations of one set, as the spec writes them. With `keep_missing` a record with a missing medium is a bad
    sample and not an error. `prompt` is the question of records without one."""

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
    return [absolute(place) for place in places]


def read_record_sets(spec: Spec, read: Read) -> list[RecordSet]:
    """Read the sets of a run, one per source. The second set may be held out of the first, by video; if the action has
    no second set, the held-out part is dropped. A limit takes the first records; long videos are cut into windows."""
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
    """Load the records of a run by set. Raises ProblemError if annotations are wrong, or cannot be split."""

    def read(source: SetSource) -> RecordSet:
        return RecordSet(source.name, load_records(source.annotation_path, source.media_path, **source.how), [])

    record_sets = read_record_sets(spec, read)
    if problems := [problem for part in record_sets for problem in part.problems]:
        raise ProblemError(problems)
    return {part.name: part.records for part in record_sets}


def cut_into_windows(records: Sequence[Record], window_s: float, overlap_s: float) -> list[Record]:
    """Cut the records that show only one video, if it is longer than `window_s` seconds, into windows; 0 cuts none. A
    video whose header cannot be read is left whole; planning reports its problem."""
    if not window_s:
        return list(records)
    single = {record.media[0].file: record.media[0] for record in records if _is_one_video(record)}
    headers = zip(single, probe_many(single.values()), strict=True)
    durations = {file: header.duration_s for file, header in headers if isinstance(header, VideoMeta)}
    cut_records = []
    for record in records:
        whole = durations.get(record.media[0].file, 0.0) if _is_one_video(record) else 0.0
        start, end = _shown_span(record.media[0], whole) if whole else (0.0, 0.0)
        cut = window_spans(end - start, window_s, overlap_s)
        cut_records += [_part(record, (start + first, start + last)) for first, last in cut] or [record]
    return cut_records


def _shown_span(ref: MediaRef, duration_s: float) -> Span:
    """The part of a video that the record's own keys select, in seconds of the file."""
    keys = dict(ref.keys)
    return min(keys.get("video_start", 0.0), duration_s), min(keys.get("video_end", duration_s), duration_s)


def window_spans(duration_s: float, window_s: float, overlap_s: float) -> list[Span]:
    """The windows of a video, in seconds; empty if one window covers it. The last one ends with the video."""
    if duration_s <= window_s:
        return []
    windows = [(0.0, window_s)]
    while windows[-1][1] < duration_s:
        start = len(windows) * (window_s - overlap_s)
        windows.append((start, min(start + window_s, duration_s)))
    return windows


def source_id(record: Record) -> str:
    """The id of the record that a window was cut from; for any other record, its own id."""
    return record.id.rpartition(MARK)[0] if window_of(record) else record.id


def window_of(record: Record) -> Span | None:
    """The window of a record, in seconds of the file."""
    return record.media[0].span if record.media else None


def _is_one_video(record: Record) -> bool:
    return len(record.media) == 1 and record.media[0].kind == "video"


def _part(record: Record, span: Span) -> Record:
    medium: MediaRef = replace(record.media[0], span=span)
    start, end = span
    return replace(record, id=f"{record.id}{MARK}{start:.10g},{end:.10g}", media=(medium,))


@dataclass(frozen=True)
class PlannedSet:
    """All records of a set, the samples of the valid ones in the same order, and the problems of the others."""

    records: Sequence[Record]
    samples: Sequence[Sample]
    problems: list[Problem]


@dataclass(frozen=True)
class Plan:
    """The sets of a run by name; `data_fingerprint` is a hash of all their records."""

    sets: dict[str, PlannedSet]
    data_fingerprint: str


def response_mode(spec: Spec, name: str) -> str | None:
    """The response mode of a set; None for the planner's."""
    sampling = action_for(spec).sampling
    mode = sampling.modes.get(name) if sampling else None
    return resolve(mode)(spec) if mode else None


def make_plan(spec: Spec, planner: Planner, records: Mapping[str, list[Record]]) -> Plan:
    """Plan the sets of a run (records as `load_sets` returns them)."""
    sets = {}
    for name, records_of_set in records.items():
        plan = partial(plan_pairs, planner) if learns_pairs(spec) else planner.plan
        samples, problems = plan(records_of_set, response_mode(spec, name))
        sets[name] = PlannedSet(records_of_set, samples, problems)
    return Plan(sets, fingerprint(record for records_of_set in records.values() for record in records_of_set))


def usable(samples: Sequence[Sample], longest: int, *, trained: bool) -> list[Sample]:
    """Samples of at most `longest` tokens; with `trained` only those with a supervised token. None is truncated."""
    return [sample for sample in samples if sample.length <= longest and (sample.supervised or not trained)]


def too_long(samples: Sequence[Sample], longest: int) -> list[Sample]:
    return [sample for sample in samples if sample.length > longest]


def without_labels(samples: Sequence[Sample]) -> list[Problem]:
    """SAMPLE_ANSWERS for every training sample without a supervised token."""
    return [SAMPLE_ANSWERS.at(s.record.place, "it has no trained token") for s in samples if not s.supervised]


def unmeasured(samples: Sequence[Sample]) -> list[Problem]:
    """SAMPLE_ANSWERS, a warning with the ids of validation samples without a supervised token."""
    ids = [sample.record.id for sample in samples if not sample.supervised]
    message = f"{len(ids)} of {len(samples)} samples have no answer token, so no loss: {shown_names(ids)}"
    return [SAMPLE_ANSWERS.at("validation", message, severity="warning")] if ids else []
