"""Data: annotations are valid, training and evaluation data are disjoint, and answers are balanced."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

from vidqa.contract.problem import Problem
from vidqa.dataset.identical_files import real_key, same_bytes_between
from vidqa.dataset.record import MediaRef
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.metrics import task_problems
from vidqa.planning.sets import RecordSet
from vidqa.preflight._base import Context
from vidqa.preflight.leaks import listed
from vidqa.preflight.problems import LABELS_UNBALANCED, SPLIT_COPY, SPLIT_IDS, SPLIT_LEAK
from vidqa.spec.models import EvaluateSpec

FEWEST_ANSWERS = 20  # of one kind; fewer say nothing about balance
MOST_OF_ONE = 0.9
CONSTRAINED = {"yes_no", "letter", "direction", "number"}


def records(context: Context) -> list[Problem]:
    for part in context.sets:
        context.facts[f"{part.name}_records"] = len(part.records)
    return [problem for part in context.sets for problem in part.problems]


def disjoint(context: Context) -> list[Problem]:
    """No two sets share a file, a copy of a file, or an id. Ids that are plain numbers may be positions and do not
    count."""
    context.require_sets_apart()
    return [problem for one, other in combinations(context.sets, 2) for problem in apart(context, one, other)]


def apart(context: Context, one: RecordSet, other: RecordSet) -> list[Problem]:
    """What two sets share."""
    where = f"{one.name} and {other.name}"
    problems = []
    mine, theirs = _media(one), _media(other)
    shared = sorted(mine.keys() & theirs.keys())
    shown = listed(context, where, "same_file", shared)
    if shared:
        problems.append(SPLIT_LEAK.at(where, f"{len(shared)} files are in both sets{shown}"))
    copies = same_bytes_between(mine.values(), theirs.values())
    shown = listed(context, where, "same_content", copies)
    if copies:
        problems.append(SPLIT_COPY.at(where, f"{len(copies)} pairs of files have the same content{shown}"))
    ids = {record.id for record in one.records} & {record.id for record in other.records}
    named = sorted(name for name in ids if not name.isdigit())
    shown = listed(context, where, "same_id", named)
    if named:
        problems.append(SPLIT_IDS.at(where, f"{len(named)} ids are in both sets{shown}", severity="warning"))
    return problems


def _media(part: RecordSet) -> dict[str, MediaRef]:
    by_key = {ref.key: ref for record in part.records for ref in record.media}
    return {real_key(ref): ref for ref in by_key.values()}


def answers(context: Context) -> list[Problem]:
    """Whether one answer dominates, and the forms of the expected answers."""
    problems = []
    task = context.spec.task.type if isinstance(context.spec, EvaluateSpec) else ""
    for part in context.sets:
        problems += task_problems("task.type", task, [(record.answer, record.question) for record in part.records])
        forms: Counter[str] = Counter()
        by_kind: dict[str, Counter[str]] = defaultdict(Counter)
        for record in part.records:
            expected = parse_expected(record.answer, record.question, task)
            forms[expected.kind] += 1
            by_kind[record.kind or expected.kind][expected.answer] += 1
        context.facts[f"{part.name}_answers"] = dict(forms.most_common())
        if part.name != "train":
            context.facts[f"{part.name}_gap_analysis"] = _gap_analysis(forms)
        problems += [
            found for kind, counts in sorted(by_kind.items()) if (found := _unbalanced(part.name, kind, counts))
        ]
    return problems


def _gap_analysis(forms: Counter[str]) -> str:
    free = sum(count for kind, count in forms.items() if kind not in CONSTRAINED)
    if not free:
        return "every expected answer is yes/no, a letter, a direction or a number"
    return f"{free} of {sum(forms.values())} expected answers are free text, which counts as a gap unless it is equal"


def _unbalanced(name: str, kind: str, counts: Counter[str]) -> Problem | None:
    total = sum(counts.values())
    (most, count), *_ = counts.most_common(1)
    if total < FEWEST_ANSWERS or count <= MOST_OF_ONE * total:
        return None
    message = f"{most[:60]!r} is {count} of the {total} answers of kind {kind}"
    return LABELS_UNBALANCED.at(name, message, severity="warning")
