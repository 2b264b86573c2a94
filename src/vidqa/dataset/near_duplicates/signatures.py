"""The signature of every file: three frames, decoded in workers that are killed when they hang, and kept in a cache."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from vidqa.contract.environment import cache_folder
from vidqa.contract.files import remove
from vidqa.contract.problem import Problem
from vidqa.contract.progress import counting
from vidqa.dataset.near_duplicates.perceptual_hash import signature
from vidqa.dataset.record import MediaRef
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.probe_many import Header
from vidqa.video.types import VideoMeta

EVENLY = 8  # frames that a plan takes by default; its first, middle and last are sampled
MOST_WORKERS = 16
TIMEOUT_S = 60.0
MOST_KEPT = 1_000_000  # files in the cache
AT_ONCE = 4096  # files between two saves, so that an interruption loses no more
THUMBNAILS = "vidqa.dataset.near_duplicates.perceptual_hash:thumbnails"  # the transform of a decode pool
# The names in the cache are older than those here.
TABLE = "CREATE TABLE IF NOT EXISTS glance (path TEXT, member TEXT, stamp TEXT, seen BLOB, PRIMARY KEY (path, member))"
Frames = tuple[int, ...]


def sampled_frames(header: Header) -> Frames | None:
    """The numbers of the frames; None where the file cannot be read."""
    if isinstance(header, VideoMeta):
        evenly = np.linspace(0, header.frame_count - 1, EVENLY).round().astype(int)
        return tuple(evenly[[0, EVENLY // 2, EVENLY - 1]].tolist())
    return None if isinstance(header, list) else (0,)


def signatures(
    media: Iterable[MediaRef], headers: Mapping[str, Header], timeout_s: float = TIMEOUT_S
) -> dict[str, bytes]:
    """The signature of each medium, by its key; one that cannot be decoded in time is left out.

    `headers` are those of the media, by key. A signature in the cache holds while the file's size and time do.
    """
    sampled = {ref.key: (ref, frames) for ref in media if (frames := sampled_frames(headers[ref.key]))}
    found = _cached(sampled)
    left = [key for key in sampled if key not in found]
    if not left:
        return found
    with (
        DecodePool(min(MOST_WORKERS, len(os.sched_getaffinity(0))), timeout_s, THUMBNAILS) as pool,
        counting("looking at", len(left)) as advance,
    ):
        for start in range(0, len(left), AT_ONCE):
            part = left[start : start + AT_ONCE]
            answers = [pool.submit(_request(*sampled[key])) for key in part]
            new = {}
            for key, answer in zip(part, answers, strict=True):
                frames = answer.result()
                if not isinstance(frames, Problem):
                    new[key] = signature(frames)
                advance()
            _keep([(*sampled[key], seen) for key, seen in new.items()])
            found |= new
    return found


def keep_signatures(seen: Iterable[tuple[MediaRef, Frames, bytes]], headers: Mapping[str, Header]) -> None:
    """Keep signatures that were made elsewhere, where they are of the frames that are sampled here."""
    _keep([each for each in seen if each[1] == sampled_frames(headers[each[0].key])])


def _request(ref: MediaRef, frames: Frames) -> DecodeRequest:
    return DecodeRequest(ref.path, ref.member, ref.kind, frames, 0, 0)


def _place() -> Path:
    return cache_folder() / "glances.sqlite"


def _stamp(ref: MediaRef, frames: Frames) -> str:
    """Changes with the file, and with the frames that are sampled. Raises OSError."""
    status = os.stat(ref.path)
    return f"{status.st_size} {status.st_mtime_ns} {frames}"


def _cached(sampled: Mapping[str, tuple[MediaRef, Frames]]) -> dict[str, bytes]:
    found = {}
    try:
        with closing(sqlite3.connect(f"{_place().absolute().as_uri()}?mode=ro", uri=True)) as table:
            for key, (ref, frames) in sampled.items():
                query = "SELECT seen FROM glance WHERE path = ? AND member = ? AND stamp = ?"
                row = table.execute(query, (ref.path, ref.member or "", _stamp(ref, frames))).fetchone()
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
        remove(_place(), owner=_place().parent)


def _write(rows: list[tuple[str, str, str, bytes]]) -> None:
    with closing(sqlite3.connect(_place(), timeout=10)) as table, table:
        table.execute(TABLE)
        table.executemany("INSERT OR REPLACE INTO glance VALUES (?, ?, ?, ?)", rows)
        table.execute("DELETE FROM glance WHERE rowid <= (SELECT max(rowid) FROM glance) - ?", (MOST_KEPT,))
