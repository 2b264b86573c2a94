"""A glance at every file: three frames of it, decoded in workers that are killed when they hang, and remembered."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from vidqa.contract.environment import cache_folder
from vidqa.contract.problem import Problem
from vidqa.contract.progress import counting
from vidqa.dataset.near_duplicates.pictures import glance
from vidqa.dataset.record import MediaRef
from vidqa.video.headers import Header
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.types import VideoMeta

EVENLY = 8  # frames that a plan takes by default; its first, middle and last are those that are looked at
MOST_WORKERS = 16
TIMEOUT_S = 60.0
MOST_KEPT = 1_000_000  # files that are remembered
AT_ONCE = 4096  # files between two saves, so that an interruption loses no more
THUMBNAILS = "vidqa.dataset.near_duplicates.pictures:thumbnails"
TABLE = "CREATE TABLE IF NOT EXISTS glance (path TEXT, member TEXT, stamp TEXT, seen BLOB, PRIMARY KEY (path, member))"
Frames = tuple[int, ...]


def frames_looked_at(header: Header) -> Frames | None:
    """The numbers of the frames; None where the file cannot be read."""
    if isinstance(header, VideoMeta):
        evenly = np.linspace(0, header.frame_count - 1, EVENLY).round().astype(int)
        return tuple(evenly[[0, EVENLY // 2, EVENLY - 1]].tolist())
    return None if isinstance(header, list) else (0,)


def glances(media: Iterable[MediaRef], headers: Mapping[str, Header], timeout_s: float = TIMEOUT_S) -> dict[str, bytes]:
    """What each medium looks like at a glance, by its key; one that cannot be decoded in time is left out.

    `headers` are those of the media, by key. What was found before in a file of the same size and time holds.
    """
    wanted = {ref.key: (ref, frames) for ref in media if (frames := frames_looked_at(headers[ref.key]))}
    found = _remembered(wanted)
    left = [key for key in wanted if key not in found]
    if not left:
        return found
    with (
        DecodePool(min(MOST_WORKERS, len(os.sched_getaffinity(0))), timeout_s, THUMBNAILS) as pool,
        counting("looking at", len(left)) as advance,
    ):
        for start in range(0, len(left), AT_ONCE):
            part = left[start : start + AT_ONCE]
            answers = [pool.submit(_request(*wanted[key])) for key in part]
            new = {}
            for key, answer in zip(part, answers, strict=True):
                frames = answer.result()
                if not isinstance(frames, Problem):
                    new[key] = glance(frames)
                advance()
            _keep([(*wanted[key], seen) for key, seen in new.items()])
            found |= new
    return found


def remember(seen: Iterable[tuple[MediaRef, Frames, bytes]], headers: Mapping[str, Header]) -> None:
    """Keep glances that were had by the way, where they are of the frames that are looked at here."""
    _keep([each for each in seen if each[1] == frames_looked_at(headers[each[0].key])])


def _request(ref: MediaRef, frames: Frames) -> DecodeRequest:
    return DecodeRequest(ref.path, ref.member, ref.kind, frames, 0, 0)


def _place() -> Path:
    return cache_folder() / "glances.sqlite"


def _stamp(ref: MediaRef, frames: Frames) -> str:
    """Changes with the file, and with the frames that are looked at. Raises OSError."""
    status = os.stat(ref.path)
    return f"{status.st_size} {status.st_mtime_ns} {frames}"


def _remembered(wanted: Mapping[str, tuple[MediaRef, Frames]]) -> dict[str, bytes]:
    found = {}
    try:
        with closing(sqlite3.connect(f"{_place().absolute().as_uri()}?mode=ro", uri=True)) as table:
            for key, (ref, frames) in wanted.items():
                ask = "SELECT seen FROM glance WHERE path = ? AND member = ? AND stamp = ?"
                row = table.execute(ask, (ref.path, ref.member or "", _stamp(ref, frames))).fetchone()
                if row and isinstance(row[0], bytes) and len(row[0]) == 192:
                    found[key] = row[0]
    except (sqlite3.Error, OSError, UnicodeError):  # not there yet, or damaged: what is missing is decoded
        pass
    return found


def _keep(seen: Iterable[tuple[MediaRef, Frames, bytes]]) -> None:
    """Write down what was found; where that cannot be done, the files are decoded again the next time."""
    try:
        rows = [(ref.path, ref.member or "", _stamp(ref, frames), each) for ref, frames, each in seen]
        if rows:
            _place().parent.mkdir(parents=True, exist_ok=True)
            _write(rows)
    except (sqlite3.OperationalError, OSError, UnicodeError):  # locked for long, a full disk, a file that is gone
        pass
    except sqlite3.DatabaseError:  # damaged
        _place().unlink(missing_ok=True)


def _write(rows: list[tuple[str, str, str, bytes]]) -> None:
    with closing(sqlite3.connect(_place(), timeout=10)) as table, table:
        table.execute(TABLE)
        table.executemany("INSERT OR REPLACE INTO glance VALUES (?, ?, ?, ?)", rows)
        table.execute("DELETE FROM glance WHERE rowid <= (SELECT max(rowid) FROM glance) - ?", (MOST_KEPT,))
