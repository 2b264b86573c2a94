"""One hash for what a data set teaches, so that a run can tell whether it is resumed on the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from vidqa.dataset.record import Record


def fingerprint(records: Iterable[Record]) -> str:
    """sha256 (hex) over ids, turns, and the media's names and sizes in bytes, in the order of the records.

    Folders and times of change are left out: a data set that was copied to another machine is the same data set.
    """
    digest = hashlib.sha256()
    for record in records:
        turns = [(turn.role, turn.parts, *([] if turn.learned else ["not learned"])) for turn in record.turns]
        media = [(ref.kind, ref.written, ref.size, *filter(None, (ref.span, ref.keys))) for ref in record.media]
        digest.update(repr((record.id, turns, media)).encode())
        digest.update(b"\n")
    return digest.hexdigest()
