"""Correction of annotations into a new file: only changes that can be explained one by one, never in place."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core import actions
from vidqa.core.files import link_or_copy, objects_in, write_json
from vidqa.core.problem import Problem, raise_errors
from vidqa.data import problems as codes
from vidqa.data.claims import fps_differs
from vidqa.data.conversation import KINDS, ROLES, TAG, turns_field
from vidqa.data.foreign_rows import is_json
from vidqa.data.load import Pair, named_by_path
from vidqa.data.media import MediaSource
from vidqa.data.parse import RowReader
from vidqa.data.problems import ProblemCollector
from vidqa.data.record import MediaRef, Record, media_by_key
from vidqa.data.sources import open_source
from vidqa.data.storage import stage_set
from vidqa.preflight import media_probe
from vidqa.spec.keys import value_at
from vidqa.video.probe import probe_many
from vidqa.video.types import VideoMeta

SHOWN = 100  # most changes in the list; all are counted
# Role names of other programs, in lower case.
OTHER_ROLES = {"bot": "gpt", "model": "gpt", "ai": "gpt", "chatgpt": "gpt", "answer": "gpt", "question": "human"}
Row = dict[str, Any]


@dataclass
class FixReport:
    """The result of a correction: paths, counts, every change with its place in the original file, and the spec's keys
    that use the new file and find its media."""

    path: Path
    original: Path
    settings: dict[str, str]
    records: int = 0
    dropped: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    changes: list[str] = field(default_factory=list)

    def note(self, what: str, place: str, text: str) -> None:
        self.counts[what] += 1
        if len(self.changes) < SHOWN:
            self.changes.append(f"{place}: {text}")

    def leave_out(self, place: str, why: str) -> None:
        self.dropped += 1
        self.note("left out", place, f"left out: {why}")

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"path": str(self.path), "original": str(self.original), "counts": dict(self.counts)}

    @property
    def text(self) -> str:
        more = self.counts.total() - len(self.changes)
        rest = [f"... and {more} more"] if more else []
        head = f"wrote {self.path}: {self.records} records of {self.original}, {self.dropped} left out"
        return "\n".join([head, *(f"  {line}" for line in [*self.changes, *rest])])


def fix_annotations(spec_path: Path, action: str, target: Path) -> FixReport:
    """Correct the annotations that a spec trains on or evaluates and write them to `target` as a JSON list.

    Roles get their standard names, tags are set to the media that a record lists, missing ids are added and repeated
    ones changed, a wrong video_fps is replaced by the file's, and non-JSON fields are dropped; records that remain
    invalid, or whose media are missing or broken, are left out. Raises OUTPUT_EXISTS, DATA_EMPTY if no record is
    usable, and the problems of reading the spec and the file.
    """
    if target.exists():
        raise codes.OUTPUT_EXISTS.error(target, "a file of this name exists already", "give a new file with --fix")
    run_spec, (data, *_) = spec.load(spec_path, action), actions.action(action).data
    source = open_source(*stage_set(value_at(run_spec, data.annotations), value_at(run_spec, data.media)))
    original = source.path
    findings = ProblemCollector(str(original))
    rows = list(source.rows(findings))
    if not rows:
        raise_errors(findings.problems)
    fixed = FixReport(target, original, {data.annotations: str(target.absolute())})
    if not value_at(run_spec, data.media) and not source.media.in_tables:
        fixed.settings[data.media] = source.media.root
    for unread in findings.problems:
        fixed.leave_out(unread.where, unread.message)
    fixer = _RowFixer(replace(source.media, closed=False), fixed, _broken_before(spec_path))
    good_rows = fixer.fix_rows(rows)
    if not good_rows:
        remedy = "read the problems of the data group: often all have one cause, such as a wrong media path"
        raise codes.EMPTY.error(original, f"none of {len(rows)} records can be used", remedy)
    fixed.records = len(good_rows)
    write_json(target, good_rows)
    return fixed


def _broken_before(spec_path: Path) -> dict[tuple[str, str | None], str]:
    """Messages about broken files in the last preflight, if they have not changed since."""
    rows = media_probe.read_rows(media_probe.place_for(spec_path)).values()
    return {
        (row.path, row.member): row.message
        for row in rows
        if row.code and row.content_key == media_probe.content_key(row.path)
    }


class _RowFixer:
    """Fixes rows one by one, and probes their media; `broken` are messages about files by path and member."""

    def __init__(self, source: MediaSource, fixed: FixReport, broken: dict[tuple[str, str | None], str]) -> None:
        self.source, self.fixed, self.name, self.broken = source, fixed, fixed.original.name, broken
        self.used_ids: set[str] = set()

    def fix_rows(self, rows: list[tuple[int, Any]]) -> list[Row]:
        self.reserved_ids = {str(row["id"]) for _, row in rows if isinstance(row, dict) and _has_id(row)}
        results = [(index, row, self._fix(row, index)) for index, row in rows]
        self.source.unpack()
        media = media_by_key(result for *_, result in results if isinstance(result, Record))
        self.headers = dict(zip(media, probe_many(media.values()), strict=True))
        good_rows = []
        for index, row, result in results:
            record = result if isinstance(result, str) else self._broken(result) or result
            if isinstance(record, str):
                self.fixed.leave_out(self._place(index), record)
            else:
                self._set_fps(row, record, self._place(index))
                self._set_id(row, index)
                good_rows.append(self._for_json(Pair(row, record), self._place(index)))
        return good_rows

    def _place(self, index: int) -> str:
        return f"{self.name}[{index}]"

    def _fix(self, row: Any, index: int) -> Record | str:
        """Change a row; returns its record, or the reason why it has none."""
        for what, code, repair in REPAIRS if isinstance(row, dict) else ():
            codes_here = {problem.code for problem in self._read(row, index)[1]}
            if code in codes_here and (change := repair(row)):
                self.fixed.note(what, self._place(index), change)
        record, problems = self._read(row, index)
        if problems or record is None:
            return f"{problems[0].code}: {problems[0].message}" if problems else "it contains no record"
        return record

    def _read(self, row: Any, index: int) -> tuple[Record | None, list[Problem]]:
        findings = ProblemCollector(self.name)
        named = {**row, "id": row["id"] if _has_id(row) else str(index)} if isinstance(row, dict) else row
        record = RowReader(self.name, self.source, findings).read(index, named)
        return record, [problem for problem in findings.problems if problem.severity == "error"]

    def _broken(self, record: Record) -> str:
        """The reason why the record's media are broken, or ""."""
        for ref in record.media:
            header = self.headers[ref.key]
            why = self.broken.get((ref.path, ref.member)) or (header[0].message if isinstance(header, list) else "")
            if why:
                return f"{ref.written}: {why}"
        return ""

    def _set_fps(self, row: Row, record: Record, place: str) -> None:
        meta = self.headers[record.media[0].key] if len(record.media) == 1 else None
        if isinstance(meta, VideoMeta) and fps_differs(meta, record.video_fps):
            right = round(meta.source_fps, 3)
            self.fixed.note("video_fps", place, f"video_fps {row['video_fps']} -> {right}, the file's")
            row["video_fps"] = right

    def _for_json(self, pair: Pair, place: str) -> Row:
        """The row for a JSON file: without non-JSON values, and with media named by their paths."""
        row = pair.row
        if self.source.in_tables or self.source.named is not None:
            media = tuple(map(self._outside_cache, pair.record.media))
            row = named_by_path(Pair(row, replace(pair.record, media=media)), self.source.root).row
        for name in [name for name, value in row.items() if not is_json(value)]:
            self.fixed.note("field", place, f"{name} left out: it is not JSON")
            row = {field: value for field, value in row.items() if field != name}
        return row

    def _outside_cache(self, ref: MediaRef) -> MediaRef:
        """A medium of a table beside the new file, because the cache may be emptied; any other as it is."""
        if not self.source.in_tables or ref.path != os.path.join(self.source.root, ref.written):
            return ref
        path = self.fixed.path.absolute().parent / "media" / ref.written  # named by content
        if not path.exists():
            link_or_copy(ref.path, path)
        return replace(ref, path=str(path))

    def _set_id(self, row: Row, index: int) -> None:
        written = str(row["id"]) if _has_id(row) else None
        if written is None or written in self.used_ids:
            new = base = str(index) if written is None else f"{written}-{index}"
            while new in self.reserved_ids:
                new += "-" + base
            change = f"id {new!r} given" if written is None else f"id {written!r}, repeated -> {new!r}"
            self.fixed.note("id", self._place(index), change)
            row["id"] = written = new
            self.reserved_ids.add(new)
        self.used_ids.add(written)


def _turns(row: Row) -> list[Row]:
    return objects_in(row.get(turns_field(row)))


def _name_roles(row: Row) -> str | None:
    changes = []
    for turn in _turns(row):
        key = "from" if "from" in turn else "role"
        role = turn.get(key)
        small = role.strip().lower() if isinstance(role, str) else ""
        right = small if small in ROLES else OTHER_ROLES.get(small)
        if right and right != role:
            changes.append(f"{role!r} -> {right!r}")
            turn[key] = right
    return "role " + ", ".join(dict.fromkeys(changes)) if changes else None


def _set_tags(row: Row) -> str | None:
    """Set one tag for each listed medium, at the start of the first question, as in most data sets."""
    tags = "".join(f"<{kind}>\n" * len(_listed(row, kind)) for kind in KINDS)
    questions = [turn for turn in _turns(row) if ROLES.get(str(turn.get("from", turn.get("role")))) == "user"]
    texts = [(turn, "value" if "value" in turn else "content") for turn in questions]
    if not texts or not all(isinstance(turn.get(key), str) for turn, key in texts):
        return None
    for turn, key in texts:
        turn[key] = TAG.sub("", turn[key]).strip()
    turn, key = texts[0]
    turn[key] = tags + turn[key]
    return f"tags set to {tags.split()}"


def _listed(row: Row, kind: str) -> list[Any]:
    values = [row[name] for name in (kind, f"{kind}s") if row.get(name) is not None]
    return [name for value in values for name in (value if isinstance(value, list) else [value])]


# The repaired part, the code of its problem, and the function that changes the row and describes the change.
REPAIRS: tuple[tuple[str, str, Callable[[Row], str | None]], ...] = (
    ("role", codes.FIELD.name, _name_roles),
    ("tags", codes.TAG_COUNT.name, _set_tags),
)


def _has_id(row: Row) -> bool:
    return row.get("id") is not None and row["id"] != ""
