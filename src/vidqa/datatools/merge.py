"""Puts several data sets into one: media named so that one file reaches them all, ids that stay apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vidqa.core.problem import Problem, ProblemError
from vidqa.data.load import Pair
from vidqa.data.record import MediaRef, Record
from vidqa.datatools.problems import FORMAT

NAMED = 5
UNPACK = "unpack the archive (tar -xf videos.tar) beside its annotations, and merge again"


@dataclass(frozen=True)
class Imported:
    """What was read: the format it is in, its rows with their records, and where the media are."""

    form: str
    pairs: list[Pair]
    media_path: str
    dropped: Counter[str]
    warnings: list[Problem]
    new_ids: tuple[str, ...] = ()  # given where sets that were merged had the same


def merged(sets: Sequence[Imported], folder: Path) -> Imported:
    """The sets as one, for an annotation file in `folder`.

    Media keep their names where all sets name them from one place. Otherwise they are named relative to `folder` where
    all lie below it, and by their absolute paths where they do not; the media path is then `folder` or "". An id that
    an earlier set has gets the number of its own set behind it. Raises DATATOOLS_FORMAT.
    """
    if len(sets) == 1:
        return sets[0]
    places = {one.media_path for one in sets}
    media_path = places.pop() if len(places) == 1 else _renamed(sets, folder)
    used_ids: set[str] = set()
    new_ids: list[str] = []
    pairs: list[Pair] = []
    for number, one in enumerate(sets, start=1):
        own = {pair.record.id for pair in one.pairs}
        for pair in one.pairs:
            record = pair.record
            if record.id in used_ids:
                record = replace(record, id=_free(record.id, number, used_ids | own))
                new_ids.append(record.id)
            pairs.append(Pair(pair.row, record))
        used_ids |= {pair.record.id for pair in pairs[len(pairs) - len(one.pairs) :]}
    return Imported(
        " + ".join(dict.fromkeys(one.form for one in sets)),
        pairs,
        media_path,
        sum((one.dropped for one in sets), Counter()),
        [problem for one in sets for problem in one.warnings],
        tuple(new_ids),
    )


def _free(name: str, number: int, used: set[str]) -> str:
    new = f"{name}-{number}"
    while new in used:
        new += f"-{number}"
    return new


def _renamed(sets: Sequence[Imported], folder: Path) -> str:
    """Gives the media of all sets names that hold in one file; what these are relative to, "" where to nothing."""
    archived = [ref for one in sets for ref in _refs(one) if not _is_named_file(ref, one.media_path)]
    if archived:
        shown = ", ".join(dict.fromkeys(ref.key for ref in archived[:NAMED]))
        raise ProblemError([FORMAT.at(shown, f"{len(archived)} media lie inside an archive", UNPACK)])
    root = os.path.abspath(folder)
    below = all(ref.path.startswith(root + os.sep) for one in sets for ref in _refs(one))
    for one in sets:
        for at, pair in enumerate(one.pairs):
            names = [os.path.normpath(ref.path) for ref in pair.record.media]
            names = [os.path.relpath(name, root) for name in names] if below else names
            media = [replace(ref, written=name) for ref, name in zip(pair.record.media, names, strict=True)]
            one.pairs[at] = Pair(pair.row, replace(pair.record, media=tuple(media)))
    return root if below else ""


def _refs(one: Imported) -> list[MediaRef]:
    records: list[Record] = [pair.record for pair in one.pairs]
    return list({ref.key: ref for record in records for ref in record.media}.values())


def _is_named_file(ref: MediaRef, media_path: str) -> bool:
    """Whether the medium is the very file that its name says, not something inside an archive."""
    written = ref.written.removeprefix("file://")
    return ref.member is None and ref.path in (written, os.path.join(media_path, os.path.normpath(written)))
