"""Turn one row of an annotation file into a record, or report all errors in it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from vidqa.data import problems
from vidqa.data.conversation import (
    KIND_FIELDS,
    KINDS,
    MOST,
    Slot,
    fill_slots,
    is_text,
    shows_media,
    tidy,
    turns_field,
    unused_in_record,
)
from vidqa.data.foreign_rows import unshown_options
from vidqa.data.media import MediaSource, NotFound
from vidqa.data.problems import ProblemCollector
from vidqa.data.reader import RepeatedKeyError, type_name
from vidqa.data.record import ORIGINS, MediaRef, Provenance, Record, Turn
from vidqa.data.row_findings import SHORT, Invalid, RowFindings
from vidqa.data.turns import Spoken, TurnReader

MOST_FPS = 1e5  # of a video
AS_TEXT = "the record has no `video` or `image` and is used as text only"
NO_MEDIUM = 'if that is not intended, add the file, for example "video": "clip-1.mp4"'


@dataclass
class RowReader:
    """Reader of the rows of one file; errors go to `collector`. Ids must be unique among its rows and those of `ids`,
    the ids of earlier files with their row numbers.

    If the collector needs answers, every conversation must end with an assistant turn; else a question is enough: in a
    conversation, in the field `question`, or `prompt` for a record that has none. With `by_line` row indices are the
    numbers of the lines on which rows begin, written as editors do. With `keep_missing` a record with a missing medium
    is kept with a warning: the probe of the medium reports it as broken.
    """

    name: str
    source: MediaSource
    collector: ProblemCollector
    _: KW_ONLY
    by_line: bool = False
    keep_missing: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    prompt: str = ""
    rows: int = field(default=0, init=False)  # number of rows read so far

    def place(self, file: str, index: int) -> str:
        """The location of a row, for problems."""
        return f"{file}:{index}" if self.by_line else f"{file}[{index}]"

    def id_of(self, index: int, row: dict[str, Any]) -> Any:
        """The row's id, of any type; the row number if it has none."""
        return (self.rows if self.by_line else index) if row.get("id") is None else row["id"]

    def read(self, index: int, row: Any) -> Record | None:
        """Read a row into a record; None if it has an error."""
        before = self.collector.errors
        row_reader = _Row(self, index, row)
        record = row_reader.record()
        self.rows += 1
        if record is None or self.collector.errors > before:
            return None
        if not record.media:
            row_reader.findings.wrong(problems.FIELD, "", AS_TEXT, NO_MEDIUM, "warning")
        return record


class _Row:
    """One row while it is being read."""

    def __init__(self, reader: RowReader, index: int, row: Any) -> None:
        self.reader, self.index, self.row = reader, index, row
        self.need_answers = reader.collector.need_answers
        self.findings = RowFindings(reader.collector, lambda: reader.place(reader.collector.file, index))
        self.turns = TurnReader(self.findings)

    def record(self) -> Record | None:
        if not isinstance(self.row, dict):
            repeats = isinstance(self.row, RepeatedKeyError)
            message = str(self.row) if repeats else f"expected an object, got {type_name(self.row)}"
            self.findings.wrong(problems.SYNTAX if repeats else problems.FIELD, "", message)
            return None
        self.findings.id = self.findings.attempt(self._id)
        self.findings.unused("", unused_in_record(self.row))
        spoken, listed = self.findings.attempt(self._conversation), self.findings.attempt(self._listed)
        if spoken is None or listed is None or self.findings.id is None:
            return None
        field = turns_field(self.row)
        is_asked = bool(self.reader.prompt) or self.row.get(field) is not None
        self.turns.check_order(spoken, field, need_answers=self.need_answers, is_asked=is_asked)
        spoken = self.findings.attempt(self._with_system, spoken)
        placed = spoken and self.findings.attempt(self._place, spoken, listed)
        if not placed:
            return None
        media, turns = placed
        source = self.reader.place(self.reader.name, self.index)
        fps, rejected = self.findings.attempt(self._video_fps), self.findings.attempt(self._rejected)
        record = Record(self.findings.id, turns, media, fps, self._kind(), source, self._provenance(), rejected)
        if names := unshown_options(self.row, record.question):
            self.findings.wrong(problems.OPTIONS, names, "the question does not list these options", severity="warning")
        return record

    def _id(self) -> str:
        record_id = str(value := self.reader.id_of(self.index, self.row))
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not record_id or not is_text(record_id):
            self.findings.invalid(
                "id", "a string of valid characters or an integer", value, f'"id": "clip-{self.index}"'
            )
        first = self.reader.ids.get(record_id)
        if first is None:
            self.reader.ids[record_id] = self.index
        else:
            self.findings.id = record_id
            remedy = f'give one of the two another id, for example "{record_id[:80]}-{self.index}"'
            other = f"line {first}" if self.reader.by_line else f"record {first}"
            self.findings.wrong(problems.FIELD, "id", f"{other} has the same id", remedy)
        return record_id

    def _video_fps(self) -> float | None:
        value = self.row.get("video_fps")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MOST_FPS:
            self.findings.invalid("video_fps", "a number of frames per second above 0", value, '"video_fps": 30.0')
        return float(value)

    def _rejected(self) -> str | None:
        """The rejected answer of a preference pair: a text, an assistant turn, or a list of one turn."""
        value = self.row.get("rejected")
        if value in (None, "", [], {}):
            return None
        turn = value[0] if isinstance(value, list) and len(value) == 1 else value
        turn = {"value": turn} if isinstance(turn, str) else turn
        if isinstance(turn, dict) and turn.get("from", turn.get("role", "assistant")) in ("gpt", "assistant"):
            content = turn.get("value", turn.get("content"))
            parts = content if isinstance(content, list) else [content]
            texts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in parts]
            if all(map(is_text, texts)):
                return "".join(texts).strip() or None
        self.findings.invalid("rejected", "the wrong answer in place of the last turn", value, '"rejected": "No"')

    def _kind(self) -> str | None:
        kind = next((self.row[name] for name in KIND_FIELDS if isinstance(self.row.get(name), str)), None)
        return kind if kind and is_text(kind) else None

    def _provenance(self) -> Provenance | None:
        """The provenance: an origin alone, or an object. Any other value is a field of the user's: a warning."""
        value = self.row.get("provenance")
        if value is None:
            return None
        fields = {"origin": value} if isinstance(value, str) else value
        if isinstance(fields, dict) and not fields.keys() - {"origin", "round", "gap"}:
            number, gap = fields.get("round"), fields.get("gap")
            is_count = isinstance(number, int) and not isinstance(number, bool) and 0 <= number < MOST
            if (number is None or is_count) and (gap is None or is_text(gap)) and fields.get("origin") in ORIGINS:
                return Provenance(fields["origin"], number, gap)
        message = f"not used: expected an origin ({', '.join(ORIGINS)}) or an object, got {SHORT.repr(value)}"
        example = 'write it as "provenance": {"origin": "mined", "round": 1, "gap": "id of the gap\'s sample"}'
        self.findings.wrong(problems.FIELD, "provenance", message, example, "warning")
        return None

    def _records_inside(self) -> str | None:
        """A remedy for an object that is not a record but contains records, in a list or by id; else None."""
        for name, value in self.row.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                return f"if the records are the list in {SHORT.repr(name)}, make that list the whole file"
            if isinstance(value, dict) and {"conversations", "messages", "question"} & value.keys():
                return f'write a list of the records, each with its name as "id", as {SHORT.repr(name)}'
        return None

    def _listed(self) -> dict[str, list[str]]:
        """The media named outside of the conversation, by kind."""
        listed: dict[str, list[str]] = {}
        for kind in KINDS:
            for key in (kind, f"{kind}s"):
                value = self.row.get(key)
                if value is None:
                    continue
                names = value if isinstance(value, list) else [value]
                for at, name in enumerate(names):
                    if not name or not is_text(name):
                        place = f"{key}[{at}]" if isinstance(value, list) else key
                        self.findings.invalid(place, "the name of a file", name, f'"{key}": "clip-1.mp4"')
                listed.setdefault(kind, []).extend(names)
        return listed

    def _conversation(self) -> list[Spoken]:
        field = turns_field(self.row)
        turns = self.row.get(field)
        if turns is None and not self.need_answers:  # only media, about which others know what to ask
            return [Spoken("user", tidy(self.turns.pieces(self.reader.prompt, "user", "question")))]
        if turns is None:
            keys = ", ".join(sorted(map(str, self.row))[:8]) or "nothing"
            message = f"the record has neither `conversations` nor `messages` nor `question` (it has: {keys})"
            self.findings.wrong(problems.FIELD, "conversations", message, self._records_inside())
            raise Invalid
        if not isinstance(turns, list) or not turns:
            example = problems.EXAMPLE[problems.EXAMPLE.index('"conversations"') : -1]
            self.findings.invalid(field, "a list of at least one turn", turns, example)
        is_listed = any(self.row.get(name) for kind in KINDS for name in (kind, f"{kind}s"))
        self.turns.has_places_in_parts = is_listed and not any(map(shows_media, turns))
        spoken = [self.findings.attempt(self.turns.turn, turn, f"{field}[{at}]") for at, turn in enumerate(turns)]
        if None in spoken:
            raise Invalid
        return [turn for turn in spoken if turn is not None]

    def _with_system(self, spoken: list[Spoken]) -> list[Spoken]:
        """Prepend the record's field `system` as the first turn, as LLaMA-Factory and ms-swift do."""
        text = self.row.get("system")
        if text in (None, ""):
            return spoken
        pieces = tidy(self.turns.pieces(text, "system", "system"))
        if spoken[0].role != "system":
            return [Spoken("system", pieces), *spoken]
        if pieces != spoken[0].pieces:
            remedy = "leave one of the two out"
            self.findings.wrong(problems.FIELD, "system", "the conversation begins with another system turn", remedy)
        return spoken

    def _place(
        self, spoken: list[Spoken], listed: dict[str, list[str]]
    ) -> tuple[tuple[MediaRef, ...], tuple[Turn, ...]]:
        """The media in order, and the turns with indices of media."""
        slots = [piece for turn in spoken for piece in turn.pieces if isinstance(piece, Slot)]
        filled = fill_slots(slots, listed)
        if isinstance(filled, str):
            tags = "".join(f"<{kind}>" for kind in KINDS for _ in listed.get(kind, ()))
            remedy = f'write one tag for each medium, for example "{tags}\\nIs the door open?", or no tag at all; '
            remedy += "put a tag that is text into a part of type text, next to a part of type video"
            if not any(listed.values()):
                has = ", ".join(map(str, self.row))
                remedy = (
                    f'name the file of each tag, as "video": "clip-1.mp4", or leave the tag out; its keys are: {has}'
                )
            self.findings.wrong(problems.TAG_COUNT, "", filled, remedy)
            raise Invalid
        keys = [slot.keys for slot in slots] or [()] * len(filled)
        refs = [self.findings.attempt(self._find, kind, name) for kind, name in filled]
        media = [replace(ref, keys=own) if own else ref for ref, own in zip(refs, keys, strict=True) if ref]
        if len(media) < len(filled):
            raise Invalid
        leading: list[str | int] = [] if slots else list(range(len(filled)))
        turns, at = [], 0
        for role, pieces, learned in spoken:
            parts: list[str | int] = []
            if role == "user" and leading:
                parts, leading = leading, []
            for piece in pieces:
                parts.append(piece if isinstance(piece, str) else at)
                at += isinstance(piece, Slot)
            if parts or role != "system":
                turns.append(Turn(role, tuple(parts), learned or role != "assistant"))
        return tuple(media), tuple(turns)

    def _find(self, kind: str, name: str) -> MediaRef:
        result = self.reader.source.find(kind, name)
        if not isinstance(result, NotFound):
            return result
        is_kept = self.reader.keep_missing and result.code is problems.MEDIA_MISSING
        self.findings.wrong(result.code, kind, result.message, result.remedy, "warning" if is_kept else "error")
        if not is_kept:
            raise Invalid
        return MediaRef(kind, name, result.path or name)
