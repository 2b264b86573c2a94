"""The samples of a run: planned, equal on every rank, summarised in plan.json; and samples that fail during the run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.actions import action_for
from vidqa.core.cli import note
from vidqa.core.files import write_json
from vidqa.core.problem import Exit, Problem, ProblemError, raise_errors
from vidqa.core.run_folder import PLAN, QUARANTINE, RunFolder
from vidqa.data.problems import EMPTY
from vidqa.data.record import Record
from vidqa.engine.distributed import World
from vidqa.engine.problems import CHECK_LOG, ENGINE_BAD_SAMPLE
from vidqa.evaluation.rewards import question_problems
from vidqa.planning import plan_cache
from vidqa.planning.pairs import pair_problems
from vidqa.planning.plan import (
    Plan,
    PlannedSet,
    leaves_out_bad_samples,
    load_sets,
    make_plan,
    too_long,
    unmeasured,
    usable,
    without_labels,
)
from vidqa.planning.prefix_sharing import max_tokens
from vidqa.planning.samples import Planner, Sample
from vidqa.spec import DataFacts, check_with_data
from vidqa.spec.models import EvaluateSpec, GrpoSpec, Spec, TrainSpec
from vidqa.video.problems import VIDEO_DECODE_TIMEOUT

MOST_NAMED = 3  # excluded samples in the log


@dataclass(frozen=True)
class Prepared:
    """The samples of a run."""

    train: Sequence[Sample]
    validation: Sequence[Sample]
    fingerprint: str


def prepare_training(spec: TrainSpec, planner: Planner, world: World, run: RunFolder) -> Prepared:
    """The samples of a TrainSpec. Raises the problems of bad samples if they fail the run."""
    plan = shared_plan(spec, planner, world, run)
    for problem in pair_problems(spec, {name: part.records for name, part in plan.sets.items()}):
        if problem.severity == "error":
            raise ProblemError([problem])
        world.note(problem.message)
    return _prepared(spec, plan, world, run, trained=True)


def prepare_questions(spec: GrpoSpec, planner: Planner, world: World, run: RunFolder) -> Prepared:
    """The questions of a GrpoSpec. Raises the problems of bad samples if they fail the run, and the problems of
    reference answers that no completion can match."""
    prepared = _prepared(spec, shared_plan(spec, planner, world, run), world, run, trained=False)
    rewards = spec.train.train_policy.reward_function
    records = [sample.record for sample in prepared.train]
    raise_errors(question_problems(records, rewards, balanced=spec.engine.balance == "label"))
    return prepared


def _prepared(spec: TrainSpec, plan: Plan, world: World, run: RunFolder, *, trained: bool) -> Prepared:
    """The usable samples of both sets. Raises the problems of bad samples if they fail the run, and DATA_EMPTY."""
    chosen, problems = fitting(spec, plan.sets["train"], trained=trained)
    held, more = fitting(spec, plan.sets["validation"]) if "validation" in plan.sets else ([], [])
    world.on_main(lambda: leave_out(problems + more, run))
    for problem in unmeasured(held) if trained else []:
        world.note(f"validation: {problem.message}")
    if not chosen:
        raise EMPTY.error(spec.custom.train_dataset.annotation_path, "no training sample is usable", CHECK_LOG)
    return Prepared(chosen, held, plan.data_fingerprint)


def check_steps(spec: TrainSpec, data: Prepared) -> None:
    """Raise the problems of a TrainSpec with its samples: too few samples for a step, too small a pack."""
    facts = DataFacts(len(data.train), len(data.validation), max_tokens(data.train))
    raise_errors(check_with_data(spec, facts))


def prepare_evaluation(
    spec: EvaluateSpec, planner: Planner, world: World, run: RunFolder
) -> tuple[Sequence[Record], Sequence[Sample], list[Problem]]:
    """All records to evaluate, the usable samples, and the problems of the others. Raises like `prepare_training`."""
    planned = shared_plan(spec, planner, world, run).sets["evaluation"]
    samples, problems = fitting(spec, planned)
    world.on_main(lambda: leave_out(problems, run))
    if not samples:
        raise EMPTY.error(spec.dataset.annotation_path, "no sample can be evaluated", CHECK_LOG)
    return planned.records, samples, problems


def leave_out(problems: Sequence[Problem], run: RunFolder) -> None:
    """Name the first excluded samples in the log, and all of them in quarantine.json."""
    for problem in problems[:MOST_NAMED]:
        note(f"left out: {problem.code} at {problem.where}: {problem.message}")
    if len(problems) > MOST_NAMED:
        note(f"left out: {len(problems) - MOST_NAMED} more samples, named in {QUARANTINE}")
    if problems:
        run.add_to_quarantine(problems)


def shared_plan(spec: Spec, planner: Planner, world: World, run: RunFolder) -> Plan:
    """The plan of a run, on every rank: the stored one if it is valid. Otherwise rank 0 reads, probes and plans, and
    stores the plan for the next attempt."""
    plan = world.on_main(lambda: _encoded_plan(spec, planner, run.path / PLAN))
    return plan if isinstance(plan, Plan) else plan_cache.decode(plan)


def _encoded_plan(spec: Spec, planner: Planner, place: Path) -> Any:
    """The encoded plan, which is fast to broadcast; the plan itself if a file name is not valid UTF-8."""
    inputs = plan_cache.plan_inputs(spec, planner)  # first: a change while records are read must make the plan stale
    try:
        if (stored := plan_cache.read(place, inputs)) is not None:
            return stored
    except plan_cache.Stale as stale:
        note(f"{PLAN} is not used, planning again: {stale}")
    sets = load_sets(spec)
    records = [record for part in sets.values() for record in part]
    identities = plan_cache.file_identities(plan_cache.media_paths(spec, records))
    plan = make_plan(spec, planner, sets)
    try:
        encoded = plan_cache.encode(plan, inputs, identities)
    except UnicodeEncodeError:
        return plan
    with suppress(OSError):
        plan_cache.write(place, encoded)
    return encoded


def fitting(spec: Spec, planned: PlannedSet, *, trained: bool = False) -> tuple[Sequence[Sample], list[Problem]]:
    """The samples of a set that are short enough and, if `trained`, have a trained token; and the problems of the
    others. Raises all problems if on_bad_sample is "fail"."""
    sampling = action_for(spec).sampling
    assert sampling
    longest = sampling.longest(spec)
    problems = [*planned.problems, *(sample.too_long(longest) for sample in too_long(planned.samples, longest))]
    problems += without_labels(planned.samples) if trained else []
    if problems and not leaves_out_bad_samples(spec):
        raise ProblemError(problems)
    return usable(planned.samples, longest, trained=trained), problems


def write_plan(run: RunFolder, prepared: Prepared, facts: dict[str, Any]) -> None:
    """Write plan.json: samples, tokens and steps."""
    plan = {
        "schema_version": 1,
        "train_samples": len(prepared.train),
        "validation_samples": len(prepared.validation),
        "train_tokens_per_epoch": sum(sample.length for sample in prepared.train),
        "supervised_tokens_per_epoch": sum(sample.supervised for sample in prepared.train),
        "longest_sample_tokens": max_tokens(prepared.train),
        "data_fingerprint": prepared.fingerprint,
        **facts,
    }
    write_json(run.path / "plan.json", plan)


class BadSamples:
    """Collects bad samples; every rank calls `report` at the same places. With on_bad_sample "fail" a bad sample ends
    the run on all ranks; with "quarantine" it is excluded and named in the log and in quarantine.json. A problem of the
    machine always ends the run, under its own code; so does a decode timeout if ranks share a pack, since the other
    ranks may have learned from that video."""

    def __init__(self, run: RunFolder, world: World, on_bad_sample: str) -> None:
        self.run, self.world, self.fails = run, world, on_bad_sample == "fail"
        self.reported: dict[Problem, None] = {}

    def report(self, own: Sequence[Problem]) -> None:
        """Gather the problems of all ranks. Raises ENGINE_BAD_SAMPLE, MEDIA_DECODER_KILLED."""
        everyone = [problem for problems in self.world.gather(list(own)) for problem in problems]
        new = [problem for problem in dict.fromkeys(everyone) if problem not in self.reported]
        met_alone = self.world.context.size > 1 and any(problem.code == VIDEO_DECODE_TIMEOUT.name for problem in new)
        end_if_bad(new, fails=self.fails or met_alone)
        self.reported.update(dict.fromkeys(new))
        if self.world.is_main:
            leave_out(new, self.run)


def end_if_bad(problems: Sequence[Problem], *, fails: bool) -> None:
    """Raise problems of the machine unchanged; if a bad sample `fails` the run, the others as ENGINE_BAD_SAMPLE."""
    outside = [problem for problem in problems if problem.exit_code != Exit.INPUT]
    if outside:
        raise ProblemError(outside)
    if fails and problems:
        raise ProblemError(ENGINE_BAD_SAMPLE.at(p.where, f"{p.code}: {p.message}", p.remedy) for p in problems)
