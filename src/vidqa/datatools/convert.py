"""Convert a data set from one format to another, report fields that are lost, and rewrite prompts and answers as
multiple choice (lettered options, a letter as the answer) or yes/no."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from vidqa.core.cli import USAGE
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.data import fingerprint
from vidqa.data.conversation import split_thinking
from vidqa.data.foreign_rows import options_beside
from vidqa.data.problems import OPTIONS, ProblemCollector
from vidqa.data.record import Record
from vidqa.datatools.outputs import (
    MOST_NAMED,
    count_fields,
    hub_folder,
    json_lines,
    json_list,
    left_out,
    llava_row,
    messages_row,
    other_fields,
    parquet_bytes,
    write_new,
)
from vidqa.datatools.problems import PROMPT
from vidqa.datatools.reading import JSON_FORMATS, merged, read_source, with_media_files
from vidqa.evaluation.choices import options_of

SUFFIX = {"llava": ".json", "messages": ".json", "jsonl": ".jsonl", "parquet": ".parquet"}
ASK_LETTER = "Answer with the letter of the right option."
ASK_YES_NO = "Answer with yes or no."
LETTER = re.compile(r"[(\[]?([A-Za-z])[)\].:]{0,2}")
YES_NO = re.compile(r"(yes|true|1|no|false|0)\W{0,2}", re.IGNORECASE)
ASKS_YES_NO = re.compile(r"\byes\s*(?:or|/)\s*no\b", re.IGNORECASE)


@dataclass(frozen=True)
class Converted:
    """Result of a conversion. `files` are the written files, the input file of other scripts first."""

    facts: dict[str, Any]
    files: list[Path]
    media_path: str
    problems: list[Problem]


def convert(
    path: str | Path | Sequence[str | Path],
    out: Path,
    to: str,
    form: str = "auto",
    media_path: str | Sequence[str] = "",
    forms: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> Converted:
    """Read the data set at `path`, or several and merge them, and write it to `out` in the format `to`.

    `media_path` is that of all sets, or one for each. `columns` maps field names to column names (fields of a row).
    `out` is a file if it has the format's suffix (.json, .jsonl, .parquet), otherwise a folder. Media keep their names,
    relative to the returned media path (of several sets see `merged`). Only media that tables hold as bytes are copied,
    into the folder media beside the output.
    Raises all errors of the records, DATATOOLS_FORMAT, DATATOOLS_PROMPT,
    USAGE, OUTPUT_EXISTS, ENV_DISK_SPACE.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    places = [media_path] if isinstance(media_path, str) else list(media_path) or [""]
    if len(places) not in (1, len(paths)):
        raise USAGE.error(
            "--media-path", f"{len(places)} values for {len(paths)} inputs", "give it never, once, or once per input"
        )
    places = places * len(paths) if len(places) == 1 else places
    read = [read_source(item, form, place, columns or {}) for item, place in zip(paths, places, strict=True)]
    folder = _output(out, to).parent if to in SUFFIX else out
    owned = [with_media_files(one, folder) for one in read]
    source = merged([one for one, _ in owned], folder)
    dropped = Counter(source.dropped)
    fields = []
    for pair in source.pairs:
        other, lost = other_fields(pair.row, pair.record)
        count_fields(lost, dropped)
        fields.append(other)
    records, used = _prompted([pair.record for pair in source.pairs], fields, list(forms))
    if to not in JSON_FORMATS:
        for other in fields:
            count_fields(other, dropped)
    files = _outputs(out, to, records, fields)
    media_files = {target: cached for _, of_set in owned for target, cached in of_set.items()}
    written = write_new(files, media_files)
    facts = {
        "from": source.form,
        "to": to,
        "records": len(records),
        "files": list(files),
        "media_path": source.media_path,
        "media_files": len(media_files),
        "written": written,
        "prompts": used,
        "new_ids": list(source.new_ids[:MOST_NAMED]),
        "new_ids_count": len(source.new_ids),
        "dropped": dict(dropped.most_common()),
        "fingerprint": fingerprint(records),
    }
    unused = [form for form, count in used.items() if not count]
    problems = [PROMPT.at("--prompt", f"{form} fits none of the records", severity="warning") for form in unused]
    read_with = [problem for problem in source.warnings if problem.code != OPTIONS.name or "mcq" not in forms]
    return Converted(facts, list(files), source.media_path, [*read_with, *problems, *left_out(dropped, out)])


def _prompted(
    records: Iterable[Record], fields: list[dict[str, Any]], forms: list[str]
) -> tuple[list[Record], dict[str, int]]:
    """The records in the requested prompt forms, and the count of each. Raises all answers that match no option."""
    used = dict.fromkeys(forms, 0)
    formed_records, collector = [], ProblemCollector("--prompt")
    for record, other in zip(records, fields, strict=True):
        try:
            formed, form = _in_form(record, other, forms)
        except ProblemError as wrong:
            for problem in wrong.problems:
                collector.add(PROMPT, problem.where, problem.message)
            continue
        formed_records.append(formed)
        if form:
            used[form] += 1
    raise_errors(collector.problems)
    return formed_records, used


def _outputs(out: Path, to: str, records: list[Record], fields: list[dict[str, Any]]) -> dict[Path, bytes]:
    file = _output(out, to)
    if to == "hf":
        return hub_folder(file, records)
    if to == "parquet":
        return {file: parquet_bytes(records)}
    shape = messages_row if to == "messages" else llava_row
    rows = [{**shape(record), **other} for record, other in zip(records, fields, strict=True)]
    return {file: json_lines(rows) if to == "jsonl" else json_list(rows)}


def _output(out: Path, to: str) -> Path:
    """The folder of Hugging Face's layout; otherwise a file: `out` if it has the format's suffix, or one inside it."""
    ending = SUFFIX.get(to)
    if ending and out.suffix == ending:
        return out
    if out.suffix in (*SUFFIX.values(), ".csv") and not out.is_dir():
        file = f"a file that ends in {ending}, or " if ending else ""
        raise USAGE.error(out, f"{to} is written to {file}a folder", "change --out, or --to")
    return out / f"annotations{ending}" if ending else out


def _as_mcq(record: Record, options: list[str]) -> Record | None:
    """Rewrite the last question with lettered options and the answer as a letter; None if there are no options.

    Options listed in the question take precedence over the field `options`. Raises DATATOOLS_PROMPT.
    """
    listed = options_of(record.question)
    if not listed and not 2 <= len(options) <= len(ascii_uppercase):
        return None
    choices = listed or dict(zip(ascii_uppercase, options, strict=False))
    thinking, answer = split_thinking(record.answer)
    letter = _letter(answer, choices)
    if letter is None:
        message = f"the answer {answer[:60]!r} is not one of {', '.join(map(repr, choices.values()))[:200]}"
        raise PROMPT.error(record.place, message)
    lines = [] if listed else [f"({name}) {option}" for name, option in choices.items()]
    lines += [] if ASK_LETTER in record.question else [ASK_LETTER]
    return _rewritten(record, lines, thinking + letter)


def _as_yes_no(record: Record) -> Record | None:
    """Add an instruction, with the answer Yes or No; None if the answer is not a plain yes or no."""
    thinking, answer = split_thinking(record.answer)
    match = YES_NO.fullmatch(answer)
    if not match:
        return None
    lines = [] if ASKS_YES_NO.search(record.question) else [ASK_YES_NO]
    return _rewritten(record, lines, thinking + ("Yes" if match[1].lower() in ("yes", "true", "1") else "No"))


def _letter(answer: str, choices: Mapping[str, str]) -> str | None:
    """The letter of an answer. The text of an option takes precedence: an option may be called "B"."""
    same = [letter for letter, option in choices.items() if option.casefold() == answer.casefold()]
    if same:
        return same[0] if len(same) == 1 else None
    match = LETTER.fullmatch(answer)
    return match[1].upper() if match and match[1].upper() in choices else None


def _rewritten(record: Record, lines: list[str], answer: str) -> Record:
    """Append `lines` to the last user turn, and replace the text of the last assistant turn."""
    turns = list(record.turns)
    at = max(at for at, turn in enumerate(turns) if turn.role == "user")
    parts = list(turns[at].parts)
    if lines:
        last = parts.pop() if isinstance(parts[-1], str) else ""
        parts.append("\n".join(filter(None, [str(last).rstrip(), *lines])))
    turns[at] = replace(turns[at], parts=tuple(parts))
    at = max(at for at, turn in enumerate(turns) if turn.role == "assistant")
    turns[at] = replace(turns[at], parts=(answer,))
    return replace(record, turns=tuple(turns))


def _in_form(record: Record, fields: dict[str, Any], forms: list[str]) -> tuple[Record, str | None]:
    """Return (the record in the first form that fits it, that form). Used options are removed from `fields`."""
    for form in forms:
        names, options = options_beside(fields) if form == "mcq" else ([], [])
        formed = _as_mcq(record, options) if form == "mcq" else _as_yes_no(record)
        if formed is not None:
            for name in names:
                del fields[name]
            return formed, form
    return record, None
