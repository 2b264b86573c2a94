"""Convert rows of other formats to rows with a conversation: multiple-choice questions, columns, JSON inside a text."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vidqa.data.reader import RepeatedKeyError, loads

MEDIA = ("video", "videos", "image", "images")
STRUCT = {"path", "bytes"}  # fields of Video and Image columns in tables
ASK_LETTER = "Answer with the option's letter from the given choices directly."
PAIRS = "qa_pairs"
WINDOW = frozenset(("video_start", "video_end"))  # in seconds, outside of the question
OPTION_FIELDS = frozenset(
    ("options", "choices", "candidates", *"ABCDEFabcdef", *(f"option_{letter}" for letter in "abcdef"))
)
OPTION_PREFIX = re.compile(r"^\(?[A-Z][).:]\s*")  # the letter before the text of an option


def shaped(rows: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Convert the rows of a source; one row may become several."""
    for index, row in rows:
        yield from _rows_of(index, row)


def _rows_of(index: int, row: Any) -> Iterator[tuple[int, Any]]:
    """Convert one row of a source to one or more rows, each with the row's index.

    A row whose `qa_pairs` is a list becomes one row for each question, with the ids ID-0, ID-1 and so on; one with
    JSON text that repeats a key becomes a RepeatedKeyError.
    """
    if not isinstance(row, dict):
        yield index, row
        return
    try:
        row = _pair_row(with_media(_read_turns(row), _path))
    except RepeatedKeyError as repeated:
        yield index, repeated
        return
    if PAIRS not in row or "conversations" in row or "messages" in row:
        yield index, _question_row(row)
        return
    rest = dict(row)
    pairs = rest.pop(PAIRS)
    if isinstance(pairs, list) and pairs and all(isinstance(pair, dict) for pair in pairs):
        for number, pair in enumerate(pairs):
            yield index, _question_row({**rest, "id": f"{row.get('id', index)}-{number}", **_flat(pair)})
    else:
        yield index, _question_row({**rest, **_flat(pairs)}) if isinstance(pairs, dict) else row


def _flat(pair: dict[str, Any]) -> dict[str, Any]:
    """The question with its choices and the answer of a pair, as fields of a row."""
    text = question_text(pair)
    return {"question": pair.get("question", "") if text is None else text, "answer": answer_of(pair)}


def question_text(pair: Mapping[str, Any]) -> str | None:
    """A question with its choices, one line each; None if a part of it is not text."""
    choices = choices_of(pair)
    lines = [pair.get("question", "")]
    if choices:
        lines += [*(f"({letter}) {choices[letter]}" for letter in sorted(choices)), ASK_LETTER]
    return "\n".join(lines) if all(isinstance(line, str) for line in lines) else None


def choices_of(pair: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choices of a question by letter; empty for an open question."""
    choices = pair.get("index2ans")
    return choices if isinstance(choices, dict) else {}


def answer_of(pair: Mapping[str, Any]) -> Any:
    """The correct answer, under either of its names; None if there is none."""
    return pair.get("answer", pair.get("correct_answer"))


def _pair_row(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a preference pair of TRL (prompt, chosen, rejected), LLaMA-Factory (conversations, chosen, rejected) or
    ms-swift (rejected_response) to a conversation that ends with the chosen answer, and the other as `rejected`."""
    if row.get("rejected_response"):
        rest = {name: value for name, value in row.items() if name != "rejected_response"}
        return {**rest, "rejected": row.get("rejected") or row["rejected_response"]}
    chosen = row.get("chosen")
    if not chosen:
        return row
    field = next((name for name in ("prompt", "conversations", "messages", "question") if row.get(name)), "prompt")
    rejected, right = row.get("rejected"), _turns(chosen, "assistant")
    before = right[:-1] or _turns(row.get(field) or [], "user")
    if isinstance(rejected, list) and rejected[:-1] == right[:-1]:  # TRL's full conversations, both with the prompt
        rejected = rejected[-1:]
    rest = {name: value for name, value in row.items() if name not in ("chosen", "rejected", field)}
    return {**rest, "conversations": [*before, right[-1]], "rejected": rejected}


def _turns(value: Any, role: str) -> list[Any]:
    """The turns of a list or of one turn; a text becomes one turn of `role`."""
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, dict) else [{"role": role, "content": value}]


def _read_turns(row: dict[str, Any]) -> dict[str, Any]:
    """Decode turns, and a provenance, that are written as JSON text. Raises RepeatedKeyError."""
    read = {}
    for field in ("conversations", "messages", "provenance", "prompt", "chosen", "rejected"):
        text = row.get(field)
        if isinstance(text, str) and text.lstrip()[:1] in ("[", "{"):
            try:
                read[field] = loads(text)
            except RepeatedKeyError as repeated:
                raise RepeatedKeyError(f"{field}: {repeated}") from repeated
            except (ValueError, RecursionError):
                continue  # reading the row reports the error
    return {**row, **read} if read else row


def with_media(row: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Apply `change` to each medium that the row names outside of its conversation."""
    changed = {
        field: [change(item) for item in value] if isinstance(value, list) else change(value)
        for field in MEDIA
        if (value := row.get(field)) is not None
    }
    return {**row, **changed} if changed else row


def is_json(value: object) -> bool:
    """Whether a value can be written as JSON: no bytes, datetime or NaN."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _path(value: Any) -> Any:
    """The path of a medium written as {"path": ...}; other values unchanged."""
    is_path = isinstance(value, dict) and value.get("path") and not value.get("bytes") and value.keys() <= STRUCT
    return value["path"] if is_path else value


def _question_row(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row with `question`, and perhaps `answer`, to one with turns; other rows are unchanged. Fields of
    WINDOW are moved to a part for the video."""
    if row.get("question") is None or {"conversations", "messages"} & row.keys():
        return row
    row = dict(row)
    question, answer, video = row.pop("question"), row.pop("answer", None), row.get("video")
    if WINDOW & row.keys() and isinstance(video, str) and "<video>" not in str(question):
        window = {name: row.pop(name) for name in WINDOW & row.keys()}
        question = [{"type": "video", "video": video, **window}, {"type": "text", "text": question}]
    turns: list[dict[str, Any]] = [{"from": "human", "value": question}]
    answer = str(answer) if type(answer) is int else answer  # a column of counts
    if answer is not None:  # a list of answers becomes a part, which is refused
        turns.append({"from": "gpt", "value": [answer] if isinstance(answer, list) else answer})
    return {**row, "conversations": turns}


def options_beside(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return (names of fields, options) for options outside of the question: a list (also as text, as pandas writes it
    to a CSV), a text separated by |, or a field for each option. Both are empty for fewer than two options."""
    names = sorted(OPTION_FIELDS & row.keys())
    values: Any = [row[name] for name in names]
    if len(values) == 1:
        (values,) = values
    if isinstance(values, str):
        try:
            values = literal_eval(values) if values.lstrip()[:1] == "[" else values.split("|")
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return [], []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return [], []
    options = [value.strip() for value in values if value.strip()]
    return (names, options) if len(options) > 1 else ([], [])


def unshown_options(row: Mapping[str, Any], question: str) -> str:
    """The names of the fields with options that the question does not list; empty if it lists all."""
    names, options = options_beside(row)
    return "" if all(OPTION_PREFIX.sub("", option) in question for option in options) else ", ".join(names)
