"""Leaks: new rows that show the same media as a protected set (KPI, validation, test), in whatever form of copy.

leaks = find_leaks(new_records, {"kpi": kpi_records})

Tested are equal ids, files and bytes, file names of parts of one recording, a user-defined grouping, and clips with
shared moments (`clip_matching`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath

from threadpoolctl import threadpool_limits

from vidqa.data.record import MediaRef, Record, media_by_key
from vidqa.data.record_groups import real_key, same_bytes_between
from vidqa.gaps.curation.clip_fingerprint import fingerprints
from vidqa.gaps.curation.clip_matching import UNSURE, candidate_pairs, match_clips

Sets = Mapping[str, Sequence[Record]]  # records by the name of their set
SAME_ID = "the same id"  # the reason of a leak that is not found by media
BLOCK = 64  # new clips that are compared at a time
# Suffixes that cutting tools append to the name of a recording: _part2, -seg03, .chunk1, _10s_20s, _0.5-to-3.0
PARTS = re.compile(
    r"(?:[-_. ](?:part|pt|seg|segment|chunk|split|piece|cut|window|win)[-_. ]?\d+"
    r"|[-_. ]\d+(?:\.\d+)?s[-_]\d+(?:\.\d+)?s|[-_. ]\d+(?:\.\d+)?s?[-_]to[-_]\d+(?:\.\d+)?s?)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Leak:
    """A new row and the protected one that it leaks, by id, with their media."""

    set: str
    reason: str
    new: str
    protected: str
    new_media: str
    protected_media: str

    @property
    def sure(self) -> bool:
        """False if two clips are similar, but have too little detail to decide."""
        return self.reason != UNSURE


class _Leaks:
    """Leaks by set and pair of media, with the first reason of each."""

    def __init__(self, new: Sequence[Record], protected: Sets) -> None:
        self.by_pair: dict[tuple[str, str, str], Leak] = {}
        self.ours = _first_ids(new)
        self.theirs = {name: _first_ids(records) for name, records in protected.items()}

    def add(self, name: str, reason: str, one: MediaRef, other: MediaRef) -> None:
        ids = self.ours[one.key], self.theirs[name][other.key]
        self.by_pair.setdefault((name, one.key, other.key), Leak(name, reason, *ids, one.file, other.file))


def find_leaks(new: Sequence[Record], protected: Sets, group_by: str = "") -> list[Leak]:
    """All pairs of media that a new record and one of the sets share, so that the record must not be trained on, with
    the first reason. `group_by` is a pattern whose groups name the recording of a file."""
    leaks, refs = _Leaks(new, protected), media_by_key(new)
    refs_of = {name: media_by_key(records) for name, records in protected.items()}
    for name, others in refs_of.items():
        _add_same_ids(new, name, protected[name], leaks)
        for reason, pairs in (
            ("the same file", _same_file(refs, others)),
            ("the same bytes", _same_bytes(refs, others)),
            ("parts of one recording, by name", _same_stem(refs, others, group_by)),
        ):
            for one, other in pairs:
                leaks.add(name, reason, one, other)
    _add_shared_moments(refs, refs_of, leaks)
    return list(leaks.by_pair.values())


def _first_ids(records: Sequence[Record]) -> dict[str, str]:
    """The id of the first record that shows a medium, by medium."""
    return {ref.key: record.id for record in reversed(records) for ref in record.media}


def _add_same_ids(new: Sequence[Record], name: str, protected: Sequence[Record], leaks: _Leaks) -> None:
    """Add records with equal id, question and file names: unrelated sets share ids such as q1 by chance."""

    def named(record: Record) -> tuple[str, ...]:
        return (record.id, record.question, *(PurePath(ref.member or ref.path).name for ref in record.media))

    theirs = {named(record): record for record in protected}
    for record in new:
        if not record.id.isdigit() and (other := theirs.get(named(record))):
            files = [row.media[0].file if row.media else "" for row in (record, other)]
            leaks.by_pair[name, f"id {record.id}", ""] = Leak(name, SAME_ID, record.id, other.id, *files)


Pairs = list[tuple[MediaRef, MediaRef]]


def _same_file(new: dict[str, MediaRef], others: dict[str, MediaRef]) -> Pairs:
    real = defaultdict(list)
    for ref in others.values():
        real[real_key(ref)].append(ref)
    return [(ref, other) for ref in new.values() for other in real.get(real_key(ref), ())]


def _same_bytes(new: dict[str, MediaRef], others: dict[str, MediaRef]) -> Pairs:
    ours, theirs = ({real_key(ref): ref for ref in refs.values()} for refs in (new, others))
    return [(ours[one], theirs[other]) for one, other in same_bytes_between(new.values(), others.values())]


def recording_of(ref: MediaRef, group_by: str = "") -> str:
    """The name of the recording that a file was cut from, according to the file's name; empty if unknown."""
    if group_by:
        match = re.search(group_by, ref.written) or re.search(group_by, ref.file)
        return "/".join(filter(None, match.groups())) or match.group() if match else ""
    stem = PurePath(ref.member or ref.path).stem
    shorter = PARTS.sub("", stem)
    return shorter.casefold() if shorter != stem and re.search(r"[^\W\d_]|\d{4}", shorter) else ""


def _same_stem(new: dict[str, MediaRef], others: dict[str, MediaRef], group_by: str) -> Pairs:
    """Pairs of parts of one recording; without a pattern, also of a part and the whole."""
    named = defaultdict(list)
    for ref in others.values():
        named[recording_of(ref, group_by)].append(ref)
        if not group_by:
            named[PurePath(ref.member or ref.path).stem.casefold()].append(ref)
    pairs = []
    for ref in new.values():
        names = {recording_of(ref, group_by)}
        if not group_by:
            stem = PurePath(ref.member or ref.path).stem.casefold()
            names |= {stem} if any(recording_of(other) == stem for other in named.get(stem, ())) else set()
        pairs += [(ref, other) for name in names - {""} for other in named.get(name, ())]
    return pairs


@threadpool_limits.wrap(limits=1)  # the products are small: several threads mostly wait for each other
def _add_shared_moments(new: dict[str, MediaRef], others: dict[str, dict[str, MediaRef]], leaks: _Leaks) -> None:
    """Add clips with shared moments. Fingerprints of protected clips stay in memory; new ones are compared by block."""
    protected = dict(fingerprints(ref for refs in others.values() for ref in refs.values()))
    held = [
        (name, ref, clip)
        for name, refs in others.items()
        for key, ref in refs.items()
        if (clip := protected.get(key)) is not None
    ]
    if not held:
        return
    decoded = ((key, clip) for key, clip in fingerprints(new.values()) if clip is not None)
    while block := list(islice(decoded, BLOCK)):
        for at, number, modes in candidate_pairs([clip for _, clip in block], [clip for _, _, clip in held]):
            (key, clip), (name, ref, other) = block[at], held[number]
            if reason := match_clips(clip, other, modes):
                leaks.add(name, reason, new[key], ref)
