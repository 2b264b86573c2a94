"""Groups of records that share a medium or files of the same bytes, whatever their names. Splits into training and
validation keep such groups whole. Only files of equal length are read; files that cannot be read are left out.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from vidqa.data.problems import SPLIT
from vidqa.data.record import MediaRef, Record, media_by_key
from vidqa.video.source import medium_hash

TEST_SIZE = "Set test_size between 0 and their number, use at least two videos, or give a validation set."


def split_by_video(records: Sequence[Record], test_size: int | float, seed: int) -> tuple[list[Record], list[Record]]:
    """Split records into (training, validation), both in the order of `records`.

    `test_size` is a number of records, or a fraction of them where it is below 1. Validation gets at most that many
    records, as near as whole groups of records that share a video allow, and at least one group. The choice depends on
    the seed and on the records' ids, not on their order. Raises DATA_SPLIT.
    """
    most = round(test_size * len(records)) if test_size < 1 else int(test_size)
    if test_size == 0:
        return list(records), []
    if test_size < 0 or most >= len(records):
        raise SPLIT.error("test_size", f"test_size is {test_size}, and there are {len(records)} records", TEST_SIZE)
    drawn = drawn_groups(records, seed)
    if len(drawn) < 2:
        raise SPLIT.error("test_size", f"all {len(records)} records share one video, directly or in a chain", TEST_SIZE)
    chosen: set[int] = set()
    for group in drawn:
        if len(chosen) + len(group) <= most:
            chosen.update(group)
    if not chosen:
        smallest = min(drawn, key=len)
        chosen.update(smallest)
    validation = [record for at, record in enumerate(records) if at in chosen]
    return [record for at, record in enumerate(records) if at not in chosen], validation


def stratified(strata: Sequence[str], drawn: Sequence[Sequence[int]], share: float) -> set[int]:
    """Indices of validation records: whole groups of `drawn` (at least two groups), near `share` of every stratum.

    `strata` has one name for each record. Groups are tried in the drawn order. A group is chosen if that brings the
    counts of the strata nearer to their targets. At least one group is chosen and at least one is not.
    """
    targets = {name: share * count for name, count in Counter(strata).items()}
    counted = [Counter(strata[at] for at in group) for group in drawn]
    chosen_counts: Counter[str] = Counter()
    chosen: list[Sequence[int]] = []
    for group, counts in zip(drawn, counted, strict=True):
        if _gain(counts, chosen_counts, targets) > 0 and len(chosen) < len(drawn) - 1:
            chosen.append(group)
            chosen_counts.update(counts)
    if not chosen:  # every group is too large: choose the one with the smallest error
        best = max(range(len(drawn)), key=lambda at: _gain(counted[at], chosen_counts, targets))
        chosen.append(drawn[best])
    return {at for group in chosen for at in group}


def _gain(counts: Counter[str], chosen: Counter[str], targets: dict[str, float]) -> float:
    """Decrease of the strata's squared errors, each divided by its target, if records with these counts are added."""
    return math.fsum(  # exact, so that the result is independent of the order of the records
        ((chosen[name] - targets[name]) ** 2 - (chosen[name] + count - targets[name]) ** 2) / targets[name]
        for name, count in counts.items()
    )


def drawn_groups(records: Sequence[Record], seed: int, together: Iterable[Sequence[int]] = ()) -> list[list[int]]:
    """The groups of `groups_sharing_media`, shuffled by the seed and the records' ids."""

    def draw(group: Sequence[int]) -> bytes:
        name = min(records[at].id for at in group)
        return hashlib.sha256(f"{seed}/{name}".encode()).digest()

    return sorted(groups_sharing_media(records, together), key=draw)


def groups_sharing_media(records: Sequence[Record], together: Iterable[Sequence[int]] = ()) -> list[list[int]]:
    """Groups of record indices such that two groups share no medium; those `together` are in one group."""
    first: dict[str, int] = {}
    pairs = [(at, first.setdefault(ref.key, at)) for at, record in enumerate(records) for ref in record.media]
    pairs += [(at, tied[0]) for tied in together for at in tied[1:]]
    return connected(len(records), pairs)


def connected(count: int, pairs: Sequence[Sequence[int]] | np.ndarray) -> list[list[int]]:
    """Connected components of the numbers below `count`, with `pairs` as edges."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array(pairs, int).reshape(-1, 2).T
    _, labels = connected_components(coo_array((np.ones(ends.shape[1], bool), tuple(ends)), (count, count)), False)
    groups: dict[int, list[int]] = defaultdict(list)
    for number, label in enumerate(labels.tolist()):
        groups[label].append(number)
    return list(groups.values())


def same_bytes(media: Iterable[MediaRef]) -> list[list[str]]:
    """Keys of the files of identical content, for each content that several files have."""
    contents = [_by_content(refs) for refs in _by_size(media).values() if len(refs) > 1]
    groups = (group for content in contents for group in content.values() if len(group) > 1)
    return [sorted(ref.key for ref in group) for group in groups]


def same_bytes_between(these: Iterable[MediaRef], those: Iterable[MediaRef]) -> list[tuple[str, str]]:
    """Pairs of different files of two sets with identical content, by their `real_key`."""
    left, right = _by_size(these), _by_size(those)
    pairs = []
    for size in sorted(left.keys() & right.keys()):
        ours = _by_content(left[size])
        for ref in right[size]:
            twins = ours.get(medium_hash(ref.path, ref.member) or "", ())
            pairs += [(real_key(twin), real_key(ref)) for twin in twins if real_key(twin) != real_key(ref)]
    return pairs


def real_key(ref: MediaRef) -> str:
    """The key of a medium by its real path, with links resolved."""
    return os.path.realpath(ref.path) + (f"!{ref.member}" if ref.member else "")


def media_by_file(records: Iterable[Record]) -> dict[str, MediaRef]:
    """The media of records by their `real_key`, one for each file."""
    return {real_key(ref): ref for ref in media_by_key(records).values()}


def _by_size(media: Iterable[MediaRef]) -> dict[int, list[MediaRef]]:
    by_size: defaultdict[int, list[MediaRef]] = defaultdict(list)
    for ref in {ref.key: ref for ref in media}.values():
        by_size[ref.size].append(ref)
    return by_size


def _by_content(refs: Iterable[MediaRef]) -> dict[str, list[MediaRef]]:
    by_content: defaultdict[str, list[MediaRef]] = defaultdict(list)
    for ref in refs:
        if digest := medium_hash(ref.path, ref.member):
            by_content[digest].append(ref)
    return by_content
