"""The gap table: its columns, and a writer that streams rows to parquet and JSON lines."""

from __future__ import annotations

import json
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from vidqa.evaluation.text import as_text

# The first three are the original contract. The same columns and types are written when there are no rows.
SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),  # full path
        ("question", pa.string()),
        ("ground_truth", pa.string()),
        ("sample_id", pa.string()),
        ("kind", pa.string()),  # the annotation's own kind of question, else the answer kind
        ("response", pa.string()),  # null where there is none
        ("parsed_response", pa.string()),
        ("parsed_ground_truth", pa.string()),
        ("error_type", pa.string()),  # wrong | truncated | unparsed | empty | missing
        ("match_mode", pa.string()),
        ("source_results", pa.string()),  # the results file; null where the result is missing
        ("row_index", pa.int64()),  # its place in that file, from 0
    ],
    metadata={"vidqa.schema": "vidqa.gaps.v1"},
)
GAP_COLUMNS = tuple(SCHEMA.names)
_BATCH = 50_000

Row = tuple[Any, ...]  # one value per column, in the order of GAP_COLUMNS


class GapTable:
    """Gathers rows and writes them in batches, so that memory does not grow with the table.

    `parquet` was opened with SCHEMA; `lines`, if given, gets each row as a JSON line too. Call `flush` at the end.
    """

    def __init__(self, parquet: pq.ParquetWriter, lines: TextIO | None = None) -> None:
        self._parquet, self._lines = parquet, lines
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        columns = zip(*self._rows, strict=True) if self._rows else [() for _ in SCHEMA]
        arrays = [_array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        self._parquet.write_batch(pa.record_batch(arrays, schema=SCHEMA))
        if self._lines:
            for row in self._rows:
                named = dict(zip(GAP_COLUMNS, row, strict=True))
                self._lines.write(as_text(json.dumps(named, ensure_ascii=False)) + "\n")
        self._rows.clear()


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type=kind)
    except UnicodeEncodeError:  # JSON may hold half of a surrogate pair, which no file can
        return pa.array([None if value is None else as_text(value) for value in values], type=kind)
