"""Near duplicates: files of one scene, cut or encoded again, whatever their names and bytes.

Decode workers make an 8 x 8 grey thumbnail of each sampled frame. The signature of a file is the thumbnails of three
frames; its bits, one for each cell brighter than the mean, are an average hash. Files with near hashes are compared by
their greys and their correlation. Signatures are cached.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from vidqa.core.cli import counting
from vidqa.core.environment import cache_folder
from vidqa.core.files import remove
from vidqa.core.problem import Problem
from vidqa.data.record import MediaRef
from vidqa.video.pool import DecodePool, DecodeRequest
from vidqa.video.probe import Header
from vidqa.video.types import VideoMeta

SIDE = 8
SAME_BITS = 4  # of 64: thumbnails that differ in no more are the same, if their greys are
LIKELY_BITS = 14  # of 64: up to here the correlation decides; cells as grey as the mean tip with every encoding
NEAR_CORRELATION = 0.98
MOST_GREY = 6.0  # levels of 255 that thumbnails differ in on average
FINE = 8  # pixels of each cell and side that are looked at
PIECE, WIDE = 256, 16384  # files compared with how many others at once, to bound memory
PAIRS_AT_ONCE = 1 << 16  # pairs whose greys are compared at once
MOST_PAIRS = 1_000_000  # that are named; clips that are all black make more
EVENLY = 8  # frames that a plan takes by default; its first, middle and last are sampled
MOST_WORKERS = 16
TIMEOUT_S = 60.0
MOST_KEPT = 1_000_000  # files in the cache
AT_ONCE = 4096  # files between two saves, so that an interruption loses no more
THUMBNAILS = "vidqa.data.near_duplicates:thumbnails"  # the transform of a decode pool
# The names in the cache are older than those here.
TABLE = "CREATE TABLE IF NOT EXISTS glance (path TEXT, member TEXT, stamp TEXT, seen BLOB, PRIMARY KEY (path, member))"
Frames = tuple[int, ...]


def thumbnails(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [N, 64] of uint8 [N, H, W, 3]: the mean grey of every cell of an 8 x 8 grid."""
    count, tall, wide = frames.shape[:3]
    side = SIDE * FINE
    rows, columns = np.arange(side) * tall // side, np.arange(side) * wide // side
    grey = frames[:, rows][:, :, columns].mean(axis=-1, dtype=np.float32)
    cells = grey.reshape(count, SIDE, FINE, SIDE, FINE).mean(axis=(2, 4))
    return cells.round().astype(np.uint8).reshape(count, SIDE * SIDE)


def signature(frames: np.ndarray) -> bytes:
    """The signature of a file with the thumbnails uint8 [N, 64]: its first, middle and last one, 192 bytes."""
    return frames[[0, len(frames) // 2, len(frames) - 1]].tobytes()


def near_duplicate_pairs(these: Sequence[bytes], those: Sequence[bytes]) -> list[tuple[int, int]]:
    """Pairs of indices of signatures that are near duplicates, at most MOST_PAIRS.

    In each of the three thumbnails the greys differ by at most MOST_GREY on average, and at most SAME_BITS of the hash
    differ, or LIKELY_BITS where the thumbnails correlate by NEAR_CORRELATION.
    """
    pairs: list[tuple[int, int]] = []
    if these and those:
        for part in _pairs(_thumbnails_of(these), _thumbnails_of(those)):
            pairs += map(tuple, part[: MOST_PAIRS - len(pairs)].tolist())
            if len(pairs) == MOST_PAIRS:
                break
    return sorted(pairs)


def groups_alike(media: Iterable[MediaRef], headers: Mapping[str, Header]) -> tuple[list[list[str]], int, int]:
    """(groups of keys of near duplicates, how many pairs there are, how many media could be decoded)."""
    by_key = signatures(media, headers)
    keys = sorted(by_key)
    groups, pairs = near_duplicate_groups([by_key[key] for key in keys])
    return [[keys[at] for at in group] for group in groups], pairs, len(keys)


def near_duplicate_groups(signatures: Sequence[bytes]) -> tuple[list[list[int]], int]:
    """(groups of indices of near duplicates, directly or in a chain, how many pairs there are)."""
    if not signatures:
        return [], 0
    all_thumbnails = _thumbnails_of(signatures)
    group = np.arange(len(signatures))
    count = 0
    for pairs in _pairs(all_thumbnails, all_thumbnails):
        pairs = pairs[pairs[:, 0] < pairs[:, 1]]
        count += len(pairs)
        while len(pairs := pairs[group[pairs[:, 0]] != group[pairs[:, 1]]]):
            one, other = group[pairs[0]]
            group[group == other] = one
    members: dict[int, list[int]] = defaultdict(list)
    for at, name in enumerate(group.tolist()):
        members[name].append(at)
    return [group for group in members.values() if len(group) > 1], count


def _pairs(left: np.ndarray, right: np.ndarray) -> Iterator[np.ndarray]:
    """int [N, 2]: some of the pairs of near duplicates, until all were given."""
    left_bits, right_bits = _bits(left), _bits(right)
    for start in range(0, len(left), PIECE):
        for other in range(0, len(right), WIDE):
            these, those = left_bits[start : start + PIECE], right_bits[other : other + WIDE]
            near = np.bitwise_count(these[:, None, 0] ^ those[None, :, 0]) <= LIKELY_BITS
            candidates = np.argwhere(near)
            differing = np.bitwise_count(these[candidates[:, 0]] ^ those[candidates[:, 1]]).max(axis=-1, initial=0)
            likely = differing <= LIKELY_BITS
            candidates, differing = candidates[likely] + (start, other), differing[likely]
            for at in range(0, len(candidates), PAIRS_AT_ONCE):
                part, bits = candidates[at : at + PAIRS_AT_ONCE], differing[at : at + PAIRS_AT_ONCE]
                one, another = left[part[:, 0]], right[part[:, 1]]
                grey = np.abs(one - another).mean(axis=-1).max(axis=-1)
                same = (bits <= SAME_BITS) | (_correlation(one, another) >= NEAR_CORRELATION)
                yield part[same & (grey <= MOST_GREY)]


def _correlation(one: np.ndarray, another: np.ndarray) -> np.ndarray:
    """float32 [N]: the smallest of the three thumbnails' correlations; 0 for one of a single grey."""
    one = one - one.mean(axis=-1, keepdims=True)
    another = another - another.mean(axis=-1, keepdims=True)
    sizes = np.linalg.norm(one, axis=-1) * np.linalg.norm(another, axis=-1)
    return ((one * another).sum(axis=-1) / np.maximum(sizes, 1e-6)).min(axis=-1)


def _thumbnails_of(signatures: Sequence[bytes]) -> np.ndarray:
    """float32 [N, 3, 64]"""
    return np.frombuffer(b"".join(signatures), np.uint8).reshape(len(signatures), 3, SIDE * SIDE).astype(np.float32)


def _bits(grey: np.ndarray) -> np.ndarray:
    """uint64 [N, 3]: which cells are brighter than their thumbnail's mean."""
    bright = grey > grey.mean(axis=-1, keepdims=True)
    return np.packbits(bright, axis=-1).view(np.uint64)[..., 0]


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
    by_key = _cached(sampled)
    left = [key for key in sampled if key not in by_key]
    if not left:
        return by_key
    with (
        DecodePool(min(MOST_WORKERS, len(os.sched_getaffinity(0))), timeout_s, THUMBNAILS) as pool,
        counting("looking at", len(left)) as advance,
    ):
        for start in range(0, len(left), AT_ONCE):
            part = left[start : start + AT_ONCE]
            chosen = (sampled[key] for key in part)
            requests = [DecodeRequest(ref.path, ref.member, ref.kind, frames, 0, 0) for ref, frames in chosen]
            answers = [pool.submit(request) for request in requests]
            new = {}
            for key, answer in zip(part, answers, strict=True):
                frames = answer.result()
                if not isinstance(frames, Problem):
                    new[key] = signature(frames)
                advance()
            _keep([(*sampled[key], signature_bytes) for key, signature_bytes in new.items()])
            by_key |= new
    return by_key


def keep_signatures(entries: Iterable[tuple[MediaRef, Frames, bytes]], headers: Mapping[str, Header]) -> None:
    """Keep signatures that were made elsewhere, where they are of the frames that are sampled here."""
    _keep([entry for entry in entries if entry[1] == sampled_frames(headers[entry[0].key])])


def _place() -> Path:
    return cache_folder() / "glances.sqlite"


def _stamp(ref: MediaRef, frames: Frames) -> str:
    """Changes with the file, and with the frames that are sampled. Raises OSError."""
    status = os.stat(ref.path)
    return f"{status.st_size} {status.st_mtime_ns} {frames}"


def _cached(sampled: Mapping[str, tuple[MediaRef, Frames]]) -> dict[str, bytes]:
    cached = {}
    with (
        suppress(sqlite3.Error, OSError, UnicodeError),  # not there yet, or damaged: what is missing is decoded
        closing(sqlite3.connect(f"{_place().absolute().as_uri()}?mode=ro", uri=True)) as table,
    ):
        for key, (ref, frames) in sampled.items():
            query = "SELECT seen FROM glance WHERE path = ? AND member = ? AND stamp = ?"
            row = table.execute(query, (ref.path, ref.member or "", _stamp(ref, frames))).fetchone()
            if row and isinstance(row[0], bytes) and len(row[0]) == 192:
                cached[key] = row[0]
    return cached


def _keep(entries: Iterable[tuple[MediaRef, Frames, bytes]]) -> None:
    """Write down what was found; where that cannot be done, the files are decoded again the next time."""
    try:
        rows = [(ref.path, ref.member or "", _stamp(ref, frames), content) for ref, frames, content in entries]
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
