"""Turns one row of an annotation file into a record, or says everything that is wrong with it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from vidqa.core.problem import Code
from vidqa.data import problems
from vidqa.data.conversation import (
    KIND_FIELDS,
    KINDS,
    LEARNED,
    MOST,
    ROLES,
    TAG,
    Piece,
    Slot,
    fill_slots,
    is_learned,
    is_text,
    medium_keys,
    medium_name,
    pieces_of_text,
    shows_media,
    tidy,
    turns_field,
    unclosed,
    unused_in,
    unused_in_record,
    unused_in_turn,
)
from vidqa.data.media import MediaSource, NotFound
from vidqa.data.problems import ProblemCollector
from vidqa.data.reader import type_name
from vidqa.data.record import ORIGINS, MediaRef, Provenance, Record, Turn

SHORT = reprlib.Repr()  # values in messages: bounded in length and in depth
SHORT.maxstring = SHORT.maxother = 60
MOST_FPS, LONGEST = 1e5, 500  # of a video; characters of a message
AS_TEXT = "no `video` or `image` is named; the record is used as text only"
NO_MEDIUM = 'if that is not meant, name the file, for example "video": "clip-1.mp4"'
TURN_ORDER = (
    'order the turns as: system (optional), user, assistant, user, assistant, ... with "from": "human", "gpt" or '
    '"system" (or "role": "user", "assistant" or "system")'
)
THINKING = "it would be learned as the answer: write <think>reasoning</think> before the answer, or no tag at all"
Value = TypeVar("Value")
Args = ParamSpec("Args")


class Spoken(NamedTuple):
    role: str
    pieces: list[Piece]
    is_learned: bool = True


@dataclass
class RowReader:
    """Reads the rows of one file; what is wrong goes to `collector`. Ids must be unique among its rows, and those of
    `ids`, the ids of earlier files with the places of their rows.

    Where the collector needs answers every conversation must end with an assistant turn; else the question is enough:
    in a conversation, in the field `question`, or `prompt` for a record that has none. With `by_line` the indices of
    rows are the lines of the file on which they begin, and are shown as editors write them. With `keep_missing` a
    record whose medium is not there is warned of and kept: who probes the medium finds it broken.
    """

    name: str
    source: MediaSource
    collector: ProblemCollector
    _: KW_ONLY
    by_line: bool = False
    keep_missing: bool = False
    ids: dict[str, int] = field(default_factory=dict)
    prompt: str = ""
    rows: int = field(default=0, init=False)  # read so far

    def place(self, file: str, index: int) -> str:
        """Where a row stands, for problems."""
        return f"{file}:{index}" if self.by_line else f"{file}[{index}]"

    def id_of(self, index: int, row: dict[str, Any]) -> Any:
        """The row's id, of any type; its number where it has none."""
        return (self.rows if self.by_line else index) if row.get("id") is None else row["id"]

    def read(self, index: int, row: Any) -> Record | None:
        """The record of a row, or None where something is wrong with it."""
        before = self.collector.errors
        row_reader = _Row(self, index, row)
        record = row_reader.record()
        self.rows += 1
        if record is None or self.collector.errors > before:
            return None
        if not record.media:
            row_reader.wrong(problems.FIELD, "", AS_TEXT, NO_MEDIUM, "warning")
        return record


class _Invalid(Exception):
    """A part of a row is wrong, as the collector has heard: whatever it is a part of has no value either."""


class _Row:
    """One row while it is read."""

    def __init__(self, reader: RowReader, index: int, row: Any) -> None:
        self.reader, self.index, self.row = reader, index, row
        self.need_answers = reader.collector.need_answers
        self.id: str | None = None
        self.is_unasked = False
        self.has_places_in_parts = False  # whether a tag in a part of type text is the place of a medium

    def where(self, field: str) -> str:
        shown = f" id {SHORT.repr(self.id)}" if self.id is not None else ""
        place = self.reader.place(self.reader.collector.file, self.index)
        return f"{place}{shown}{' ' + field if field else ''}"

    def wrong(self, code: Code, field: str, message: str, remedy: str | None = None, severity: str = "error") -> None:
        remedy = remedy[:LONGEST] if remedy else None
        self.reader.collector.add(code, self.where(field), message[:LONGEST], remedy, severity)

    def invalid(self, field: str, expected: str, value: object, example: str) -> NoReturn:
        """Names a value of a wrong type, and raises _Invalid."""
        message = f"expected {expected}, got {type_name(value)}: {SHORT.repr(value)}"
        self.wrong(problems.FIELD, field, message, f"write it as {example}")
        raise _Invalid

    def attempt(self, read: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value | None:
        """What a function reads; None where it finds something invalid."""
        try:
            return read(*args, **kwargs)
        except _Invalid:
            return None

    def unused(self, field: str, names: Iterable[str]) -> None:
        if shown := ", ".join(names):
            self.wrong(problems.LEFT_OUT, field, f"not used: {shown}", severity="warning")

    def record(self) -> Record | None:
        if not isinstance(self.row, dict):
            self.wrong(problems.FIELD, "", f"expected an object, got {type_name(self.row)}")
            return None
        self.id = self.attempt(self._id)
        self.unused("", unused_in_record(self.row))
        spoken, listed = self.attempt(self._conversation), self.attempt(self._listed)
        if spoken is None or listed is None or self.id is None:
            return None
        self._check_order(spoken)
        spoken = self.attempt(self._with_system, spoken)
        placed = spoken and self.attempt(self._place, spoken, listed)
        if not placed:
            return None
        media, turns = placed
        source = self.reader.place(self.reader.name, self.index)
        fps, rejected = self.attempt(self._video_fps), self.attempt(self._rejected)
        return Record(self.id, turns, media, fps, self._kind(), source, self._provenance(), rejected)

    def _id(self) -> str:
        record_id = str(value := self.reader.id_of(self.index, self.row))
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not record_id or not is_text(record_id):
            self.invalid("id", "a string of valid characters or an integer", value, f'"id": "clip-{self.index}"')
        first = self.reader.ids.get(record_id)
        if first is None:
            self.reader.ids[record_id] = self.index
        else:
            self.id = record_id
            remedy = f'give one of the two another id, for example "{record_id[:80]}-{self.index}"'
            other = f"line {first}" if self.reader.by_line else f"record {first}"
            self.wrong(problems.FIELD, "id", f"{other} has the same id", remedy)
        return record_id

    def _video_fps(self) -> float | None:
        value = self.row.get("video_fps")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MOST_FPS:
            self.invalid("video_fps", "a number of frames per second above 0", value, '"video_fps": 30.0')
        return float(value)

    def _rejected(self) -> str | None:
        """The wrong answer of a preference pair: a text, a turn of the assistant, or a list of one turn."""
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
        self.invalid("rejected", "the wrong answer in place of the last turn", value, '"rejected": "No"')

    def _kind(self) -> str | None:
        kind = next((self.row[name] for name in KIND_FIELDS if isinstance(self.row.get(name), str)), None)
        return kind if kind and is_text(kind) else None

    def _provenance(self) -> Provenance | None:
        """An origin alone, or an object. What says something else is a field of the user's own: it warns, and stays."""
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
        self.wrong(problems.FIELD, "provenance", message, example, "warning")
        return None

    def _listed(self) -> dict[str, list[str]]:
        """The media named beside the conversation, by kind."""
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
                        self.invalid(place, "the name of a file", name, f'"{key}": "clip-1.mp4"')
                listed.setdefault(kind, []).extend(names)
        return listed

    def _conversation(self) -> list[Spoken]:
        field = turns_field(self.row)
        turns = self.row.get(field)
        if turns is None and not self.need_answers:
            return [self._question()]
        if turns is None:
            self._conversation_missing()
        if not isinstance(turns, list) or not turns:
            example = problems.EXAMPLE[problems.EXAMPLE.index('"conversations"') : -1]
            self.invalid(field, "a list of at least one turn", turns, example)
        is_listed = any(self.row.get(name) for kind in KINDS for name in (kind, f"{kind}s"))
        self.has_places_in_parts = is_listed and not any(map(shows_media, turns))
        spoken = [self.attempt(self._turn, turn, f"{field}[{at}]") for at, turn in enumerate(turns)]
        if None in spoken:
            raise _Invalid
        return [turn for turn in spoken if turn is not None]

    def _with_system(self, spoken: list[Spoken]) -> list[Spoken]:
        """The conversation with the record's field `system` as its first turn, as LLaMA-Factory and ms-swift do it."""
        text = self.row.get("system")
        if text in (None, ""):
            return spoken
        pieces = tidy(self._content(text, "system", "system"))
        if spoken[0].role != "system":
            return [Spoken("system", pieces), *spoken]
        if pieces != spoken[0].pieces:
            remedy = "leave one of the two out"
            self.wrong(problems.FIELD, "system", "the conversation begins with another system turn", remedy)
        return spoken

    def _question(self) -> Spoken:
        """The turn of a record that is a question alone, or only media, about which others know what to ask."""
        question = self.row.get("question")
        if question is None and not self.reader.prompt:
            self.is_unasked = True
            return Spoken("user", [])
        question = self.reader.prompt if question is None else question
        return Spoken("user", tidy(self._content(question, "user", "question")))

    def _conversation_missing(self) -> NoReturn:
        keys = ", ".join(sorted(map(str, self.row))[:8])
        question, answer = self.row.get("question"), self.row.get("answer")
        remedy = None
        if isinstance(question, str) and isinstance(answer, str):
            turns = [{"from": "human", "value": question[:80]}, {"from": "gpt", "value": answer[:80]}]
            remedy = f'write the question and the answer as "conversations": {json.dumps(turns)}'
        message = f"the record has neither `conversations` nor `messages` (it has: {keys or 'nothing'})"
        self.wrong(problems.FIELD, "conversations", message, remedy)
        raise _Invalid

    def _turn(self, turn: Any, field: str) -> Spoken:
        if not isinstance(turn, dict):
            self.invalid(field, "a turn", turn, '{"from": "human", "value": "Is the door open?"}')
        key = "role" if "role" in turn and "from" not in turn else "from"
        role = turn.get(key)
        role_name = ROLES.get(role) if isinstance(role, str) else None
        if role_name is None:
            what = f"{SHORT.repr(role)} is not one of" if key in turn else "the turn has no role; known:"
            self.wrong(problems.FIELD, f"{field}.{key}", f"{what} {', '.join(ROLES)}", TURN_ORDER)
            raise _Invalid
        content_key = "value" if "value" in turn else "content"
        pieces = self._content(turn.get(content_key), role_name, f"{field}.{content_key}")
        return Spoken(role_name, tidy(pieces), self._is_learned(turn, role_name, field))

    def _is_learned(self, turn: dict[str, Any], role: str, field: str) -> bool:
        """What an assistant turn's keys say; others are never learned, and a key that asks for it is named."""
        self.unused(field, unused_in_turn(turn))
        learned = is_learned(turn)
        if isinstance(learned, str):
            self.wrong(problems.FIELD, field, learned, 'write "loss": false in a turn that is context alone')
            return False
        if role != "assistant":
            flags = [name for name in sorted(LEARNED & turn.keys()) if turn[name]]
            self.unused(field, [f"{name}: a turn of the {role} is never learned" for name in flags])
        return learned

    def _content(self, content: Any, role: str, field: str) -> list[Piece]:
        example = f'"{field.rsplit(".", 1)[-1]}": "Is the door open?"'
        if isinstance(content, str):
            if not is_text(content):
                self.invalid(field, "valid characters", content, example)
            return pieces_of_text(content) if role == "user" else [content]
        if not isinstance(content, list):
            self.invalid(field, "text or a list of parts", content, example)
        return [piece for at, part in enumerate(content) for piece in self._part(part, role, f"{field}[{at}]")]

    def _part(self, part: Any, role: str, field: str) -> list[Piece]:
        if isinstance(part, str):
            return self._content(part, role, field)
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else ("", None)
        if kind in (None, "text") and isinstance(text, str):
            return self._text_part(part, text, role, field)
        kind = kind.removesuffix("_url") if isinstance(kind, str) else None
        if kind not in KINDS:
            example = '{"type": "text", "text": "Is the door open?"} or {"type": "video", "video": "clip-1.mp4"}'
            self.invalid(field, "a text, video or image part", part, example)
        if role != "user":
            self.wrong(problems.FIELD, field, f"a {kind} stands in a turn of the {role}", "move it to a user turn")
            raise _Invalid
        name, others = medium_name(kind, part)
        if name is not None and (not name or not is_text(name)):
            self.invalid(field, "the name of a file", name, f'{{"type": "{kind}", "{kind}": "clip-1.mp4"}}')
        keys, wrong, unused = medium_keys(kind, part, {"type", kind, f"{kind}_url", "path", "url"})
        self.unused(field, others + unused)
        for message in wrong:
            self.wrong(problems.FIELD, field, message, 'such as {"type": "video", "video": "a.mp4", "fps": 2.0}')
        return [Slot(kind, name, keys)]

    def _text_part(self, part: dict[str, Any], text: str, role: str, field: str) -> list[Piece]:
        """The pieces of a text part: its tags are text where media are parts of their own or the record has none."""
        if not is_text(text):
            self.invalid(field, "valid characters", text, '{"type": "text", "text": "Is the door open?"}')
        self.unused(field, unused_in(part, {"type", "text"}))
        if role != "user" or not self.has_places_in_parts or not TAG.search(text):
            return [text]
        message = "its tag is taken for the place of a medium, since the record lists media and no part shows one"
        self.wrong(problems.TAG_COUNT, field, message, severity="warning")
        return pieces_of_text(text)

    def _check_order(self, spoken: list[Spoken]) -> None:
        field = turns_field(self.row)
        roles = [turn.role for turn in spoken]
        first = int(roles[0] == "system")
        for at, role in enumerate(roles[first:], start=first):
            expected = "assistant" if (at - first) % 2 else "user"
            if role != expected:
                message = f"expected a turn of the {expected}, got {role}"
                self.wrong(problems.FIELD, f"{field}[{at}]", message, TURN_ORDER)
                return
        if roles[-1] == "system":
            self.wrong(problems.FIELD, field, "there is only a system turn", TURN_ORDER)
        elif roles[-1] == "user" and self.need_answers:
            self.wrong(problems.FIELD, f"{field}[{len(roles) - 1}]", "the last turn is the user's")
        for at, (role, pieces, _) in enumerate(spoken):
            if not pieces and role == "assistant" and (self.need_answers or at < len(spoken) - 1):
                self.wrong(problems.FIELD, f"{field}[{at}]", "the assistant says nothing")
            elif role == "assistant" and (what := unclosed("".join(map(str, pieces)))):
                self.wrong(problems.FIELD, f"{field}[{at}]", what, THINKING, "warning")
            elif not pieces and role == "user" and not self.is_unasked:
                self.wrong(problems.FIELD, f"{field}[{at}]", "the user says nothing and shows nothing")

    def _place(
        self, spoken: list[Spoken], listed: dict[str, list[str]]
    ) -> tuple[tuple[MediaRef, ...], tuple[Turn, ...]]:
        """The media in order, and the turns with their indices."""
        slots = [piece for turn in spoken for piece in turn.pieces if isinstance(piece, Slot)]
        filled = fill_slots(slots, listed)
        if isinstance(filled, str):
            tags = "".join(f"<{kind}>" for kind in KINDS for _ in listed.get(kind, ()))
            remedy = f'write one tag for each medium, for example "{tags}\\nIs the door open?", or no tag at all; '
            remedy += "a tag that is text stands in a part of type text, beside a part of type video"
            if not any(listed.values()):
                has = ", ".join(map(str, self.row))
                remedy = (
                    f'name the file of each tag, as "video": "clip-1.mp4", or leave the tag out; its keys are: {has}'
                )
            self.wrong(problems.TAG_COUNT, "", filled, remedy)
            raise _Invalid
        keys = [slot.keys for slot in slots] or [()] * len(filled)
        refs = [self.attempt(self._find, kind, name) for kind, name in filled]
        media = [replace(ref, keys=own) if own else ref for ref, own in zip(refs, keys, strict=True) if ref]
        if len(media) < len(filled):
            raise _Invalid
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
        self.wrong(result.code, kind, result.message, result.remedy, "warning" if is_kept else "error")
        if not is_kept:
            raise _Invalid
        return MediaRef(kind, name, result.path or name)
