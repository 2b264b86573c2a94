"""Assembly of the next training set from a base set and new rows. Left out and counted are duplicates, rows that leak a
protected set (KPI, validation, test), and rows beyond the balance of answers or the cap of a kind.

assembled = assemble(Assembly(base=base, add=(mined,), out=out, kpi=(annotations, media)))

A row leaks if its video or id is that of a protected record, or its clip is a copy of a protected clip (`find_leaks`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.core.files import replacing, write_json
from vidqa.core.problem import Problem
from vidqa.data.load import Pair
from vidqa.data.problems import OUTPUT_EXISTS
from vidqa.data.record import Provenance, Record
from vidqa.datatools.duplicates import answer_class, compared_answer
from vidqa.datatools.outputs import json_list
from vidqa.gaps.curation.labels import TASKS, read_tasks
from vidqa.gaps.curation.leaks import SAME_ID, Leak, find_leaks
from vidqa.gaps.curation.rows import LABELLED, Row, annotation_files, counted, read_columns, read_rows, written
from vidqa.gaps.curation.selection import FEW
from vidqa.gaps.problems import INPUT, LEAK, NOTHING_NEW

ANNOTATIONS, LEAKS, SUMMARY = "annotations.json", "leaks.json", "assembly.json"
LEAKS_NAMED = 5  # most leaks in the message of a problem
NO_ROWS = len(json_list([]))  # size of an empty file in bytes
REJECTABLE = ("wrong", "unparsed")  # error types with a response that can be the rejected answer of a pair


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """The options of assemble_dataset.py.

    add                     annotation files, or output folders of a mining (and labelling) or augmentation
    pairs                   a gap table of the base set: only its rows are written, each with the model's wrong answer
    kpi, validation, test   protected sets: annotations and media folder
    replay                  rows of the base set per added row, of this round or an earlier one; None keeps all
    cap                     most new rows of one kind; 0 is no limit
    balance                 drop new rows of a kind until its answers are equally frequent among them
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
    max_per_kind: int = 0
    balance: bool = True
    group_by: str = ""
    round: int = 1
    seed: int = 0

    @property
    def protected(self) -> dict[str, tuple[str, ...]]:
        """The protected sets of the request, by name: (annotations, media)."""
        sets = {"kpi": self.kpi, "validation": self.validation, "test": self.test}
        return {name: paths for name, paths in sets.items() if paths}


@dataclass
class Assembled:
    """The new set: its rows in order, the number of dropped rows by reason, and the leaks."""

    rows: list[Row]
    left_out: Counter[str]
    leaks: list[Leak]

    def as_dict(self) -> dict[str, Any]:
        """The content of assembly.json."""
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
    """Write annotations.json, leaks.json and assembly.json to `request.out`. leaks.json also has unsure leaks, pairs of
    clips with too little detail to compare, whose rows are not dropped. Raises CURATION_NOTHING_NEW if no new row is
    left, CURATION_INPUT for a table that cannot be read and for a mining without answers, OUTPUT_EXISTS if a set would
    be replaced."""
    inputs = (request.base, *request.add, *(Path(paths[0]) for paths in request.protected.values()))
    place = request.out / ANNOTATIONS
    files = [file for path in inputs for file in annotation_files(path)]
    if place.exists() and any(file.exists() and place.samefile(file) for file in files):
        raise OUTPUT_EXISTS.error(place, "it is also an input of this command")
    # An assembled set refers to its media by full paths, which are outside of its folder.
    is_assembled = (request.base / SUMMARY).is_file()
    base = read_rows(request.base / ANNOTATIONS if is_assembled else request.base, request.base_media)
    left_out: Counter[str] = Counter()
    new = _preference_rows(base, request.pairs, left_out) if request.pairs else _added(request, base, left_out)
    sets = {
        name: [record for _, record in read_rows(*paths, need_answers=False)]
        for name, paths in request.protected.items()
    }
    request.out.mkdir(parents=True, exist_ok=True)
    leaks = find_leaks([record for _, record in new], sets, request.group_by)
    write_json(request.out / LEAKS, list(map(asdict, leaks)))
    new = _without_leaks(new, [leak for leak in leaks if leak.sure], left_out)
    if not new:
        raise NOTHING_NEW.error(request.out / LEAKS, f"all of the new rows leak: {leaks_text(leaks)}")
    rng = np.random.default_rng(request.seed)
    if request.balance:
        new = _balanced(new, rng, left_out)
    new = _capped(new, request.max_per_kind, rng, left_out)
    replayed = [] if request.pairs else _replayed(base, len(new), request.replay, rng)
    left_out["base rows not replayed"] = 0 if request.pairs else len(base) - len(replayed)
    assembled = Assembled(_rows(request, replayed, new), +left_out, leaks)
    with replacing(place) as temporary:
        temporary.write_bytes(json_list(assembled.rows))
    write_json(request.out / SUMMARY, {"schema_version": 1, **assembled.as_dict()})
    return assembled


def _added(request: Assembly, base: Sequence[Pair], left_out: Counter[str]) -> list[Pair]:
    """The rows to add that are not in the base set. Raises CURATION_INPUT, CURATION_NOTHING_NEW."""
    new: list[Pair] = []
    for path in request.add:
        rows = _rows_in(path)
        if (path / TASKS).is_file():
            left_out["without an answer"] += len(read_tasks(path / TASKS).keys() - {record.id for _, record in rows})
        new += rows
    new = _without_duplicates(base, new, left_out)
    if not new:
        message = f"{left_out['already there']} rows were given, all of them are in the base set"
        raise NOTHING_NEW.error(", ".join(map(str, request.add)), message)
    return new


def _preference_rows(base: Sequence[Pair], gaps: Path, left_out: Counter[str]) -> list[Pair]:
    """Rows for preference training (DPO): the base rows with a wrong answer in the gap table `gaps`, the first of these
    as the rejected answer. Raises CURATION_INPUT, CURATION_NOTHING_NEW."""
    responses: dict[str, str] = {}
    for gap in read_columns(gaps, "sample_id", "response", "error_type"):
        if gap["error_type"] in REJECTABLE and (gap["response"] or "").strip():
            responses.setdefault(gap["sample_id"], gap["response"].strip())
        else:
            left_out["gaps without an answer"] += 1
    rows = []
    for row, record in base:
        response = responses.pop(record.id, None)
        if response is not None and response.split() == record.answer.split():
            left_out["rejected answer equals the right one"] += 1
        elif response is not None:
            rows.append(Pair(row, replace(record, rejected=response)))
    left_out["gaps of other sets"] += len(responses)
    if not rows:
        counts = ", ".join(f"{count} {reason}" for reason, count in (+left_out).items())
        remedy = "evaluate the model on the base set (--base), python scripts/analyze_gaps.py, and give that table"
        message = f"no row of the base set has a wrong answer in it ({counts or 'it is empty'})"
        raise NOTHING_NEW.error(gaps, message, remedy)
    return rows


def leaks_text(leaks: Sequence[Leak]) -> str:
    """A sentence with the number of leaks, in total and by reason, and the first LEAKS_NAMED."""
    kinds = ", ".join(f"{count} {reason}" for reason, count in Counter(leak.reason for leak in leaks).items())
    pairs = "; ".join(f"{leak.new} is {leak.protected} of {leak.set} ({leak.reason})" for leak in leaks[:LEAKS_NAMED])
    return f"{len(leaks)} pairs: {kinds}. {pairs}{'; ...' if len(leaks) > LEAKS_NAMED else ''}"


def _rows_in(path: Path) -> list[Pair]:
    """Read the rows of these files. Raises CURATION_INPUT for a mining whose clips have no answers yet."""
    files, tasks = annotation_files(path), path / TASKS
    if tasks.is_file():
        files = [file for file in files if file.stat().st_size > NO_ROWS]
    if not files:
        words = f"--tasks {tasks} --labels FILE --out {path / LABELLED}"
        remedy = f"answer {path / 'annotate.html'}, save, then python scripts/label_samples.py {words}"
        raise INPUT.error(path, "none of the clips that were mined has an answer", remedy)
    return [row for file in files for row in read_rows(file)]


def _question_key(record: Record) -> tuple[Any, ...]:
    """A key that is equal for records with the same question about the same media."""
    return (*(ref.view for ref in record.media), " ".join(record.question.casefold().split()))


def _without_duplicates(base: Sequence[Pair], new: Sequence[Pair], left_out: Counter[str]) -> list[Pair]:
    """New rows whose question is neither in the base set nor in an earlier new row."""
    keys = {_question_key(record) for _, record in base}
    unique = []
    for pair in new:
        key = _question_key(pair.record)
        if key in keys:
            left_out["already there"] += 1
            continue
        keys.add(key)
        unique.append(pair)
    return unique


def _without_leaks(new: Sequence[Pair], leaks: Sequence[Leak], left_out: Counter[str]) -> list[Pair]:
    """New rows whose media and id do not leak."""
    media, ids = {leak.new_media for leak in leaks}, {leak.new for leak in leaks if leak.reason == SAME_ID}
    safe = [
        pair for pair in new if pair.record.id not in ids and media.isdisjoint(ref.file for ref in pair.record.media)
    ]
    left_out["leaking"] += len(new) - len(safe)
    return safe


def _balanced(new: list[Pair], rng: np.random.Generator, left_out: Counter[str]) -> list[Pair]:
    """Downsample the answers of each kind with few different answers to the count of the rarest. Free text is not
    changed."""
    # By kind and answer.
    indices: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, (_, record) in enumerate(new):
        indices[record.kind or record.question][compared_answer(record)].append(index)
    dropped: set[int] = set()
    for answers in indices.values():
        classes = {answer_class(new[rows[0]][1]) for rows in answers.values()}
        if not 1 < len(answers) <= FEW or classes == {"(text)"}:
            continue
        rarest = min(map(len, answers.values()))
        for rows in answers.values():
            dropped |= set(rng.permutation(rows)[rarest:].tolist())
    left_out["more of one answer"] += len(dropped)
    return [row for index, row in enumerate(new) if index not in dropped]


def _capped(new: list[Pair], cap: int, rng: np.random.Generator, left_out: Counter[str]) -> list[Pair]:
    """At most `cap` rows of each kind, drawn at random; 0 is no limit."""
    if not cap:
        return new
    indices: defaultdict[str, list[int]] = defaultdict(list)  # by kind
    for index, (_, record) in enumerate(new):
        indices[record.kind or ""].append(index)
    kept_indices = {index for rows in indices.values() for index in rng.permutation(rows)[:cap].tolist()}
    left_out["beyond the cap of their kind"] += len(new) - len(kept_indices)
    return [row for index, row in enumerate(new) if index in kept_indices]


def _replayed(base: list[Pair], new_rows: int, replay: float | None, rng: np.random.Generator) -> list[Pair]:
    """The rows of the base set to keep: all rows added by earlier rounds, and `replay` original rows per added one
    (None: all), in the original proportions of kinds."""
    original = [
        index for index, (_, record) in enumerate(base) if not record.provenance or record.provenance.origin == "base"
    ]
    count = len(original) if replay is None else round(replay * (len(base) - len(original) + new_rows))
    if count >= len(original):
        return base
    kinds = np.array([base[index][1].kind or "" for index in original])
    order = rng.permutation(len(original))
    # A row's rank within its kind, scaled to 0..1: the lowest ranks contain the same share of every kind.
    rank = np.empty(len(original))
    for kind in np.unique(kinds):
        rows = order[kinds[order] == kind]
        rank[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    dropped = {original[position] for position in np.argsort(rank, kind="stable")[count:].tolist()}
    return [row for index, row in enumerate(base) if index not in dropped]


def _rows(request: Assembly, base: Sequence[Pair], new: Sequence[Pair]) -> list[Row]:
    """The rows to write, with provenance and unique ids: the round's number is appended to an id already in use."""
    ids: set[str] = set()
    rows = []
    for origin, parsed_rows in (("base", base), ("generated", new)):
        for row, record in parsed_rows:
            new_id, number = record.id, 1
            while new_id in ids:
                number += 1
                new_id = f"{record.id}-r{request.round}" + (f"-{number}" if number > 2 else "")
            ids.add(new_id)
            provenance = record.provenance or Provenance(origin, None if origin == "base" else request.round)
            details = row.get("curation")
            rows.append(
                written(row, replace(record, id=new_id), provenance, details if isinstance(details, dict) else {})
            )
    return rows


def warnings(assembled: Assembled, request: Assembly) -> list[Problem]:
    """Warnings for leaks and for a missing protected set; the set is written anyway."""
    sure, unsure = ([leak for leak in assembled.leaks if leak.sure is is_sure] for is_sure in (True, False))
    problems = []
    if sure:
        message = f"{assembled.left_out['leaking']} new rows were left out. {leaks_text(sure)}"
        problems.append(LEAK.at(request.out / LEAKS, message, severity="warning"))
    if unsure:
        remedy = "look at these clips, and remove the rows of copies from the new rows"
        problems.append(LEAK.at(request.out / LEAKS, leaks_text(unsure), remedy, severity="warning"))
    if problems:
        return problems
    if request.protected:
        return []
    message = "no KPI, validation or test set was given, so nothing was compared"
    return [
        LEAK.at(request.out / ANNOTATIONS, message, "give them with --kpi, --validation, --test", severity="warning")
    ]
