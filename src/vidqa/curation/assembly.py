"""Assembly: a base set and new rows become the next training set, without those that show what a protected set shows.

    made = assemble(Assembly(base, [mined], out, protected))

A new row that leaks is left out, counted, and named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.contract.files import write_json
from vidqa.contract.problem import Problem
from vidqa.curation.leaks import SAME_ID, Leak, Protected, find_leaks
from vidqa.curation.problems import LEAK, NOTHING_NEW
from vidqa.curation.rows import Row, counted, read_rows, written
from vidqa.dataset.record import Provenance, Record
from vidqa.datatools.duplicates import answer_class, compared_answer
from vidqa.datatools.outputs import json_list

ANNOTATIONS, LEAKS, SUMMARY = "annotations.json", "leaks.json", "assembly.json"
FEW = 12  # different answers of a slice that are balanced
NAMED = 5  # leaks that a problem names


@dataclass(frozen=True)
class Source:
    """An annotation file, or a folder with one, and where its media are."""

    annotations: Path
    media: str = ""


@dataclass(frozen=True)
class Assembly:
    """What is asked for.

    add        new rows; without a provenance of their own they count as `origin`
    protected  by name, what may not be learned from
    replay     rows of the base set for each added one, of this round or an earlier one; None keeps all of the base set
    cap        most new rows of one kind; 0 is no limit
    balance    whether new rows of a kind are thinned until its answers are equally frequent among them
    """

    base: Source
    add: tuple[Source, ...]
    out: Path
    protected: dict[str, Source] = field(default_factory=dict)
    replay: float | None = None
    cap: int = 0
    balance: bool = True
    origin: str = "generated"
    round: int = 1
    group_by: str = ""
    seed: int = 0


Pair = tuple[Row, Record]


@dataclass
class Assembled:
    """Rows of the new set, in order, and what was left out of it."""

    rows: list[Row]
    left_out: Counter[str]
    leaks: list[Leak]

    def as_dict(self) -> dict[str, Any]:
        origins = Counter(row["provenance"]["origin"] for row in self.rows)
        return {
            "rows": len(self.rows),
            "by_origin": dict(origins),
            "by_kind": counted(self.rows),
            "left_out": dict(self.left_out),
            "leaks": sum(leak.sure for leak in self.leaks),
            "too_plain_to_tell": sum(not leak.sure for leak in self.leaks),
        }


def assemble(asked: Assembly) -> Assembled:
    """Write annotations.json to `asked.out`. New rows that leak are left out; they, and pairs that are too plain to
    tell, stand in leaks.json and in `warnings`. Raises CURATION_NOTHING_NEW where no new row is left."""
    base = read_rows(asked.base.annotations, asked.base.media)
    new = [pair for source in asked.add for pair in read_rows(_annotations_in(source.annotations), source.media)]
    left_out: Counter[str] = Counter()
    new = _without_known(base, new, left_out)
    if not new:
        message = f"{left_out['already there']} rows were given, all of them are in the base set"
        raise NOTHING_NEW.error(", ".join(str(source.annotations) for source in asked.add), message)
    protected = [
        Protected(name, [record for _, record in read_rows(source.annotations, source.media, need_answers=False)])
        for name, source in asked.protected.items()
    ]
    asked.out.mkdir(parents=True, exist_ok=True)
    leaks = find_leaks([record for _, record in new], protected, asked.group_by)
    write_json(asked.out / LEAKS, [leak.as_dict() for leak in leaks])
    new = _without_leaks(new, [leak for leak in leaks if leak.sure], left_out)
    if not new:
        raise NOTHING_NEW.error(asked.out / LEAKS, f"all of the new rows leak: {leaks_text(leaks)}")
    draw = np.random.default_rng(asked.seed)
    chosen = _capped(_balanced(new, draw, left_out) if asked.balance else new, asked.cap, draw, left_out)
    kept = _replayed(base, len(chosen), asked.replay, draw)
    left_out["base rows not replayed"] = len(base) - len(kept)
    made = Assembled(_rows(asked, kept, chosen), +left_out, leaks)
    (asked.out / ANNOTATIONS).write_bytes(json_list(made.rows))
    write_json(asked.out / SUMMARY, {"schema_version": 1, **made.as_dict()})
    return made


def leaks_text(leaks: Sequence[Leak]) -> str:
    """How many, of which kinds, and the first of them."""
    kinds = ", ".join(f"{count} {reason}" for reason, count in Counter(leak.reason for leak in leaks).items())
    pairs = "; ".join(f"{leak.new} is {leak.protected} of {leak.set} ({leak.reason})" for leak in leaks[:NAMED])
    return f"{len(leaks)} pairs: {kinds}. {pairs}{'; ...' if len(leaks) > NAMED else ''}"


def _annotations_in(place: Path) -> Path:
    """The file that a curation left in a folder: mined, made by augmentation, or any annotations."""
    names = ("annotations.json", "annotations.jsonl", "mined.json", "augmented.json", "generated.json")
    return next((place / name for name in names if (place / name).is_file()), place)


def _key(record: Record) -> tuple[Any, ...]:
    return (*(ref.view for ref in record.media), " ".join(record.question.casefold().split()))


def _without_known(base: Sequence[Pair], new: Sequence[Pair], left_out: Counter[str]) -> list[Pair]:
    """New rows that ask something new, each once."""
    known = {_key(record) for _, record in base}
    found = []
    for pair in new:
        key = _key(pair[1])
        if key in known:
            left_out["already there"] += 1
            continue
        known.add(key)
        found.append(pair)
    return found


def _without_leaks(new: Sequence[Pair], leaks: Sequence[Leak], left_out: Counter[str]) -> list[Pair]:
    """New rows of which neither a medium nor the id leaks."""
    media, names = {leak.new_media for leak in leaks}, {leak.new for leak in leaks if leak.reason == SAME_ID}
    kept = [pair for pair in new if pair[1].id not in names and media.isdisjoint(ref.file for ref in pair[1].media)]
    left_out["leaking"] += len(new) - len(kept)
    return kept


def _balanced(new: list[Pair], draw: np.random.Generator, left_out: Counter[str]) -> list[Pair]:
    """Of every kind with few different answers, as many rows of each answer as of the rarest one."""
    places: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, (_, record) in enumerate(new):
        places[record.kind or record.question][compared_answer(record)].append(at)
    dropped: set[int] = set()
    for answers in places.values():
        classes = {answer_class(new[rows[0]][1]) for rows in answers.values()}
        if not 1 < len(answers) <= FEW or classes == {"(text)"}:
            continue
        least = min(map(len, answers.values()))
        for rows in answers.values():
            dropped |= set(draw.permutation(rows)[least:].tolist())
    left_out["more of one answer"] += len(dropped)
    return [pair for at, pair in enumerate(new) if at not in dropped]


def _capped(new: list[Pair], cap: int, draw: np.random.Generator, left_out: Counter[str]) -> list[Pair]:
    if not cap:
        return new
    places: defaultdict[str, list[int]] = defaultdict(list)
    for at, (_, record) in enumerate(new):
        places[record.kind or ""].append(at)
    kept = {at for rows in places.values() for at in draw.permutation(rows)[:cap].tolist()}
    left_out["beyond the cap of their kind"] += len(new) - len(kept)
    return [pair for at, pair in enumerate(new) if at in kept]


def _replayed(base: list[Pair], new: int, replay: float | None, draw: np.random.Generator) -> list[Pair]:
    """What earlier rounds have added, and rows of the first base set, as often from every kind as it has there."""
    first = [at for at, (_, record) in enumerate(base) if not record.provenance or record.provenance.origin == "base"]
    wanted = len(first) if replay is None else round(replay * (len(base) - len(first) + new))
    if wanted >= len(first):
        return base
    kinds = np.array([base[at][1].kind or "" for at in first])
    order = draw.permutation(len(first))
    share = np.empty(len(first))  # a row's place within its kind, from 0 to 1: the first ones of all kinds are taken
    for kind in np.unique(kinds):
        rows = order[kinds[order] == kind]
        share[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    left_out = {first[at] for at in np.argsort(share, kind="stable")[wanted:].tolist()}
    return [pair for at, pair in enumerate(base) if at not in left_out]


def _rows(asked: Assembly, kept: Sequence[Pair], chosen: Sequence[Pair]) -> list[Row]:
    """Rows with provenance and ids of their own."""
    taken: set[str] = set()
    found = []
    for origin, pairs in (("base", kept), (asked.origin, chosen)):
        for row, record in pairs:
            name, number = record.id, 1
            while name in taken:
                number += 1
                name = f"{record.id}-r{asked.round}" + (f"-{number}" if number > 2 else "")
            taken.add(name)
            provenance = record.provenance or Provenance(origin, None if origin == "base" else asked.round)
            details = row.get("curation")
            made = written(row, replace(record, id=name), provenance, details if isinstance(details, dict) else {})
            if not made["curation"]:
                del made["curation"]
            found.append(made)
    return found


def warnings(made: Assembled, asked: Assembly) -> list[Problem]:
    """What is worth a look although the set was written."""
    sure, unsure = ([leak for leak in made.leaks if leak.sure is known] for known in (True, False))
    found = []
    if sure:
        message = f"{made.left_out['leaking']} new rows were left out. {leaks_text(sure)}"
        found.append(LEAK.at(asked.out / LEAKS, message, severity="warning"))
    if unsure:
        remedy = "look at these clips, and take the rows of copies out of what is added"
        found.append(LEAK.at(asked.out / LEAKS, leaks_text(unsure), remedy, severity="warning"))
    if found:
        return found
    if asked.protected:
        return []
    message = "no KPI, validation or test set was named, so that nothing was compared"
    return [LEAK.at(asked.out / ANNOTATIONS, message, "name them with --kpi, --validation, --test", severity="warning")]
