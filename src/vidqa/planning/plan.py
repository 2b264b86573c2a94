"""The plan of a run: its records by set, the samples that they become, and which of these can be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vidqa.actions import action_for, resolve
from vidqa.contract.problem import Problem
from vidqa.dataset import fingerprint
from vidqa.dataset.record import Record
from vidqa.planning.problems import SAMPLE_NOTHING_LEARNED
from vidqa.planning.samples import Planner, Sample
from vidqa.spec.models import Spec


@dataclass(frozen=True)
class PlannedSet:
    """All records of a set, the samples of those that can become one, in the same order, and the others' problems."""

    records: Sequence[Record]
    samples: Sequence[Sample]
    problems: list[Problem]


@dataclass(frozen=True)
class Plan:
    """The sets of a run by name; `data_fingerprint` is of all their records."""

    sets: dict[str, PlannedSet]
    data_fingerprint: str


def response_mode(spec: Spec, name: str) -> str | None:
    """The response mode of a set, where it is not the planner's."""
    sampling = action_for(spec).sampling
    mode = sampling.modes.get(name) if sampling else None
    return resolve(mode)(spec) if mode else None


def make_plan(spec: Spec, planner: Planner, records: Mapping[str, list[Record]]) -> Plan:
    """Plan the sets of a run (`sets.record_sets`)."""
    sets = {}
    for name, records_of_set in records.items():
        samples, problems = planner.plan(records_of_set, response_mode(spec, name))
        sets[name] = PlannedSet(records_of_set, samples, problems)
    return Plan(sets, fingerprint(record for records_of_set in records.values() for record in records_of_set))


def usable(samples: Sequence[Sample], longest: int, *, trained: bool) -> list[Sample]:
    """Samples of at most `longest` tokens; of those that are `trained` on the ones with a supervised token. No sample
    is ever cut."""
    return [sample for sample in samples if sample.length <= longest and (sample.supervised or not trained)]


def too_long(samples: Sequence[Sample], longest: int) -> list[Sample]:
    return [sample for sample in samples if sample.length > longest]


def without_labels(samples: Sequence[Sample]) -> list[Problem]:
    """The problems of training samples of which no token is supervised."""
    without = [sample for sample in samples if not sample.supervised]
    return [SAMPLE_NOTHING_LEARNED.at(sample.place, "no token of it is learned") for sample in without]
