"""The metrics of a run as they are written: each row of metrics.jsonl once, from any position on.

A resumed run rewrites the file without the steps that it repeats. So a position identifies the last row by content, and
rows of repeated steps that the reader already has are skipped.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vidqa.core import files
from vidqa.core.run_folder import METRICS, parse_metric


@dataclass(frozen=True)
class Position:
    """The position after a line of `length` bytes and checksum `crc32` that ends at byte `offset` and is row `row` of
    its `step`; the defaults are the beginning of the file. `dataclasses.asdict` gives JSON for a reader that restarts.
    """

    offset: int = 0
    length: int = 0
    crc32: int = 0
    step: int = -1
    row: int = 0


class Row(NamedTuple):
    """One event of a run, such as {"step": 3, "time": ..., "train/loss": ...}, and the position after it."""

    values: dict[str, Any]
    position: Position


def rows_after(run_dir: Path, position: Position) -> list[Row]:
    """The rows after `position`; none where the file is missing. An incomplete last line is left for the next call, and
    a truncated line is skipped. Raises OSError."""
    try:
        with files.open_plain(run_dir / METRICS) as file:
            is_there = _is_there(file, position)
            end = file.seek(position.offset if is_there else 0)
            whole = file.read()
    except FileNotFoundError:
        return []
    step, row = (position.step, position.row) if is_there else (-1, 0)
    rows = []
    for line in whole[: whole.rfind(b"\n") + 1].splitlines(keepends=True):
        end += len(line)
        if (event := parse_metric(line)) is None:
            continue
        row = row + 1 if event["step"] == step else 1
        step = event["step"]
        if is_there or (step, row) > (position.step, position.row):
            rows.append(Row(event, Position(end, len(line), zlib.crc32(line), step, row)))
    return rows


def _is_there(file: BinaryIO, position: Position) -> bool:
    """Whether the file still has the line that was read last, at its offset."""
    file.seek(position.offset - position.length)
    return zlib.crc32(file.read(position.length)) == position.crc32
