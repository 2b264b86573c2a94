"""Spec checks: all rules, the evaluation that belongs to a training, and the checkpoint to resume from."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core import environment
from vidqa.core.problem import Problem, ProblemError
from vidqa.core.run_folder import TRAINER, checkpoint_folder, read_checkpoint
from vidqa.data.storage import hub
from vidqa.evaluation.problems import COMPARISON_UNEQUAL
from vidqa.families import family_of
from vidqa.families.weights import weight_files
from vidqa.jobs.job_spec import model_names
from vidqa.planning import resume_compat
from vidqa.planning.problems import RESUME_MISMATCH, RESUME_NO_CHECKPOINT
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.spec.keys import flat
from vidqa.spec.models import EvaluateSpec, TrainSpec
from vidqa.spec.parent_layers import SAME_IN_BOTH

SAME_MODEL_AND_FRAMES = (
    "give both specs the same base model, vision table and system prompt, as python scripts/build_spec.py evaluate "
    "--parent-run RUN does"
)
NO_EVALUATION = "no spec of an evaluation was given (--evaluate-spec)"


def rules(inputs: Inputs) -> list[Problem]:
    """All errors and warnings. The one about a short model_max_length is decided after counting tokens."""
    return inputs.resolved.warnings


def evaluation_rules(inputs: Inputs) -> list[Problem]:
    if inputs.evaluate_spec is None:
        raise Skip(NO_EVALUATION)
    measure = inputs.declared_action.evaluated_by or inputs.action
    return spec.resolve_file(inputs.evaluate_spec, measure).warnings


def same_model(inputs: Inputs) -> list[Problem]:
    """Check that the evaluated model is the trained one, an export of it, or an adapter on it."""
    train_spec, eval_spec = _pair(inputs)
    trained = next(iter(model_names(train_spec).values()))
    key, evaluated = list(model_names(eval_spec).items())[-1]  # an adapter's base model comes last
    if trained == evaluated or _folder(trained) == _folder(evaluated):
        return []
    sizes, other = _sizes(trained), _sizes(evaluated)
    differing = [f"{key} {sizes[key]} and {other[key]}" for key in sorted(sizes) if sizes[key] != other[key]]
    if not differing:
        inputs.facts["evaluated_model"] = f"{evaluated}, of the same sizes as {trained}"
        return []
    message = f"{evaluated} is not made from {trained}: {', '.join(differing[:4])}"
    return [COMPARISON_UNEQUAL.at(f"{inputs.evaluate_spec} {key}", message, SAME_MODEL_AND_FRAMES)]


def same_frames(inputs: Inputs) -> list[Problem]:
    """Check that training and evaluation use the same frames and system prompt."""
    train_spec, eval_spec = _pair(inputs)
    trained, evaluated = flat(train_spec), flat(eval_spec)
    differing = [
        f"{key} is {trained[of_training]!r} in training and {evaluated[key]!r} in evaluation"
        for key, of_training in SAME_IN_BOTH.items()
        if trained[of_training] != evaluated[key]
    ]
    return [
        COMPARISON_UNEQUAL.at(inputs.evaluate_spec, message, SAME_MODEL_AND_FRAMES, severity="warning")
        for message in differing
    ]


def _pair(inputs: Inputs) -> tuple[TrainSpec, EvaluateSpec]:
    if inputs.training is None or inputs.evaluation is None:
        raise Skip(NO_EVALUATION)
    return inputs.training, inputs.evaluation


def _folder(name: str) -> object:
    return Path(os.path.expanduser(name)).resolve() if not hub.is_hub_name(name) else name


def _sizes(name: str) -> dict[str, Any]:
    """The sizes of a model, by names such as "text.hidden"; without the tying of its head, which training changes."""
    folder = hub.resolve_model(name, token=environment.hf_token(), weights=False)
    tables = asdict(family_of(folder).sizes_of(folder))
    by_name = {f"{table}.{size}": value for table, sizes in tables.items() for size, value in sizes.items()}
    return {name: value for name, value in by_name.items() if name != "text.tied"}


def resume_target(inputs: Inputs) -> list[Problem]:
    """Check that the checkpoint is complete, with the same order of samples and the weights of the same model, by the
    engine's own rule (`vidqa.planning.resume_compat`)."""
    train_spec = inputs.training
    if train_spec is None or not train_spec.train.resume:
        raise Skip("the spec resumes nothing")
    if train_spec.train.resume is True:
        raise Skip("the launch finds the run that goes on, and refuses where there is none")
    folder = checkpoint_folder(train_spec.train.resume)
    inputs.require_visible(folder)
    try:
        before = read_checkpoint(folder)
        if not all(isinstance(before.get(part), dict) for part in resume_compat.FIXED_PARTS):
            raise ValueError(f"{TRAINER} is not of this engine")
    except ValueError as missing:
        raise RESUME_NO_CHECKPOINT.error(folder, f"no complete checkpoint here: {missing}") from missing
    now = {"weights": _weights(train_spec, inputs), "spec": resume_compat.spec_facts(train_spec)}
    unknown = ""
    try:
        now["order"] = resume_compat.order_facts(train_spec, inputs.usable("train"), inputs.plan.data_fingerprint)
    except ProblemError as missing:
        unknown = missing.problems[0].code
    names = (parameter.name for parameter in inputs.parameters(train_spec))
    refused, _ = resume_compat.compare(folder, before, now, inputs.model_folder, names)
    if unknown and not refused:
        raise Skip(f"the data cannot be compared: {unknown}")
    return [RESUME_MISMATCH.at(folder, change) for change in refused]


def _weights(train_spec: TrainSpec, inputs: Inputs) -> dict[str, Any]:
    """The facts that saved weights must match; without the base model if its weights are not downloaded."""
    try:
        trained = [(parameter.name, parameter.shape) for parameter in inputs.parameters(train_spec) if parameter.trains]
    except ProblemError as unknown:
        raise Skip(f"the model cannot be compared: {unknown.problems[0].code}") from unknown
    folder = inputs.model_folder
    base = resume_compat.weights_hash(folder) if weight_files(folder) else None
    return resume_compat.weights_facts(train_spec, trained, base)
