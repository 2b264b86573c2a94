"""Which files of two sets hold the same bytes, whatever they are called."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable

from vidqa.dataset.record import MediaRef
from vidqa.video.source import content_hash


def real_key(ref: MediaRef) -> str:
    """The medium by the file that its path leads to, links followed."""
    return os.path.realpath(ref.path) + (f"!{ref.member}" if ref.member else "")


def same_bytes(these: Iterable[MediaRef], those: Iterable[MediaRef]) -> list[tuple[str, str]]:
    """Pairs of different files with the same content. Only files with the same length are read."""
    left, right = _by_size(these), _by_size(those)
    pairs = []
    for size in sorted(left.keys() & right.keys() - {0}):
        hashes = defaultdict(list)
        for ref in left[size]:
            hashes[_sha256(ref)].append(real_key(ref))
        for ref in right[size]:
            pairs += [(key, real_key(ref)) for key in hashes.get(_sha256(ref), ()) if key != real_key(ref)]
    return pairs


def _by_size(refs: Iterable[MediaRef]) -> dict[int, list[MediaRef]]:
    found: dict[int, dict[str, MediaRef]] = defaultdict(dict)
    for ref in refs:
        found[ref.size][ref.key] = ref
    return {size: list(each.values()) for size, each in found.items()}


def _sha256(ref: MediaRef) -> str:
    """Of the medium's bytes; its own name where they cannot be read, so that it equals nothing else."""
    return content_hash(ref.path, ref.member) or ref.key
