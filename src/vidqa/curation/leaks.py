"""Leaks: new rows that show what a protected set (KPI, validation, test) shows, however it was copied.

    leaks = find_leaks(new_records, [Protected("kpi", kpi_records)])

Looked for: one id, one file, the same bytes, names of parts of one recording, a group that the user names, and clips
that share moments (`overlap`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import PurePath

from threadpoolctl import threadpool_limits

from vidqa.curation.frame_looks import Look, looks
from vidqa.curation.likely import likely_pairs
from vidqa.curation.overlap import UNSURE, overlaps
from vidqa.dataset.identical_files import real_key, same_bytes_between
from vidqa.dataset.record import MediaRef, Record

SAME_ID = "the same id"  # the reason of a leak that no medium shows
BLOCK = 64  # new clips that are looked at together
# What a cutter puts behind the name of a recording: _part2, -seg03, .chunk1, _10s_20s, _0.5-to-3.0
PARTS = re.compile(
    r"(?:[-_. ](?:part|pt|seg|segment|chunk|split|piece|cut|window|win)[-_. ]?\d+"
    r"|[-_. ]\d+(?:\.\d+)?s[-_]\d+(?:\.\d+)?s|[-_. ]\d+(?:\.\d+)?s?[-_]to[-_]\d+(?:\.\d+)?s?)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Protected:
    """A set whose clips may not be learned from."""

    name: str
    records: Sequence[Record]


@dataclass(frozen=True)
class Leak:
    """A new row and the protected one that it shows, by id, with their media."""

    set: str
    reason: str
    new: str
    protected: str
    new_media: str
    protected_media: str

    @property
    def sure(self) -> bool:
        """False where two clips look alike, but show too little to tell."""
        return self.reason != UNSURE

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def find_leaks(new: Sequence[Record], protected: Sequence[Protected], group_by: str = "") -> list[Leak]:
    """Every pair of media of which a new record shows what a protected one does, under its first reason. `group_by` is
    a pattern whose groups name the recording of a file."""
    ours = _by_media(new)
    theirs = {each.name: _by_media(each.records) for each in protected}
    found: dict[tuple[str, str, str], Leak] = {}

    def add(name: str, reason: str, one: MediaRef, other: MediaRef) -> None:
        key = (name, one.key, other.key)
        if key not in found:
            pair = ours[one.key][0].id, theirs[name][other.key][0].id
            found[key] = Leak(name, reason, *pair, one.file, other.file)

    for each in protected:
        _by_id(new, each, found)
        others = _refs(each.records)
        for reason, pairs in (
            ("the same file", _same_file(_refs(new), others)),
            ("the same bytes", _same_bytes(_refs(new), others)),
            ("parts of one recording, by name", _same_stem(_refs(new), others, group_by)),
        ):
            for one, other in pairs:
                add(each.name, reason, one, other)
    _by_looks(_refs(new), {each.name: _refs(each.records) for each in protected}, add)
    return list(found.values())


def _refs(records: Iterable[Record]) -> dict[str, MediaRef]:
    return {ref.key: ref for record in records for ref in record.media}


def _by_media(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        for ref in record.media:
            found[ref.key].append(record)
    return found


def _by_id(new: Sequence[Record], protected: Protected, found: dict[tuple[str, str, str], Leak]) -> None:
    """One id, one question and one name of a file: sets of different people share ids such as q1 by chance."""

    def named(record: Record) -> tuple[str, ...]:
        return (record.id, record.question, *(PurePath(ref.member or ref.path).name for ref in record.media))

    known = {named(record): record for record in protected.records}
    for record in new:
        if not record.id.isdigit() and (other := known.get(named(record))):
            media = [each.media[0].file if each.media else "" for each in (record, other)]
            found[protected.name, f"id {record.id}", ""] = Leak(protected.name, SAME_ID, record.id, other.id, *media)


Pairs = list[tuple[MediaRef, MediaRef]]
Add = Callable[[str, str, MediaRef, MediaRef], None]


def _same_file(new: dict[str, MediaRef], others: dict[str, MediaRef]) -> Pairs:
    real = defaultdict(list)
    for ref in others.values():
        real[real_key(ref)].append(ref)
    return [(ref, other) for ref in new.values() for other in real.get(real_key(ref), ())]


def _same_bytes(new: dict[str, MediaRef], others: dict[str, MediaRef]) -> Pairs:
    ours, theirs = ({real_key(ref): ref for ref in refs.values()} for refs in (new, others))
    return [(ours[one], theirs[other]) for one, other in same_bytes_between(new.values(), others.values())]


def recording_of(ref: MediaRef, group_by: str = "") -> str:
    """What the name of a file says of the recording that it was cut from; empty where it says nothing."""
    if group_by:
        match = re.search(group_by, ref.written) or re.search(group_by, ref.file)
        return "/".join(filter(None, match.groups())) or match.group() if match else ""
    stem = PurePath(ref.member or ref.path).stem
    shorter = PARTS.sub("", stem)
    return shorter.casefold() if shorter != stem and re.search(r"[^\W\d_]|\d{4}", shorter) else ""


def _same_stem(new: dict[str, MediaRef], others: dict[str, MediaRef], group_by: str) -> Pairs:
    """Parts of one recording; without a pattern, a part and the whole, too."""
    named = defaultdict(list)
    for ref in others.values():
        named[recording_of(ref, group_by)].append(ref)
        if not group_by:
            named[PurePath(ref.member or ref.path).stem.casefold()].append(ref)
    found = []
    for ref in new.values():
        names = {recording_of(ref, group_by)}
        if not group_by:
            stem = PurePath(ref.member or ref.path).stem.casefold()
            names |= {stem} if any(recording_of(other) == stem for other in named.get(stem, ())) else set()
        found += [(ref, other) for name in names - {""} for other in named.get(name, ())]
    return found


@threadpool_limits.wrap(limits=1)  # the products are small: several threads mostly wait for each other
def _by_looks(new: dict[str, MediaRef], others: dict[str, dict[str, MediaRef]], add: Add) -> None:
    """Clips that share moments. Protected clips are held, small; new ones are looked at some at a time."""
    held: list[tuple[str, MediaRef, Look]] = []
    seen = dict(looks(ref for refs in others.values() for ref in refs.values()))
    for name, refs in others.items():
        held += [(name, ref, look) for key, ref in refs.items() if (look := seen.get(key)) is not None]
    if not held:
        return
    coming = ((key, look) for key, look in looks(new.values()) if look is not None)
    while block := list(islice(coming, BLOCK)):
        for at, number, how in likely_pairs([look for _, look in block], [look for _, _, look in held]):
            (key, look), (name, ref, other) = block[at], held[number]
            if reason := overlaps(look, other, how):
                add(name, reason, new[key], ref)
