"""The metrics of a run as they come: each row of its metrics.jsonl once, from any position on.

A run that goes on from a checkpoint rewrites the file without the steps that it will take again. A position therefore
says by content where its reader is; rows of steps that are taken again are passed over, as their reader has them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vidqa.contract import files
from vidqa.contract.run_folder import METRICS, parse_metric


@dataclass(frozen=True)
class Position:
    """Behind a line of `length` bytes and checksum `crc32` that ends at byte `offset` and is row `row` of its `step`;
    the defaults are the beginning. `dataclasses.asdict` makes it JSON, so that a reader can go on after it was killed.
    """

    offset: int = 0
    length: int = 0
    crc32: int = 0
    step: int = -1
    row: int = 0


class Row(NamedTuple):
    """One event of a run, such as {"step": 3, "time": ..., "train/loss": ...}, and the position behind it."""

    values: dict[str, Any]
    position: Position


def rows_after(run_dir: Path, position: Position) -> list[Row]:
    """What a run has written since `position`; nothing yet where there is no such file. Half a last line is left for
    the next time, and a line that a kill cut off is passed over. Raises OSError."""
    try:
        with files.open_plain(run_dir / METRICS) as file:
            is_there = _is_there(file, position)
            end = file.seek(position.offset if is_there else 0)
            whole = file.read()
    except FileNotFoundError:
        return []
    step, row = (position.step, position.row) if is_there else (-1, 0)
    found = []
    for line in whole[: whole.rfind(b"\n") + 1].splitlines(keepends=True):
        end += len(line)
        if (event := parse_metric(line)) is None:
            continue
        row = row + 1 if event["step"] == step else 1
        step = event["step"]
        if is_there or (step, row) > (position.step, position.row):
            found.append(Row(event, Position(end, len(line), zlib.crc32(line), step, row)))
    return found


def _is_there(file: BinaryIO, position: Position) -> bool:
    """Whether the file still holds the line that was read last, at its place."""
    file.seek(position.offset - position.length)
    return zlib.crc32(file.read(position.length)) == position.crc32
