"""Data checks: annotations are valid, sets are disjoint, answers are balanced, and completions can be rewarded."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from vidqa.core.actions import action_for
from vidqa.core.files import write_json
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.record import Record
from vidqa.data.record_groups import media_by_file, same_bytes_between
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.metrics import task_problems
from vidqa.evaluation.problems import REWARD_FORMAT
from vidqa.evaluation.rewards import Completion, Rewards, question_problems
from vidqa.jobs.job_spec import model_names
from vidqa.planning.pairs import pair_problems
from vidqa.planning.plan import RecordSet, read_record_sets
from vidqa.preflight import media_probe
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.problems import LABELS_UNBALANCED, SPLIT_LEAK
from vidqa.spec import effective_batch, load_training
from vidqa.spec.grpo_tables import reward_weights
from vidqa.spec.models import EvaluateSpec, GrpoSpec, TrainSpec
from vidqa.spec.run_lookup import EXPORTS

FEWEST_ANSWERS = 20  # of one kind; fewer are too few to judge balance
MOST_OF_ONE = 0.9
CONSTRAINED = {"yes_no", "letter", "direction", "number"}


def records(inputs: Inputs) -> list[Problem]:
    for part in inputs.sets:
        inputs.facts[f"{part.name}_records"] = len(part.records)
    return [problem for part in inputs.sets for problem in part.problems]


def pairs(inputs: Inputs) -> list[Problem]:
    """Check that the objective fits the answers: pairs, or one answer per record."""
    if inputs.training is None:
        raise Skip("no weights learn from it")
    sets = {part.name: part.records for part in inputs.annotations}
    inputs.facts["pairs"] = sum(bool(record.rejected) for records in sets.values() for record in records)
    return pair_problems(inputs.training, sets)


def disjoint(inputs: Inputs) -> list[Problem]:
    """Check that no two sets share a file, a copy of a file, or an id. Ids that are plain numbers may be positions and
    do not count."""
    inputs.require_disjoint_sets()
    return [problem for one, other in combinations(inputs.sets, 2) for problem in apart(inputs, one, other)]


def apart(inputs: Inputs, one: RecordSet, other: RecordSet) -> list[Problem]:
    """Problems of items that two sets share."""
    where, problems = f"{one.name} and {other.name}", []
    mine, theirs = media_by_file(one.records), media_by_file(other.records)
    copies = same_bytes_between(mine.values(), theirs.values())
    ids = {record.id for record in one.records} & {record.id for record in other.records}
    for what, shared, text, severity in (
        ("same_file", sorted(mine.keys() & theirs.keys()), "files are in both sets", "error"),
        ("same_content", copies, "pairs of files have the same content", "error"),
        ("same_id", sorted(name for name in ids if not name.isdigit()), "ids are in both sets", "warning"),
    ):
        shown = write_shared(inputs, where, what, shared)
        if shared:
            problems.append(SPLIT_LEAK.at(where, f"{len(shared)} {text}{shown}", severity=severity))
    return problems


def new_to_model(inputs: Inputs) -> list[Problem]:
    """Warn of items of an evaluation from which its model has learned, in trainings on this machine."""
    trainings = _trainings_of(model_names(inputs.spec).values())
    sets = [part for run, training in trainings.items() for part in _learned(inputs, run, training)]
    if not sets:
        raise Skip("no training set of the model is known on this machine")
    problems = [problem for learned in sets for part in inputs.sets for problem in apart(inputs, learned, part)]
    return [replace(problem, severity="warning") for problem in problems]


def _trainings_of(models: Iterable[str]) -> dict[Path, TrainSpec]:
    """The run folders and specs of the trainings whose exports are these models, then of those whose exports they began
    with. Runs without a readable spec are left out."""
    trainings: dict[Path, TrainSpec] = {}
    models = list(models)
    for model in models:
        export = Path(os.path.realpath(os.path.expanduser(model)))
        run = export.parent.parent
        if export.parent.name != EXPORTS or run in trainings:
            continue
        with suppress(ProblemError):
            trainings[run] = training = load_training(run / "spec.toml")
            adapter = training.policy.lora.lora_path if training.policy.lora else None
            models += [*model_names(training).values(), *([adapter] if adapter else [])]
    return trainings


def _learned(inputs: Inputs, run: Path, training: TrainSpec) -> list[RecordSet]:
    """The readable records from which a training learned."""
    names = {data.name for data in action_for(training).data if data.is_trained_on}
    parts = read_record_sets(training, lambda source: inputs.read_set(replace(source, keep_missing=True)))
    return [replace(part, name=f"{part.name} of {run}") for part in parts if part.name in names and part.records]


def answers(inputs: Inputs) -> list[Problem]:
    """Check whether one answer dominates, and count the forms of the expected answers."""
    problems = []
    task = inputs.spec.task.type if isinstance(inputs.spec, EvaluateSpec) else ""
    for part in [part for part in inputs.sets if part.records]:
        problems += task_problems("task.type", task, [(record.answer, record.question) for record in part.records])
        forms: Counter[str] = Counter()
        by_kind: dict[str, Counter[str]] = defaultdict(Counter)
        for record in part.records:
            expected = parse_expected(record.answer, record.question, task)
            forms[expected.kind] += 1
            by_kind[record.kind or expected.kind][expected.answer] += 1
        inputs.facts[f"{part.name}_answers"] = dict(forms.most_common())
        if part.name != "train":
            inputs.facts[f"{part.name}_gap_analysis"] = _gap_analysis(forms)
        for kind, counts in sorted(by_kind.items()):
            problems += _unbalanced(part.name, kind, counts)
    return problems


def _gap_analysis(forms: Counter[str]) -> str:
    free = sum(count for kind, count in forms.items() if kind not in CONSTRAINED)
    if not free:
        return "every expected answer is yes/no, a letter, a direction or a number"
    return f"{free} of {sum(forms.values())} expected answers are free text, which counts as a gap unless it is equal"


def _unbalanced(name: str, kind: str, counts: Counter[str]) -> list[Problem]:
    total = sum(counts.values())
    (most, count), *_ = counts.most_common(1)
    if total < FEWEST_ANSWERS or count <= MOST_OF_ONE * total:
        return []
    message = f"{most[:60]!r} is {count} of the {total} answers of kind {kind}"
    return [LABELS_UNBALANCED.at(name, message, severity="warning")]


NAME = "leaks.json"
SHOWN = 3  # in the message of a problem


def write_shared(inputs: Inputs, where: str, what: str, shared_items: Sequence[Any]) -> str:
    """Text of the first shared items, and the path of the file with all of them. An empty result is written, too, over
    an earlier file."""
    place = media_probe.place_for(inputs.spec_path).with_name(NAME)
    inputs.leaks.setdefault(where, {})[what] = list(shared_items)
    counts = {sets: {name: len(items) for name, items in shared.items()} for sets, shared in inputs.leaks.items()}
    inputs.facts["leaks"] = {"file": str(place), "counts": counts}
    first = "; ".join(" and ".join(items) if isinstance(items, tuple) else items for items in shared_items[:SHOWN])
    shown = f", such as {first}"
    if inputs.at_launch or (not shared_items and not place.is_file()):
        return shown
    try:
        write_json(place, inputs.leaks)
    except (OSError, ValueError):  # a name that cannot be encoded
        return shown
    return f"{shown}; all are listed in {place}"


def rewards(inputs: Inputs) -> list[Problem]:
    """Check that every question can be rewarded, and a user's reward function returns a number for the first one."""
    spec = inputs.spec
    if not isinstance(spec, GrpoSpec):
        raise Skip("only reinforcement learning rewards completions")
    records = next(part.records for part in inputs.sets if part.name == "train")
    policy, balanced = spec.train.train_policy, spec.engine.balance == "label"
    inputs.facts["rollout"] = {
        "questions_per_step": effective_batch(spec),
        "completions_per_step": effective_batch(spec) * spec.rollout.n_generation,
        "completions_per_question": spec.rollout.n_generation,
        "longest_completion": spec.rollout.max_response_length,
    }
    problems = [*question_problems(records, policy.reward_function, balanced=balanced), *_format(spec, records)]
    try:
        longest, timeout_s = spec.rollout.max_response_length, spec.engine.reward_timeout_s
        with Rewards(policy.reward_function, policy, longest, timeout_s) as loaded:
            for record in records[:1] if loaded.users else []:
                loaded(Completion(record, record.answer, tuple(record.answer.encode()) or (0,)))  # for ids of tokens
    except ProblemError as broken:
        problems += broken.problems
    return problems


def _format(spec: GrpoSpec, records: Sequence[Record]) -> list[Problem]:
    """A warning if a format is rewarded that neither the prompts request nor the references have."""
    policy = spec.train.train_policy
    if not {"format", "format_strict"} & reward_weights(policy.reward_function).keys():
        return []
    shown = [spec.custom.system_prompt, *(text for record in records for text in (record.question, record.answer))]
    if any("<answer>" in text for text in shown):
        return []
    message = "reward_function has format, but neither custom.system_prompt nor any record contains <answer>"
    return [REWARD_FORMAT.at("train.train_policy.reward_function", message, severity="warning")]
