"""Duplicate records and files (the same question, contradicting answers, the same bytes), and groups of records that a
split must keep together: these, near duplicates, files with one stem, and clips of one recording."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa.core.cli import USAGE
from vidqa.core.problem import Problem
from vidqa.data.load import Pair
from vidqa.data.near_duplicates import groups_alike
from vidqa.data.problems import shown_names
from vidqa.data.record import MediaRef, Record
from vidqa.data.record_groups import same_bytes
from vidqa.datatools.problems import DUPLICATES, SPLIT
from vidqa.evaluation.answers import parse_expected
from vidqa.video.probe import probe_many

NUMBERED = r"(.*[^0-9/])[0-9]+[.][^.]+$"
REMEDY = "name a field, such as camera, or a pattern whose group is the recording, such as '(.*)_[0-9]+[.]mp4'"
MOST_OF_A_STEM = 8  # files; a stem shared by more, such as "video", is not informative
LOOKS, CONTENT, STEM, GROUP = "look_alike", "same_content", "same_stem", "group"
WARNINGS = {
    "contradicting": "records contradict each other",
    "repeated": "records are equal",
    CONTENT: "files have the same content",
}
SHOWN = {
    LOOKS: "files that look alike",
    CONTENT: "files with the same content",
    STEM: "files with the same stem",
    GROUP: "records of a group",
}


def duplicate_problems(groups: Iterable[Sequence[str]], what: str) -> list[Problem]:
    """A warning for each group of record ids, or of media keys; `what` is a key of WARNINGS."""
    return [DUPLICATES.at(shown_names(group), f"{len(group)} {WARNINGS[what]}", severity="warning") for group in groups]


def find_duplicates(records: Sequence[Record]) -> dict[str, list[list[str]]]:
    """Groups of record ids that are "contradicting" or "repeated", and groups of media keys with the "same_content".

    Questions are compared without regard to case and spaces, answers as in an evaluation."""
    by_question: defaultdict[tuple[object, ...], list[Record]] = defaultdict(list)
    for record in records:
        questions = [_plain(turn.text) for turn in record.turns if turn.role == "user"]
        by_question[(tuple(medium.view for medium in record.media), *questions)].append(record)
    repeated: list[list[str]] = []
    contradicting: list[list[str]] = []
    for group in by_question.values():
        groups = repeated if len(set(map(compared_answer, group))) == 1 else contradicting
        if len(group) > 1:
            groups.append([record.id for record in group])
    equal_files = same_bytes(medium for record in records for medium in record.media)
    return {"contradicting": contradicting, "repeated": repeated, CONTENT: equal_files}


def answer_class(record: Record) -> str:
    """Class of the answer as parsed in evaluations, such as "yes", "B" or "3"; "(text)" for free text."""
    parsed = parse_expected(record.answer, record.question)
    return "(text)" if parsed.kind == "text" or not parsed.answer else parsed.answer


def compared_answer(record: Record) -> str:
    """Normalized answer for comparison: yes, no, a letter, a number, or the text without regard to case and spaces."""
    answer = answer_class(record)
    return _plain(record.answer) if answer == "(text)" else answer


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


@dataclass
class SplitGroups:
    """Groups of records that stay in one part. `named` lists their members by reason: names of media as annotated, or
    for --group-by the ids of records; `group_names` are the names of the latter groups."""

    ties: list[list[int]] = field(default_factory=list)
    named: dict[str, list[list[str]]] = field(default_factory=lambda: defaultdict(list))
    group_names: list[str] = field(default_factory=list)
    pairs_alike: int = 0
    not_seen: int = 0  # media that could not be decoded, and are not compared
    without_group: int = 0  # records without a --group-by value

    def facts(self) -> dict[str, Any]:
        """Numbers of groups and members by reason."""
        counts = {
            reason: {"groups": len(groups), "members": sum(map(len, groups))} for reason, groups in self.named.items()
        }
        if LOOKS in counts:
            counts[LOOKS]["pairs"] = self.pairs_alike
        return {**counts, "not_seen": self.not_seen, "without_group": self.without_group}

    def lists(self) -> dict[str, Any]:
        """Content of together.json: the members of each group by reason, of --group-by with the groups' names."""
        own = {GROUP: dict(zip(self.group_names, self.named[GROUP], strict=True))} if GROUP in self.named else {}
        return {**self.named, **own}

    def text(self) -> list[str]:
        """Lines of text for the terminal, one for each reason."""
        lines = []
        for reason, groups in self.named.items():
            pairs = f", {self.pairs_alike:,} pairs" if reason == LOOKS else ""
            count = sum(map(len, groups))
            lines.append(f"kept together: {count:,} {SHOWN[reason]}, in {len(groups):,} groups{pairs}")
        if self.not_seen:
            lines.append(f"not looked at: {self.not_seen:,} files that cannot be decoded")
        if self.without_group:
            lines.append(f"without a group: {self.without_group:,} records; each goes by its own video")
        return lines


def find_split_groups(pairs: Sequence[Pair], group_by: str, *, skip_near_duplicates: bool) -> SplitGroups:
    """Find the records that must stay in one part of a split, by reason: of one group (`group_by` is a field of the
    rows, or a pattern in the names of media), of equal files or file stems, or, unless `skip_near_duplicates`, near
    duplicates. Raises USAGE."""
    result = SplitGroups()
    media: dict[str, MediaRef] = {}
    first_user: dict[str, int] = {}
    for at, pair in enumerate(pairs):
        for ref in pair.record.media:
            media.setdefault(ref.key, ref)
            first_user.setdefault(ref.key, at)
    if group_by:
        _by_group(pairs, group_by, result)
    reasons = {CONTENT: same_bytes(media.values()), STEM: _same_stem(media.values())}
    if not skip_near_duplicates:
        reasons[LOOKS] = _alike(media, result)
    for reason, groups in reasons.items():
        for group in groups:
            result.ties.append([first_user[key] for key in group])
            result.named[reason].append([_medium_name(media[key]) for key in group])
    return result


def torn_recordings(parts: Mapping[str, Sequence[Record]], out: Path) -> list[Problem]:
    """A warning if both parts have files whose names differ only by a number, like those of clips of one recording.
    Where all names are the same but for a number, they are not informative, and there is no warning."""
    names: dict[str, set[str]] = defaultdict(set)
    sides: dict[str, set[str]] = defaultdict(set)
    for side, records in parts.items():
        for written in (ref.written for record in records for ref in record.media):
            if match := re.search(NUMBERED, written):
                names[match[1]].add(written)
                sides[match[1]].add(side)
    torn = [recording for recording, both in sides.items() if len(both) > 1 and len(names[recording]) > 1]
    if not torn or len(names) < 2:
        return []
    counts = f"{len(torn)} of {len(names)}"
    message = f"{counts} groups of files whose names differ by a number alone are in both parts: {shown_names(torn)}"
    return [SPLIT.at(out / "split.json", message, severity="warning")]


def _medium_name(ref: MediaRef) -> str:
    return ref.written if ref.member is None else ref.key


def _alike(media: dict[str, MediaRef], result: SplitGroups) -> list[list[str]]:
    headers = dict(zip(media, probe_many(media.values()), strict=True))
    groups, result.pairs_alike, compared = groups_alike(media.values(), headers)
    result.not_seen = len(media) - compared
    return groups


def _same_stem(media: Iterable[MediaRef]) -> list[list[str]]:
    """Keys of files with the same stem. In different folders, stems without a letter or shared by many files are
    ignored."""
    near: dict[tuple[str, str], list[str]] = defaultdict(list)
    far: dict[str, list[str]] = defaultdict(list)
    for ref in media:
        folder, name = os.path.split(ref.member or ref.path)
        stem = os.path.splitext(name)[0].casefold()
        near[folder, stem].append(ref.key)
        far[stem].append(ref.key)
    telling = [keys for stem, keys in far.items() if len(keys) <= MOST_OF_A_STEM and re.search(r"[^\W\d_]", stem)]
    covered = {key for keys in telling for key in keys}
    groups = [*telling, *(keys for keys in near.values() if keys[0] not in covered)]
    return [sorted(keys) for keys in groups if len(keys) > 1]


def _by_group(pairs: Sequence[Pair], group_by: str, result: SplitGroups) -> None:
    groups: dict[str, list[int]] = defaultdict(list)
    columns = {name for pair in pairs for name in pair.row}
    pattern = None if group_by in columns else _pattern(group_by)
    for at, pair in enumerate(pairs):
        names = _names(pair, group_by, pattern)
        for name in names:
            groups[name].append(at)
        result.without_group += not names
    if not groups:
        there = ", ".join(sorted(map(str, columns))[:12])
        message = f"{group_by!r} is not a field of the records ({there}) and matches no media file name"
        raise USAGE.error("--group-by", message, REMEDY)
    several = {name: group for name, group in groups.items() if len(group) > 1}
    result.named[GROUP] = [[pairs[at].record.id for at in group] for group in several.values()]
    result.group_names = list(several)
    result.ties += several.values()


def _names(pair: Pair, group_by: str, pattern: re.Pattern[str] | None) -> list[str]:
    if pattern is None:
        value = pair.row.get(group_by)
        return [] if value is None or value == "" else [str(value)]
    matches = (pattern.search(ref.written) for ref in pair.record.media)
    return list(dict.fromkeys("/".join(filter(None, m.groups())) or m.group() for m in matches if m))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as wrong:
        raise USAGE.error(
            "--group-by", f"{text!r} is neither a field of the records nor a regular expression: {wrong}", REMEDY
        ) from wrong
