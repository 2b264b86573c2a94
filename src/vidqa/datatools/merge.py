"""Puts several data sets into one: media named so that one file reaches them all, ids that stay apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset.record import MediaRef, Record
from vidqa.datatools.problems import MERGE_ARCHIVE
from vidqa.datatools.rows import Pair

NAMED = 5


@dataclass(frozen=True)
class Source:
    """What was read: the format it is in, its rows with their records, and where the media are."""

    form: str
    pairs: list[Pair]
    media_path: str
    dropped: Counter[str]
    warnings: list[Problem]
    new_ids: tuple[str, ...] = ()  # given where sets that were merged had the same


def merged(sources: Sequence[Source], folder: Path) -> Source:
    """The sets as one, for an annotation file in `folder`.

    Media keep their names where all sets name them from one place. Otherwise they are named relative to `folder` where
    all lie below it, and by their absolute paths where they do not; the media path is then `folder` or "". An id that
    an earlier set has gets the number of its own set behind it. Raises DATATOOLS_MERGE_ARCHIVE.
    """
    if len(sources) == 1:
        return sources[0]
    places = {source.media_path for source in sources}
    media_path = places.pop() if len(places) == 1 else _renamed(sources, folder)
    taken: set[str] = set()
    new_ids: list[str] = []
    pairs: list[Pair] = []
    for number, source in enumerate(sources, start=1):
        own = {pair.record.id for pair in source.pairs}
        for pair in source.pairs:
            record = pair.record
            if record.id in taken:
                record = replace(record, id=_free(record.id, number, taken | own))
                new_ids.append(record.id)
            pairs.append(Pair(pair.row, record))
        taken |= {pair.record.id for pair in pairs[len(pairs) - len(source.pairs) :]}
    return Source(
        " + ".join(dict.fromkeys(source.form for source in sources)),
        pairs,
        media_path,
        sum((source.dropped for source in sources), Counter()),
        [problem for source in sources for problem in source.warnings],
        tuple(new_ids),
    )


def _free(name: str, number: int, taken: set[str]) -> str:
    new = f"{name}-{number}"
    while new in taken:
        new += f"-{number}"
    return new


def _renamed(sources: Sequence[Source], folder: Path) -> str:
    """Gives the media of all sets names that hold in one file; what these are relative to, "" where to nothing."""
    archived = [ref for source in sources for ref in _refs(source) if not _is_named_file(ref, source.media_path)]
    if archived:
        shown = ", ".join(dict.fromkeys(ref.key for ref in archived[:NAMED]))
        raise ProblemError([MERGE_ARCHIVE.at(shown, f"{len(archived)} media lie inside an archive")])
    root = os.path.abspath(folder)
    below = all(ref.path.startswith(root + os.sep) for source in sources for ref in _refs(source))
    for source in sources:
        for at, pair in enumerate(source.pairs):
            names = [os.path.normpath(ref.path) for ref in pair.record.media]
            names = [os.path.relpath(name, root) for name in names] if below else names
            media = [replace(ref, written=name) for ref, name in zip(pair.record.media, names, strict=True)]
            source.pairs[at] = Pair(pair.row, replace(pair.record, media=tuple(media)))
    return root if below else ""


def _refs(source: Source) -> list[MediaRef]:
    records: list[Record] = [pair.record for pair in source.pairs]
    return list({ref.key: ref for record in records for ref in record.media}.values())


def _is_named_file(ref: MediaRef, media_path: str) -> bool:
    """Whether the medium is the very file that its name says, not something inside an archive."""
    written = ref.written.removeprefix("file://")
    return ref.member is None and ref.path in (written, os.path.join(media_path, os.path.normpath(written)))
