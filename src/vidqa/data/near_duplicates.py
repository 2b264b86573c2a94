"""Near duplicates: files of one scene, cut or encoded again, whatever their names and bytes.

Decode workers make an 8 x 8 grey thumbnail of each sampled frame. The signature of a file is the thumbnails of three
frames; its bits, one for each cell brighter than the mean, are an average hash. Files with near hashes are compared by
grey levels and correlation. Signatures are cached.
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
SAME_BITS = 4  # of 64: thumbnails that differ in at most so many are the same, if their grey levels are close
LIKELY_BITS = 14  # of 64: up to here the correlation decides; cells near the mean flip with every encoding
NEAR_CORRELATION = 0.98
MOST_GREY = 6.0  # mean difference of grey levels, of 255
FINE = 8  # sampled pixels per side of each cell
PIECE, WIDE = 256, 16384  # files compared with so many others at once, to bound memory
PAIRS_AT_ONCE = 1 << 16  # pairs whose grey levels are compared at once
MOST_PAIRS = 1_000_000  # of a result; a data set of black clips has more
EVENLY = 8  # evenly spaced frame numbers, as in a default plan; the first, middle and last are sampled
MOST_WORKERS = 16
TIMEOUT_S = 60.0
MOST_KEPT = 1_000_000  # files in the cache
AT_ONCE = 4096  # files between two saves: the most that an interruption loses
THUMBNAILS = "vidqa.data.near_duplicates:thumbnails"  # the transform of a decode pool
# Table and column names of the cache are older than the names in this module.
TABLE = "CREATE TABLE IF NOT EXISTS glance (path TEXT, member TEXT, stamp TEXT, seen BLOB, PRIMARY KEY (path, member))"
Frames = tuple[int, ...]


def thumbnails(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """Mean grey levels of the cells of an 8 x 8 grid: uint8 [N, H, W, 3] to uint8 [N, 64]."""
    count, tall, wide = frames.shape[:3]
    side = SIDE * FINE
    rows, columns = np.arange(side) * tall // side, np.arange(side) * wide // side
    grey = frames[:, rows][:, :, columns].mean(axis=-1, dtype=np.float32)
    cells = grey.reshape(count, SIDE, FINE, SIDE, FINE).mean(axis=(2, 4))
    return cells.round().astype(np.uint8).reshape(count, SIDE * SIDE)


def signature(frames: np.ndarray) -> bytes:
    """The signature of a file with the thumbnails uint8 [N, 64]: the first, middle and last of them, 192 bytes."""
    return frames[[0, len(frames) // 2, len(frames) - 1]].tobytes()


def near_duplicate_pairs(these: Sequence[bytes], those: Sequence[bytes]) -> list[tuple[int, int]]:
    """Index pairs of signatures that are near duplicates, at most MOST_PAIRS.

    In each of the three thumbnails the grey levels differ by at most MOST_GREY on average, and the hashes in at most
    SAME_BITS, or in at most LIKELY_BITS where the thumbnails correlate by NEAR_CORRELATION.
    """
    pairs: list[tuple[int, int]] = []
    if these and those:
        for part in _pairs(_thumbnails_of(these), _thumbnails_of(those)):
            pairs += map(tuple, part[: MOST_PAIRS - len(pairs)].tolist())
            if len(pairs) == MOST_PAIRS:
                break
    return sorted(pairs)


def groups_alike(media: Iterable[MediaRef], headers: Mapping[str, Header]) -> tuple[list[list[str]], int, int]:
    """Return (groups of keys of near duplicates, number of pairs, number of decodable media)."""
    by_key = signatures(media, headers)
    keys = sorted(by_key)
    groups, pairs = near_duplicate_groups([by_key[key] for key in keys])
    return [[keys[at] for at in group] for group in groups], pairs, len(keys)


def near_duplicate_groups(signatures: Sequence[bytes]) -> tuple[list[list[int]], int]:
    """Return (groups of indices of near duplicates, directly or in a chain, number of pairs)."""
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
    """Yield all pairs of near duplicates, in arrays int [N, 2]."""
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
    """The smallest of the three thumbnails' correlations, float32 [N]; 0 for a thumbnail of uniform grey."""
    one = one - one.mean(axis=-1, keepdims=True)
    another = another - another.mean(axis=-1, keepdims=True)
    sizes = np.linalg.norm(one, axis=-1) * np.linalg.norm(another, axis=-1)
    return ((one * another).sum(axis=-1) / np.maximum(sizes, 1e-6)).min(axis=-1)


def _thumbnails_of(signatures: Sequence[bytes]) -> np.ndarray:
    """Decode signatures to thumbnails, float32 [N, 3, 64]."""
    return np.frombuffer(b"".join(signatures), np.uint8).reshape(len(signatures), 3, SIDE * SIDE).astype(np.float32)


def _bits(grey: np.ndarray) -> np.ndarray:
    """Average hashes, uint64 [N, 3]: a bit is set where a cell is brighter than its thumbnail's mean."""
    bright = grey > grey.mean(axis=-1, keepdims=True)
    return np.packbits(bright, axis=-1).view(np.uint64)[..., 0]


def sampled_frames(header: Header) -> Frames | None:
    """The numbers of the sampled frames; None where the file cannot be read."""
    if isinstance(header, VideoMeta):
        evenly = np.linspace(0, header.frame_count - 1, EVENLY).round().astype(int)
        return tuple(evenly[[0, EVENLY // 2, EVENLY - 1]].tolist())
    return None if isinstance(header, list) else (0,)


def signatures(
    media: Iterable[MediaRef], headers: Mapping[str, Header], timeout_s: float = TIMEOUT_S
) -> dict[str, bytes]:
    """The signature of each medium, by its key; media that cannot be decoded in time are left out.

    `headers` are the metadata of the media, by key. A cached signature is valid while the file's size and mtime are.
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
    """Cache signatures computed elsewhere, if they are of the frames that are sampled here."""
    _keep([entry for entry in entries if entry[1] == sampled_frames(headers[entry[0].key])])


def _place() -> Path:
    return cache_folder() / "glances.sqlite"


def _stamp(ref: MediaRef, frames: Frames) -> str:
    """Cache key that changes with the file and with the sampled frames. Raises OSError."""
    status = os.stat(ref.path)
    return f"{status.st_size} {status.st_mtime_ns} {frames}"


def _cached(sampled: Mapping[str, tuple[MediaRef, Frames]]) -> dict[str, bytes]:
    cached = {}
    with (
        suppress(sqlite3.Error, OSError, UnicodeError),  # no cache yet, or damaged: missing signatures are computed
        closing(sqlite3.connect(f"{_place().absolute().as_uri()}?mode=ro", uri=True)) as table,
    ):
        for key, (ref, frames) in sampled.items():
            query = "SELECT seen FROM glance WHERE path = ? AND member = ? AND stamp = ?"
            row = table.execute(query, (ref.path, ref.member or "", _stamp(ref, frames))).fetchone()
            if row and isinstance(row[0], bytes) and len(row[0]) == 192:
                cached[key] = row[0]
    return cached


def _keep(entries: Iterable[tuple[MediaRef, Frames, bytes]]) -> None:
    """Write signatures to the cache; where that fails, the files are decoded again the next time."""
    try:
        rows = [(ref.path, ref.member or "", _stamp(ref, frames), content) for ref, frames, content in entries]
        if rows:
            _place().parent.mkdir(parents=True, exist_ok=True)
            _write(rows)
    except (sqlite3.OperationalError, OSError, UnicodeError):  # locked for long, a full disk, a deleted file
        pass
    except sqlite3.DatabaseError:  # damaged
        remove(_place(), owner=_place().parent)


def _write(rows: list[tuple[str, str, str, bytes]]) -> None:
    with closing(sqlite3.connect(_place(), timeout=10)) as table, table:
        table.execute(TABLE)
        table.executemany("INSERT OR REPLACE INTO glance VALUES (?, ?, ?, ?)", rows)
        table.execute("DELETE FROM glance WHERE rowid <= (SELECT max(rowid) FROM glance) - ?", (MOST_KEPT,))
