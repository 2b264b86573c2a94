"""Assembly: a base set and new rows become the next training set, without those that show what a protected set shows.

    assembled = assemble(Assembly(base=base, add=(mined,), out=out, kpi=(annotations, media)))

A new row that leaks is left out, counted, and named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.core.files import write_json
from vidqa.core.problem import Problem
from vidqa.data.record import Provenance, Record
from vidqa.datatools.duplicates import answer_class, compared_answer
from vidqa.datatools.outputs import json_list
from vidqa.gaps.curation.leaks import SAME_ID, Leak, find_leaks
from vidqa.gaps.curation.rows import Row, counted, read_columns, read_rows, written
from vidqa.gaps.curation.selection import FEW
from vidqa.gaps.problems import LEAK, NOTHING_NEW

ANNOTATIONS, LEAKS, SUMMARY = "annotations.json", "leaks.json", "assembly.json"
NAMED = 5  # leaks that a problem names
WRONG = ("wrong", "unparsed")  # errors whose response is an answer that can be rejected


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The options of assemble_dataset.py.

    add                     annotation files, or folders that a mining or augmentation has written
    pairs                   a gap table of the base set: only its rows are written, each with the model's wrong answer
    kpi, validation, test   protected sets: annotations, and where their media are
    replay                  rows of the base set for each added one, of this round or an earlier one; None keeps all
    cap                     most new rows of one kind; 0 is no limit
    balance                 thin out new rows of a kind until its answers are equally frequent among them
    """

    base: Path
    out: Path
    add: tuple[Path, ...] = ()
    pairs: Path | None = None
    base_media: str = ""
    kpi: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    replay: float | None = None
    cap: int = 0
    balance: bool = True
    group_by: str = ""
    round: int = 1
    seed: int = 0

    @property
    def protected(self) -> dict[str, tuple[str, ...]]:
        """The protected sets by name."""
        sets = {"kpi": self.kpi, "validation": self.validation, "test": self.test}
        return {name: places for name, places in sets.items() if places}


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


def assemble(request: Assembly) -> Assembled:
    """Write annotations.json to `request.out`. New rows that leak are left out; they, and pairs that are too plain to
    tell, stand in leaks.json and in `warnings`. Raises CURATION_NOTHING_NEW where no new row is left."""
    base = read_rows(request.base, request.base_media)
    left_out: Counter[str] = Counter()
    new = _with_rejected(base, request.pairs, left_out) if request.pairs else _added(request, base, left_out)
    protected = {
        name: [record for _, record in read_rows(*places, need_answers=False)]
        for name, places in request.protected.items()
    }
    request.out.mkdir(parents=True, exist_ok=True)
    leaks = find_leaks([record for _, record in new], protected, request.group_by)
    write_json(request.out / LEAKS, list(map(asdict, leaks)))
    new = _without_leaks(new, [leak for leak in leaks if leak.sure], left_out)
    if not new:
        raise NOTHING_NEW.error(request.out / LEAKS, f"all of the new rows leak: {leaks_text(leaks)}")
    draw = np.random.default_rng(request.seed)
    chosen = _capped(_balanced(new, draw, left_out) if request.balance else new, request.cap, draw, left_out)
    replayed = [] if request.pairs else _replayed(base, len(chosen), request.replay, draw)
    left_out["base rows not replayed"] = 0 if request.pairs else len(base) - len(replayed)
    assembled = Assembled(_rows(request, replayed, chosen), +left_out, leaks)
    (request.out / ANNOTATIONS).write_bytes(json_list(assembled.rows))
    write_json(request.out / SUMMARY, {"schema_version": 1, **assembled.as_dict()})
    return assembled


def _added(request: Assembly, base: Sequence[Pair], left_out: Counter[str]) -> list[Pair]:
    """The rows to add that the base set does not have. Raises CURATION_NOTHING_NEW."""
    new = [pair for place in request.add for pair in read_rows(_annotations_in(place), "")]
    new = _without_known(base, new, left_out)
    if not new:
        message = f"{left_out['already there']} rows were given, all of them are in the base set"
        raise NOTHING_NEW.error(", ".join(map(str, request.add)), message)
    return new


def _with_rejected(base: Sequence[Pair], gaps: Path, left_out: Counter[str]) -> list[Pair]:
    """Pairs for training on preferences: the rows with a gap in the table, each with the model's first wrong answer as
    the rejected one. Raises CURATION_INPUT, CURATION_NOTHING_NEW."""
    responses: dict[str, str] = {}
    for gap in read_columns(gaps, "sample_id", "response", "error_type"):
        if gap["error_type"] in WRONG and (gap["response"] or "").strip():
            responses.setdefault(gap["sample_id"], gap["response"].strip())
        else:
            left_out["gaps without an answer"] += 1
    pairs = []
    for row, record in base:
        response = responses.pop(record.id, None)
        if response is not None and response.split() == record.answer.split():
            left_out["rejected answer equals the right one"] += 1
        elif response is not None:
            pairs.append((row, replace(record, rejected=response)))
    left_out["gaps of other sets"] += len(responses)
    if not pairs:
        counts = ", ".join(f"{count} {why}" for why, count in (+left_out).items())
        remedy = "evaluate the model on the base set (--base), analyze_gaps.py, and give that table"
        message = f"no row of the base set has a wrong answer in it ({counts or 'it is empty'})"
        raise NOTHING_NEW.error(gaps, message, remedy)
    return pairs


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
    keys = {_key(record) for _, record in base}
    unknown = []
    for pair in new:
        key = _key(pair[1])
        if key in keys:
            left_out["already there"] += 1
            continue
        keys.add(key)
        unknown.append(pair)
    return unknown


def _without_leaks(new: Sequence[Pair], leaks: Sequence[Leak], left_out: Counter[str]) -> list[Pair]:
    """New rows of which neither a medium nor the id leaks."""
    media, names = {leak.new_media for leak in leaks}, {leak.new for leak in leaks if leak.reason == SAME_ID}
    safe = [pair for pair in new if pair[1].id not in names and media.isdisjoint(ref.file for ref in pair[1].media)]
    left_out["leaking"] += len(new) - len(safe)
    return safe


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
    indices = {at for rows in places.values() for at in draw.permutation(rows)[:cap].tolist()}
    left_out["beyond the cap of their kind"] += len(new) - len(indices)
    return [pair for at, pair in enumerate(new) if at in indices]


def _replayed(base: list[Pair], new: int, replay: float | None, draw: np.random.Generator) -> list[Pair]:
    """What earlier rounds have added, and rows of the first base set, as often from every kind as it has there."""
    first = [at for at, (_, record) in enumerate(base) if not record.provenance or record.provenance.origin == "base"]
    count = len(first) if replay is None else round(replay * (len(base) - len(first) + new))
    if count >= len(first):
        return base
    kinds = np.array([base[at][1].kind or "" for at in first])
    order = draw.permutation(len(first))
    share = np.empty(len(first))  # a row's place within its kind, from 0 to 1: the first ones of all kinds are taken
    for kind in np.unique(kinds):
        rows = order[kinds[order] == kind]
        share[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    left_out = {first[at] for at in np.argsort(share, kind="stable")[count:].tolist()}
    return [pair for at, pair in enumerate(base) if at not in left_out]


def _rows(request: Assembly, base: Sequence[Pair], chosen: Sequence[Pair]) -> list[Row]:
    """Rows with provenance and ids of their own."""
    names: set[str] = set()
    rows = []
    for origin, pairs in (("base", base), ("generated", chosen)):
        for row, record in pairs:
            name, number = record.id, 1
            while name in names:
                number += 1
                name = f"{record.id}-r{request.round}" + (f"-{number}" if number > 2 else "")
            names.add(name)
            provenance = record.provenance or Provenance(origin, None if origin == "base" else request.round)
            details = row.get("curation")
            rows.append(
                written(row, replace(record, id=name), provenance, details if isinstance(details, dict) else {})
            )
    return rows


def warnings(assembled: Assembled, request: Assembly) -> list[Problem]:
    """What is worth a look although the set was written."""
    sure, unsure = ([leak for leak in assembled.leaks if leak.sure is is_sure] for is_sure in (True, False))
    problems = []
    if sure:
        message = f"{assembled.left_out['leaking']} new rows were left out. {leaks_text(sure)}"
        problems.append(LEAK.at(request.out / LEAKS, message, severity="warning"))
    if unsure:
        remedy = "look at these clips, and take the rows of copies out of what is added"
        problems.append(LEAK.at(request.out / LEAKS, leaks_text(unsure), remedy, severity="warning"))
    if problems:
        return problems
    if request.protected:
        return []
    message = "no KPI, validation or test set was named, so that nothing was compared"
    return [
        LEAK.at(request.out / ANNOTATIONS, message, "name them with --kpi, --validation, --test", severity="warning")
    ]
