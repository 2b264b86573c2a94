"""Spec: all rules, the evaluation that belongs to a training, and the checkpoint to resume from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.core import environment
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.storage import hub
from vidqa.families import family_of
from vidqa.families.weights import weight_files
from vidqa.jobs.job_spec import model_names
from vidqa.jobs.problems import RESUME_NO_CHECKPOINT
from vidqa.planning import resume_compat
from vidqa.preflight.inputs import DataInputs, ModelInputs, RunInputs, Skip
from vidqa.preflight.problems import PAIR_MISMATCH, RESUME_MISMATCH
from vidqa.spec.models import EvaluateSpec, TrainSpec
from vidqa.spec.run_tables import Vision

VISION = tuple(Vision.model_fields)
REMEDIES = {
    "order": "restore what changed, or start a new run from the earlier run's export",
    "weights": "name the base model, the trained parts and the adapters of the earlier run, or start a new run",
}
NO_EVALUATION = "no spec of an evaluation was given (--evaluate-spec)"


def rules(inputs: RunInputs) -> list[Problem]:
    """All errors and warnings. The one about a short model_max_length is settled once tokens are counted."""
    return inputs.resolved.warnings


def evaluation_rules(inputs: RunInputs) -> list[Problem]:
    if inputs.evaluate_spec is None:
        raise Skip(NO_EVALUATION)
    measure = inputs.declared_action.measured_by or inputs.action
    return spec.resolve(measure, [spec.read_layer(inputs.evaluate_spec)]).warnings


def same_model(inputs: RunInputs) -> list[Problem]:
    """The evaluated model is the trained one, an export of it, or an adapter on it."""
    train_spec, eval_spec = _pair(inputs)
    trained = next(iter(model_names(train_spec).values()))
    key, evaluated = list(model_names(eval_spec).items())[-1]  # an adapter's base model comes last
    if trained == evaluated or _folder(trained) == _folder(evaluated):
        return []
    differing = [f"{name} {a} and {b}" for name, a, b in _differences(_sizes(trained), _sizes(evaluated))]
    if not differing:
        inputs.facts["evaluated_model"] = f"{evaluated}, of the same sizes as {trained}"
        return []
    message = f"{evaluated} is not made of {trained}: {', '.join(differing[:4])}"
    return [PAIR_MISMATCH.at(f"{inputs.evaluate_spec} {key}", message)]


def same_frames(inputs: RunInputs) -> list[Problem]:
    """Training and evaluation use the same frames and system prompt."""
    train_spec, eval_spec = _pair(inputs)
    pairs = [
        (f"vision.{name}", getattr(train_spec.custom.vision, name), getattr(eval_spec.vision, name)) for name in VISION
    ]
    pairs.append(("system_prompt", train_spec.custom.system_prompt, eval_spec.dataset.system_prompt))
    differing = [f"{name} is {a!r} in training and {b!r} in evaluation" for name, a, b in pairs if a != b]
    return [PAIR_MISMATCH.at(inputs.evaluate_spec, message, severity="warning") for message in differing]


def _pair(inputs: RunInputs) -> tuple[TrainSpec, EvaluateSpec]:
    if inputs.training is None or inputs.evaluation is None:
        raise Skip(NO_EVALUATION)
    return inputs.training, inputs.evaluation


def _folder(name: str) -> object:
    return Path(os.path.expanduser(name)).resolve() if not hub.is_hub_name(name) else name


def _sizes(name: str) -> dict[str, Any]:
    """The sizes of a model by "text.hidden" and the like; but not whether its head is tied, which training changes."""
    folder = hub.resolve_model(name, token=environment.hf_token(), weights=False)
    tables = asdict(family_of(folder).sizes_of(folder))
    by_name = {f"{table}.{size}": value for table, sizes in tables.items() for size, value in sizes.items()}
    return {name: value for name, value in by_name.items() if name != "text.tied"}


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, one.get(key), other.get(key)) for key in sorted(one | other) if one.get(key) != other.get(key)]


def resume_target(inputs: DataInputs) -> list[Problem]:
    """The checkpoint of the spec is complete, has the same order of samples and the weights of the same model, by the
    engine's own rule (`vidqa.planning.resume_compat`)."""
    train_spec = inputs.training
    if train_spec is None or not train_spec.train.resume:
        raise Skip("the spec resumes nothing")
    if train_spec.train.resume is True:
        raise Skip("the launch finds the run that goes on, and refuses where there is none")
    folder = Path(os.path.expanduser(str(train_spec.train.resume)))
    inputs.require_visible(folder)
    folder = folder.parent if folder.name == "policy" else folder
    before = _trainer(folder)
    weights = _weights(train_spec, inputs)
    if "base_model" in weights:
        before["weights"] = resume_compat.upgraded_facts(before["weights"], inputs.model_folder)
    problems = _changed(folder, "weights", before, weights)
    try:
        order = _order(train_spec, inputs)
    except ProblemError as unknown:
        if problems:
            return problems
        raise Skip(f"the data cannot be compared: {unknown.problems[0].code}") from unknown
    return [*_changed(folder, "order", before, order), *problems]


def _changed(folder: Path, part: str, before: dict[str, Any], now: dict[str, Any]) -> list[Problem]:
    changed = resume_compat.changes(before[part], now)
    message = f"{resume_compat.FACT_NAMES[part]} would change: {', '.join(changed)}"
    return [RESUME_MISMATCH.at(folder, message, REMEDIES[part])] if changed else []


def _trainer(folder: Path) -> dict[str, Any]:
    """A checkpoint's trainer.json with its `order` and `weights` facts."""
    try:
        written = json.loads((folder / "trainer.json").read_text(encoding="utf-8"))
        if not all(isinstance(written[part], dict) for part in resume_compat.FACT_NAMES):
            raise ValueError("trainer.json is not one of this engine")
        if not (folder / "policy" / ".metadata").is_file():
            raise ValueError("policy/.metadata is not there")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as missing:
        raise RESUME_NO_CHECKPOINT.error(folder, f"no complete checkpoint here: {missing}") from missing
    return written


def _weights(train_spec: TrainSpec, inputs: ModelInputs) -> dict[str, Any]:
    """The facts that saved weights must match; without the base model while its weights are not here."""
    try:
        trained = [(parameter.name, parameter.shape) for parameter in inputs.parameters(train_spec) if parameter.trains]
    except ProblemError as unknown:
        raise Skip(f"the model cannot be compared: {unknown.problems[0].code}") from unknown
    folder = inputs.model_folder
    base = resume_compat.weights_hash(folder) if weight_files(folder) else None
    return resume_compat.weights_facts(train_spec, trained, base)


def _order(train_spec: TrainSpec, inputs: DataInputs) -> dict[str, Any]:
    """The facts that decide the order of samples."""
    return resume_compat.order_facts(train_spec, inputs.usable("train"), inputs.plan.data_fingerprint)
