"""The plan of a run: its records by set, their samples, and the usable ones of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from vidqa.core.actions import action_for, resolve
from vidqa.core.problem import Problem
from vidqa.data import fingerprint
from vidqa.data.record import Record
from vidqa.planning.pairs import learns_pairs, plan_pairs
from vidqa.planning.problems import SAMPLE_ANSWERS
from vidqa.planning.samples import Planner, Sample
from vidqa.spec.models import Spec


@dataclass(frozen=True)
class PlannedSet:
    """All records of a set, the samples of the valid ones in the same order, and the problems of the others."""

    records: Sequence[Record]
    samples: Sequence[Sample]
    problems: list[Problem]


@dataclass(frozen=True)
class Plan:
    """The sets of a run by name; `data_fingerprint` is of all their records."""

    sets: dict[str, PlannedSet]
    data_fingerprint: str


def response_mode(spec: Spec, name: str) -> str | None:
    """The response mode of a set; None for the planner's."""
    sampling = action_for(spec).sampling
    mode = sampling.modes.get(name) if sampling else None
    return resolve(mode)(spec) if mode else None


def make_plan(spec: Spec, planner: Planner, records: Mapping[str, list[Record]]) -> Plan:
    """Plan the sets of a run (`sets.record_sets`)."""
    sets = {}
    for name, records_of_set in records.items():
        plan = partial(plan_pairs, planner) if learns_pairs(spec) else planner.plan
        samples, problems = plan(records_of_set, response_mode(spec, name))
        sets[name] = PlannedSet(records_of_set, samples, problems)
    return Plan(sets, fingerprint(record for records_of_set in records.values() for record in records_of_set))


def usable(samples: Sequence[Sample], longest: int, *, trained: bool) -> list[Sample]:
    """Samples of at most `longest` tokens; with `trained` only those with a supervised token. No sample is ever cut."""
    return [sample for sample in samples if sample.length <= longest and (sample.supervised or not trained)]


def too_long(samples: Sequence[Sample], longest: int) -> list[Sample]:
    return [sample for sample in samples if sample.length > longest]


def without_labels(samples: Sequence[Sample]) -> list[Problem]:
    """SAMPLE_ANSWERS for every training sample without a supervised token."""
    without = [sample for sample in samples if not sample.supervised]
    return [SAMPLE_ANSWERS.at(sample.place, "no token of it is learned") for sample in without]
