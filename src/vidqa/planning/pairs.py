"""Preference pairs as samples: a question with a chosen and a rejected answer, whose prompt is in a pack once.

A pair counts as one sample everywhere (steps, packs, memory): its `length` is that of the prompt and both answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vidqa.core.problem import Problem
from vidqa.data.record import Record, Turn
from vidqa.families.problems import SAMPLE_ANSWERS
from vidqa.planning.samples import Planner, Sample
from vidqa.spec.models import TrainSpec


@dataclass(frozen=True, slots=True)
class PairSample(Sample):
    """A prompt with both answers behind it. `length` is prefix + two suffixes, `supervised` that of both answers.
    `chosen` is (length, supervised) of the prompt with the chosen answer. Turns before the last answer are in both, so
    that they cancel out of the difference of log-probabilities."""

    chosen: tuple[int, int] = field(kw_only=True)

    def halves(self, key: bytes) -> tuple[Sample, Sample]:
        """The samples of the chosen and of the rejected answer, which share their prefix as group `key`."""
        length, supervised = self.chosen
        group = (self.prefix, key if self.prefix else b"")
        right = Sample(self.record, self.plans, self.prompting, length, supervised, *group)
        length, supervised = self.length + self.prefix - length, self.supervised - supervised
        return right, Sample(rejecting(self.record), self.plans, self.prompting, length, supervised, *group)


def learns_pairs(spec: object) -> bool:
    """Whether a spec's training is one on preference pairs (DPO)."""
    return isinstance(spec, TrainSpec) and spec.engine.objective == "dpo"


def rejecting(record: Record) -> Record:
    """The record with its rejected answer in place of the chosen one."""
    assert record.rejected is not None
    *turns, _ = record.turns
    return replace(record, turns=(*turns, Turn("assistant", (record.rejected,))), rejected=None)


def plan_pairs(
    planner: Planner, records: Sequence[Record], response_mode: str | None = None
) -> tuple[list[PairSample], list[Problem]]:
    """Pairs in the order of their records, and the problems of records that cannot become one. Records without a
    rejected answer are left out; `pair_problems` reports them. If one answer of a pair has no supervised token, the
    pair has none."""
    right, problems = planner.plan([record for record in records if record.rejected], response_mode)
    twins = [rejecting(sample.record) for sample in right]
    wrong, others = planner.plan(twins, response_mode)
    rejected = {id(sample.record): sample for sample in wrong}
    samples = []
    for one, twin in zip(right, twins, strict=True):
        if (other := rejected.get(id(twin))) is None:
            continue
        assert (one.prefix, one.prefix_key) == (other.prefix, other.prefix_key)
        counts = one.length + other.length - one.prefix, one.supervised + other.supervised
        length, supervised = counts if one.supervised and other.supervised else (counts[0], 0)
        values = (one.record, one.plans, one.prompting, length, supervised, one.prefix, one.prefix_key)
        samples.append(PairSample(*values, chosen=(one.length, one.supervised)))
    return samples, [*problems, *others]


def pair_problems(spec: object, sets: Mapping[str, Sequence[Record]]) -> list[Problem]:
    """SAMPLE_ANSWERS, by set: records without a rejected answer, or with two equal ones, if training is on pairs; a
    warning if there are rejected answers and training is not."""
    problems = []
    for name, records in sets.items():
        paired = [record for record in records if record.rejected]
        if not learns_pairs(spec):
            if paired and isinstance(spec, TrainSpec) and name in ("train", "validation"):
                objective = f'engine.objective = "{spec.engine.objective}"'
                message = f"{len(paired)} records have a rejected answer, but {objective} does not use it"
                problems.append(SAMPLE_ANSWERS.at(name, message, severity="warning"))
            continue
        if missing := [record for record in records if not record.rejected]:
            message = f"{len(missing)} of {len(records)} records have no rejected answer, first {missing[0].place}"
            problems.append(SAMPLE_ANSWERS.at(name, message))
        if equal := [record for record in paired if _plain(record.rejected) == _plain(record.answer)]:
            message = f"{len(equal)} records have the same answer twice, first {equal[0].place}"
            problems.append(SAMPLE_ANSWERS.at(name, message))
    return problems


def _plain(text: str | None) -> str:
    return " ".join((text or "").split())
