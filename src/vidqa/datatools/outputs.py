"""Output of the data tools: records in supported formats (LLaVA turns, role/content messages, parquet, a Hugging Face
data set folder), names of fields that these formats lack, and files that are never overwritten silently: the same
content is left alone, a different one refused.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vidqa.core.files import link_or_copy, replacing
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.conversation import KIND_FIELDS, TAG, TURN_KEYS, turns_field
from vidqa.data.foreign_rows import is_json
from vidqa.data.problems import DISK_SPACE, LEFT_OUT, OUTPUT_EXISTS
from vidqa.data.record import Record, Turn
from vidqa.video.types import KEYS_OF, VIDEO_KEYS

MOST_NAMED = 20  # dropped fields in a warning
NO_MEDIA: Mapping[Path, str] = {}
NO_FILE_THERE = (IsADirectoryError, NotADirectoryError, FileExistsError)
SPEAKERS = {"user": "human", "assistant": "gpt", "system": "system"}
CARRIED = {"id", "video", "videos", "image", "images", "video_fps", "kind", "system", "rejected"}  # fields of a record
PART_FIELDS = {"type", "text", "video", "image", "video_url", "image_url", "path", "url"}
CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---

# Questions and answers about videos

{n} records. Each row has an `id`, a `kind` of question, the file's `video_fps` where it was annotated, and
`messages`: turns with `role` and `content`, a list of parts of `type` text, video or image. A part of type video names
a file, relative to the folder that holds the media; the media themselves are not in the table.
"""


def llava_row(record: Record) -> dict[str, Any]:
    """Format the record with its media listed and a tag for each of them in the turns."""
    row: dict[str, Any] = {"id": record.id}
    for kind in ("video", "image"):
        names = [medium.written for medium in record.media if medium.kind == kind]
        if names:
            row[kind] = names[0] if len(names) == 1 else names
    row |= _optional(record)
    tagged = _content if _needs_parts(record) else _tagged
    turns = [{"from": SPEAKERS[turn.role], "value": tagged(record, turn), **_unlearned(turn)} for turn in record.turns]
    return {**row, "conversations": turns}


def messages_row(record: Record) -> dict[str, Any]:
    """Format the record as role/content messages; a turn with media has a list of parts that name the files."""
    turns = [{"role": turn.role, "content": _content(record, turn), **_unlearned(turn)} for turn in record.turns]
    return {"id": record.id, **_optional(record), "messages": turns}


def table_row(record: Record) -> dict[str, Any]:
    """Format the record for a table: all columns, and contents as lists of parts, so that all rows have one type."""
    turns = [
        {"role": turn.role, "content": [_part(record, part, fill=True) for part in turn.parts], **_unlearned(turn)}
        for turn in record.turns
    ]
    provenance = record.provenance and asdict(record.provenance)
    row = {"id": record.id, "kind": record.kind, "video_fps": record.video_fps, "rejected": record.rejected}
    return {**row, "provenance": provenance, "messages": turns}


def _optional(record: Record) -> dict[str, Any]:
    provenance = record.provenance.as_field() if record.provenance else None
    fields = {"kind": record.kind, "video_fps": record.video_fps, "provenance": provenance, "rejected": record.rejected}
    return {name: value for name, value in fields.items() if value is not None}


def _unlearned(turn: Turn) -> dict[str, bool]:
    return {} if turn.learned else {"loss": False}


def _needs_parts(record: Record) -> bool:
    """Whether tags are insufficient: a medium has keys, or a text contains something that would be read as a tag."""
    texts = (part for turn in record.turns if turn.role == "user" for part in turn.parts if isinstance(part, str))
    return any(ref.keys for ref in record.media) or any(map(TAG.search, texts))


def _tagged(record: Record, turn: Turn) -> str:
    return "\n".join(part if isinstance(part, str) else f"<{record.media[part].kind}>" for part in turn.parts)


def _content(record: Record, turn: Turn) -> str | list[dict[str, Any]]:
    if all(isinstance(part, str) for part in turn.parts) and not (turn.role == "user" and TAG.search(turn.text)):
        return turn.text
    return [_part(record, part, fill=False) for part in turn.parts]


def _part(record: Record, part: str | int, *, fill: bool) -> dict[str, Any]:
    empty = dict.fromkeys(("type", "text", "video", "image")) if fill else {}
    if isinstance(part, str):
        return {**empty, "type": "text", "text": part}
    medium = record.media[part]
    return {**empty, "type": medium.kind, medium.kind: medium.written, **dict(medium.keys)}


def other_fields(row: dict[str, Any], record: Record) -> tuple[dict[str, Any], list[str]]:
    """Return (the row's fields that a record does not hold, names of fields that JSON output cannot keep)."""
    conversation = turns_field(row)
    named_kind = next((name for name in KIND_FIELDS if isinstance(row.get(name), str)), None)
    others, lost = {}, _lost_in_turns(row.get(conversation), conversation)
    for name, value in row.items():
        if name in CARRIED or name in (conversation, named_kind) or value is None:
            continue
        if name == "provenance" and record.provenance is not None:
            continue
        if name in ("conversations", "messages") or (name in KIND_FIELDS and record.kind is None) or not is_json(value):
            lost.append(name)
        else:
            others[name] = value
    return others, lost


def _lost_in_turns(turns: Any, field: str) -> list[str]:
    lost = set()
    for turn in turns:
        lost |= {f"{field}[].{name}" for name, value in turn.items() if name not in TURN_KEYS and value is not None}
        content = turn.get("value", turn.get("content"))
        for part in content if isinstance(content, list) else ():
            names = part if isinstance(part, dict) else {}
            part_fields = PART_FIELDS | KEYS_OF.get(str(names.get("type")).removesuffix("_url"), {}).keys()
            unknown = (name for name in names if name not in part_fields and part[name] is not None)
            lost |= {f"{field}[].content[].{name}" for name in unknown}
    return sorted(lost)


def count_fields(names: Iterable[str], dropped: Counter[str]) -> None:
    """Count one more record that has lost each of these fields."""
    dropped.update({name.encode("utf-8", "replace").decode() for name in names})


def left_out(dropped: Counter[str], out: Path) -> list[Problem]:
    """A warning with the names of lost fields; empty if none is lost."""
    if not dropped:
        return []
    named = ", ".join(f"{name} ({count} records)" for name, count in dropped.most_common(MOST_NAMED))
    more = f" and {len(dropped) - MOST_NAMED} more" if len(dropped) > MOST_NAMED else ""
    return [LEFT_OUT.at(out, f"not written: {named}{more}", severity="warning")]


def parquet_bytes(records: Sequence[Record]) -> bytes:
    """Encode records as parquet with the columns id, kind, video_fps and messages; rejected and provenance if a record
    has one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {int: pa.int64(), float: pa.float64()}
    keys = {name for record in records for ref in record.media for name, _ in ref.keys}
    texts = [(name, pa.string()) for name in ("type", "text", "video", "image")]
    part = pa.struct([*texts, *((name, types[VIDEO_KEYS[name]]) for name in sorted(keys))])
    all_learned = all(turn.learned for record in records for turn in record.turns)
    loss = [] if all_learned else [("loss", pa.bool_())]
    turn = pa.struct([("role", pa.string()), ("content", pa.list_(part)), *loss])
    columns = [("id", pa.string()), ("kind", pa.string()), ("video_fps", pa.float64())]
    if any(record.rejected is not None for record in records):
        columns.append(("rejected", pa.string()))
    if any(record.provenance for record in records):
        provenance = pa.struct([("origin", pa.string()), ("round", pa.int64()), ("gap", pa.string())])
        columns.append(("provenance", provenance))
    columns.append(("messages", pa.list_(turn)))
    table = pa.Table.from_pylist([table_row(record) for record in records], schema=pa.schema(columns))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def hub_folder(folder: Path, records: Sequence[Record]) -> dict[Path, bytes]:
    """The files of a folder for `datasets.load_dataset(folder)`: one parquet shard and a card."""
    return {
        folder / "data" / "train-00000-of-00001.parquet": parquet_bytes(records),
        folder / "README.md": CARD.format(n=len(records)).encode(),
    }


def write_new(files: Mapping[Path, bytes], media: Mapping[Path, str] = NO_MEDIA) -> bool:
    """Write all files, after the `media`, which map paths to cached files (named by content hash). Return whether
    anything was written: False if every file is there already with the same content.

    Nothing is written if any of them is there with another content. Raises OUTPUT_EXISTS, ENV_DISK_SPACE.
    """
    there = {path: _content_of(path) for path in files}
    other = [path for path, content in there.items() if content is not None and content != files[path]]
    new_media = {path: cached for path, cached in media.items() if not os.path.lexists(path)}
    other += [path for path in media.keys() - new_media.keys() if not _has_size_of(path, media[path])]
    if other:
        raise ProblemError([OUTPUT_EXISTS.at(path, "the file exists with other content") for path in other])
    for path, cached in new_media.items():
        with _refusal_reported(path):
            link_or_copy(cached, path)
    new = [path for path, content in there.items() if content is None]
    for path in new:
        _write(path, files[path])
    return bool(new or new_media)


def _has_size_of(path: Path, cached: str) -> bool:
    return path.is_file() and path.stat().st_size == os.path.getsize(cached)


def _content_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.exists() else None
    except OSError as refused:
        raise OUTPUT_EXISTS.error(path, f"the path exists but is not a file: {refused.strerror}") from refused


def write_page(path: Path, html: str) -> None:
    """Write a page, replacing an earlier one. Raises ENV_DISK_SPACE."""
    _write(path, html.encode("utf-8", "replace"))


def _write(path: Path, content: bytes) -> None:
    with _refusal_reported(path), replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def _refusal_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as refused:
        remedy = "name a new file, in a folder" if isinstance(refused, NO_FILE_THERE) else None
        raise DISK_SPACE.error(path, f"cannot be written: {refused.strerror or refused}", remedy) from refused


def json_list(rows: Iterable[Any]) -> bytes:
    """Encode a JSON list, one row a line, so that it can be read, compared and split by line."""
    return b"[\n" + b",\n".join(map(_line, rows)) + b"\n]\n"


def json_lines(rows: Iterable[Any]) -> bytes:
    return b"".join(_line(row) + b"\n" for row in rows)


def json_page(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _line(row: Any) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, in a field that is not read
        return json.dumps(row).encode()
