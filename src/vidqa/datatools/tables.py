"""Tables: CSV, parquet and Arrow files into rows, and records into parquet and a Hugging Face data set folder."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vidqa.dataset.findings import Findings
from vidqa.dataset.record import Record
from vidqa.dataset.sources import Rows
from vidqa.dataset.sources.media_files import kind_of
from vidqa.datatools.problems import COLUMNS, SEVERAL_SPLITS, TABLE_UNREADABLE
from vidqa.datatools.shapes import table_row

SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")  # as the hub names them: train-00000-of-00002
LONGEST_CELL = 1 << 24
MEDIA = ("video", "videos", "image", "images")
ALIASES = ("file", "path", "filename", "clip")  # columns that name the medium where none of MEDIA is there
BATCH = 4096
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


def csv_rows(path: Path, findings: Findings, renamed: Mapping[str, str]) -> Rows:
    """(line on which it begins, row) for each row of a CSV (.tsv: tabs) with a header line. Empty cells are left out.

    `renamed` gives columns the names that they are read by: {"video": "recording"}.
    """
    reader = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(LONGEST_CELL)
            reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            written = [str(name).strip().lower() for name in next(filter(None, reader), ())]
            columns = _named(written, renamed, findings, path)
            if columns is None:
                return
            last = reader.line_num
            for cells in reader:
                line, last = last + 1, reader.line_num
                if len(cells) == len(columns):
                    filled = {name: cell for name, cell in zip(columns, cells, strict=True) if cell.strip()}
                    yield line, question_row(_with_medium(filled))
                elif cells:
                    message = f"the row has {len(cells)} cells, there are {len(columns)} columns"
                    findings.add(TABLE_UNREADABLE, f"{path}:{line}", message)
    except (OSError, UnicodeDecodeError, csv.Error) as broken:
        place = f"{path}:{reader.line_num}" if isinstance(broken, csv.Error) and reader else str(path)
        findings.add(TABLE_UNREADABLE, place, f"the CSV cannot be read: {broken}")


def _named(written: list[str], renamed: Mapping[str, str], findings: Findings, path: Path) -> list[str] | None:
    """The columns by the names that they are read by; None, and a finding, where they do not make a record."""
    there = f"there are: {', '.join(written)[:200]}"
    if unknown := [old for old in renamed.values() if old.lower() not in written]:
        findings.add(COLUMNS, str(path), f"there is no column {' and no '.join(unknown)} to rename; {there}")
        return None
    names = {old.lower(): new for new, old in renamed.items()}
    columns = [names.get(name, name) for name in written]
    if twice := [name for name, count in Counter(columns).items() if count > 1 and name in renamed]:
        findings.add(COLUMNS, str(path), f"several columns are {' and '.join(twice)}; {there}")
        return None
    if missing := _missing(columns):
        hint = "; a column of another name is given with --column, such as --column video=recording"
        findings.add(COLUMNS, str(path), f"there is no column {missing}; {there}{hint}")
        return None
    return columns


def _missing(columns: Sequence[str]) -> str:
    needed = [name for name in ("question", "answer") if name not in columns]
    return " and ".join(needed if {*MEDIA, *ALIASES} & set(columns) else ["video", *needed])


def _with_medium(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose medium stands under one of the names that are understood, with it under its kind."""
    alias = next((name for name in ALIASES if name in row), None)
    if alias is None or any(name in row for name in MEDIA):
        return row
    kind = "image" if kind_of(row[alias]) == "image" else "video"
    return {kind if name == alias else name: value for name, value in row.items()}


def rename_fields(row: Any, renamed: Mapping[str, str]) -> Any:
    """A row of another format with its fields under the names that they are read by."""
    names = {old: new for new, old in renamed.items()}
    return {names.get(name, name): value for name, value in row.items()} if isinstance(row, dict) else row


def question_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row with a question and an answer of its own as one with turns; other rows as they are."""
    if "conversations" in row or "messages" in row or not {"question", "answer"} & row.keys():
        return row
    rest = {name: value for name, value in row.items() if name not in ("question", "answer")}
    if isinstance(rest.get("video_fps"), str):
        rest["video_fps"] = _number(rest["video_fps"])
    question, answer = row.get("question", ""), row.get("answer", "")
    return {**rest, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def parquet_rows(files: Sequence[Path], findings: Findings, renamed: Mapping[str, str]) -> Rows:
    """Rows of parquet files or of the Arrow files that `save_to_disk` writes, in order; empty fields are left out."""
    import pyarrow as pa

    index = 0
    for file in files:
        try:
            for batch in _batches(file):
                for row in batch.to_pylist():
                    yield index, question_row(rename_fields(_filled(row), renamed))
                    index += 1
        except (pa.ArrowException, OSError, ValueError) as broken:
            findings.add(TABLE_UNREADABLE, str(file), f"{type(broken).__name__}: {str(broken)[:200]}")


def _batches(file: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.suffix == ".arrow":
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            yield from stream
    else:
        with pq.ParquetFile(file) as table:
            yield from table.iter_batches(BATCH)


def _filled(value: Any) -> Any:
    """The value without the empty fields that a table gives every row."""
    if isinstance(value, dict):
        return {name: _filled(inner) for name, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if isinstance(value, list) else value


def table_files(folder: Path) -> list[Path]:
    """The files of the one split in a data set folder, in order. Raises DATATOOLS_SEVERAL_SPLITS."""
    if (folder / "dataset_dict.json").is_file():
        parts = sorted(path.parent for path in folder.glob("*/state.json"))
        if len(parts) != 1:
            names = ", ".join(part.name for part in parts) or "none"
            raise SEVERAL_SPLITS.error(folder, f"it holds the splits {names}")
        folder = parts[0]
    arrow = _arrow_files(folder)
    if arrow:
        return arrow
    found = sorted([*folder.glob("*.parquet"), *folder.glob("data/*.parquet"), *folder.glob("default/*/*.parquet")])
    splits = sorted({_split_of(file) for file in found})
    if len(splits) > 1:
        raise SEVERAL_SPLITS.error(folder, f"it holds the splits {', '.join(splits)}")
    return found


def _split_of(file: Path) -> str:
    shard = SHARD.fullmatch(file.stem)
    return shard[1] if shard else file.stem


def _arrow_files(folder: Path) -> list[Path]:
    """What state.json lists, or else every Arrow file, by name."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return [folder / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return sorted(folder.glob("*.arrow"))


def parquet_bytes(records: Sequence[Record]) -> bytes:
    """A parquet file with the columns id, kind, video_fps and messages; provenance where a record has one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = pa.struct([(name, pa.string()) for name in ("type", "text", "video", "image")])
    turn = pa.struct([("role", pa.string()), ("content", pa.list_(part))])
    columns = [("id", pa.string()), ("kind", pa.string()), ("video_fps", pa.float64())]
    if any(record.provenance for record in records):
        columns.append(
            ("provenance", pa.struct([("origin", pa.string()), ("round", pa.int64()), ("gap", pa.string())]))
        )
    columns.append(("messages", pa.list_(turn)))
    table = pa.Table.from_pylist([table_row(record) for record in records], schema=pa.schema(columns))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def hub_folder(folder: Path, records: Sequence[Record]) -> dict[Path, bytes]:
    """The files of a folder that `datasets.load_dataset(folder)` reads: one parquet shard and a card."""
    return {
        folder / "data" / "train-00000-of-00001.parquet": parquet_bytes(records),
        folder / "README.md": CARD.format(n=len(records)).encode(),
    }
