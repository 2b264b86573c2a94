"""Which files hold the same bytes, whatever they are called. Only files of equal length are read; those that cannot be
read are left out."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from vidqa.data.record import MediaRef, Record
from vidqa.video.source import content_hash


def same_bytes(media: Iterable[MediaRef]) -> list[list[str]]:
    """Keys of the files of each content that several files have."""
    contents = [_by_content(refs) for refs in _by_size(media).values() if len(refs) > 1]
    groups = (group for content in contents for group in content.values() if len(group) > 1)
    return [sorted(ref.key for ref in group) for group in groups]


def same_bytes_between(these: Iterable[MediaRef], those: Iterable[MediaRef]) -> list[tuple[str, str]]:
    """Pairs of different files of two sets with the same content, by their `real_key`."""
    left, right = _by_size(these), _by_size(those)
    pairs = []
    for size in sorted(left.keys() & right.keys()):
        ours = _by_content(left[size])
        for ref in right[size]:
            twins = ours.get(content_hash(ref.path, ref.member) or "", ())
            pairs += [(real_key(twin), real_key(ref)) for twin in twins if real_key(twin) != real_key(ref)]
    return pairs


def real_key(ref: MediaRef) -> str:
    """The medium by the file that its path leads to, links followed."""
    return os.path.realpath(ref.path) + (f"!{ref.member}" if ref.member else "")


def media_by_file(records: Iterable[Record]) -> dict[str, MediaRef]:
    """The media of records by their `real_key`: one for each file."""
    return {real_key(ref): ref for ref in {ref.key: ref for record in records for ref in record.media}.values()}


def _by_size(media: Iterable[MediaRef]) -> dict[int, list[MediaRef]]:
    by_size: defaultdict[int, list[MediaRef]] = defaultdict(list)
    for ref in {ref.key: ref for ref in media}.values():
        by_size[ref.size].append(ref)
    return by_size


def _by_content(refs: Iterable[MediaRef]) -> dict[str, list[MediaRef]]:
    by_content: defaultdict[str, list[MediaRef]] = defaultdict(list)
    for ref in refs:
        if digest := content_hash(ref.path, ref.member):
            by_content[digest].append(ref)
    return by_content
