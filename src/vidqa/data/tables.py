"""Read tables as rows: CSV with a header line, parquet, and the Arrow files that `datasets` saves."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vidqa.data.foreign_rows import MEDIA, PAIRS, WINDOW
from vidqa.data.media import kind_of
from vidqa.data.problems import FIELD, SYNTAX, ProblemCollector

LONGEST_CELL = 1 << 24
SEPARATOR = re.compile(r'"?sep=([^"\w\s]|\t)"?\r?$', re.IGNORECASE)  # the first line of a CSV for Excel
ALIASES = ("file", "path", "filename", "clip")  # columns that name the medium where no column of MEDIA exists
NAME_COLUMNS = (
    "Name the columns video (or image, file, path, filename, clip), question and answer, or convert it: "
    "python scripts/convert_dataset.py --column video=recording; id, kind, video_fps and options (a|b|c) are optional."
)
NOT_UTF8 = (
    "Save it as UTF-8: in a spreadsheet choose CSV UTF-8, or iconv -f CP1252 -t UTF-8 OLD.csv > NEW.csv (-f UTF-16 if "
    "its first byte is 0xff or 0xfe)."
)
BATCH = 256  # rows in memory at a time; each may hold a video
Rows = Iterator[tuple[int, Any]]
NO_NAMES: Mapping[str, str] = {}


def csv_rows(path: Path, collector: ProblemCollector, renamed: Mapping[str, str]) -> Rows:
    """Yield (line on which it begins, row) for each row of a CSV (.tsv: tabs) with a header line. Empty cells are left
    out, as are rows of empty cells. A first line `sep=;` (Excel's) names the separator; else semicolons separate the
    columns if the header has more of them than commas. Spaces after a separator do not count.

    `renamed` maps field names to column names: {"video": "recording"}.
    """
    reader = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(LONGEST_CELL)
            header = file.readline(LONGEST_CELL)
            file.seek(0)
            usual = "\t" if path.suffix.lower() == ".tsv" else max(",;", key=header.count)
            separator = declared[1] if (declared := SEPARATOR.match(header)) else usual
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True, strict=True)
            if declared:
                next(reader)
            written = [str(name).strip().lower() for name in next(filter(None, reader), ())]
            columns = _named(written, renamed, collector, path)
            if columns is None:
                return
            last = reader.line_num
            for cells in reader:
                line, last = last + 1, reader.line_num
                if len(cells) == len(columns):
                    filled: dict[str, Any] = {n: cell for n, cell in zip(columns, cells, strict=True) if cell.strip()}
                    for name in filled.keys() & {"video_fps", *WINDOW}:
                        with suppress(ValueError):  # reading the row says what it should be
                            filled[name] = float(filled[name])
                    if filled:
                        yield line, _with_medium(filled)
                elif any(cells):
                    message = f"the row has {len(cells)} cells, there are {len(columns)} columns"
                    collector.add(SYNTAX, f"{path}:{line}", message)
    except UnicodeDecodeError as broken:
        collector.add(SYNTAX, str(path), f"not UTF-8 text: it has a byte {broken.object[broken.start]:#04x}", NOT_UTF8)
    except (OSError, csv.Error) as broken:
        place = f"{path}:{reader.line_num}" if isinstance(broken, csv.Error) and reader else str(path)
        collector.add(SYNTAX, place, f"the CSV cannot be read: {broken}")


def _named(written: list[str], renamed: Mapping[str, str], collector: ProblemCollector, path: Path) -> list[str] | None:
    """The columns by field name; None, and a problem, if they do not make a record."""
    there = f"there are: {', '.join(written)[:200]}" if written else "the file is empty"
    if unknown := [old for old in renamed.values() if old.lower() not in written]:
        collector.add(
            FIELD, str(path), f"there is no column {' and no '.join(unknown)} to rename; {there}", NAME_COLUMNS
        )
        return None
    names = {old.lower(): new for new, old in renamed.items()}
    columns = [names.get(name, name) for name in written]
    read = {*renamed, *MEDIA, *ALIASES, "question", "answer"}
    if twice := [name for name, count in Counter(columns).items() if count > 1 and name in read]:
        collector.add(FIELD, str(path), f"several columns are {' and '.join(twice)}; {there}", NAME_COLUMNS)
        return None
    if missing := _missing(columns, collector.need_answers):
        collector.add(FIELD, str(path), f"there is no column {missing}; {there}", NAME_COLUMNS)
        return None
    return columns


def _missing(columns: Sequence[str], need_answers: bool) -> str:
    """The missing columns of a record, for a message; empty if there are none."""
    if PAIRS in columns or "conversations" in columns:
        return ""
    needed = [name for name in ("question", "answer")[: 1 + need_answers] if name not in columns]
    return " and ".join(needed if {*MEDIA, *ALIASES} & set(columns) else ["video", *needed])


def _with_medium(row: dict[str, Any]) -> dict[str, Any]:
    """Move a medium from one of the columns ALIASES to the field of its kind."""
    alias = next((name for name in ALIASES if name in row), None)
    if alias is None or any(name in row for name in MEDIA):
        return row
    kind = "image" if kind_of(row[alias]) == "image" else "video"
    return {kind if name == alias else name: value for name, value in row.items()}


def rename_fields(row: Any, renamed: Mapping[str, str], unseen: set[str]) -> Any:
    """Rename the fields of a row of another format; fields that the row has are removed from `unseen`."""
    if not renamed or not isinstance(row, dict):
        return row
    unseen.difference_update(row)
    fields = {new: row[old] for new, old in renamed.items() if old in row}
    rest = {name: value for name, value in row.items() if name not in renamed.values() and name not in fields}
    return {**rest, **fields}


def report_unseen(unseen: Iterable[str], collector: ProblemCollector, where: str) -> None:
    """Add a problem for fields to rename that no row has."""
    if names := ", ".join(sorted(unseen)):
        collector.add(FIELD, where, f"no row has a field {names} to rename", NAME_COLUMNS)


def table_rows(file: Path, collector: ProblemCollector) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file, or of an Arrow file of `save_to_disk`, without empty fields."""
    with _broken_table_reported(file, collector), _opened(file) as (_, batches):
        for batch in batches:
            yield from (_filled(row) or {} for row in batch.to_pylist())


def table_length(file: Path, collector: ProblemCollector) -> int:
    """Number of rows in such a file; 0, and a problem, if it cannot be read."""
    import pyarrow.parquet as pq

    with _broken_table_reported(file, collector):
        if file.suffix == ".parquet":
            return pq.read_metadata(file).num_rows
        with _opened(file) as (_, batches):
            return sum(batch.num_rows for batch in batches)
    return 0


@contextmanager
def _broken_table_reported(file: Path, collector: ProblemCollector) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as broken:
        message = f"{type(broken).__name__}: {str(broken)[:200]}"
        collector.add(SYNTAX, str(file), message, "Copy the table again from its source, or write it again.")


def has_bytes(files: Sequence[Path], renamed: Mapping[str, str]) -> bool:
    """Whether a column holds media themselves: bytes alone, or the type of Video and Image columns. False if the file
    cannot be read, which reading the rows reports."""
    import pyarrow as pa

    names = {renamed.get(field, field) for field in MEDIA}
    with suppress(pa.ArrowException, OSError, ValueError):
        for file in files[:1]:
            with _opened(file) as (schema, _):
                return any(_holds_bytes(column.type) for column in schema if column.name in names)
    return False


def _holds_bytes(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind):
        return _holds_bytes(kind.value_type)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return True
    return types.is_struct(kind) and kind.get_field_index("bytes") >= 0


@contextmanager
def _opened(file: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The schema of a table, and its rows in batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.suffix == ".arrow":
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            pieces = (batch.slice(first, BATCH) for batch in stream for first in range(0, batch.num_rows, BATCH))
            yield stream.schema, pieces
    else:
        with pq.ParquetFile(file) as table:
            yield table.schema_arrow, table.iter_batches(BATCH)


def _filled(value: Any) -> Any:
    """The value without the null fields that a table gives every row; None for a struct of nulls alone."""
    if isinstance(value, dict):
        return {name: filled for name, inner in value.items() if (filled := _filled(inner)) is not None} or None
    return [_filled(inner) for inner in value] if isinstance(value, list) else value
