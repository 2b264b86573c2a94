"""The specs of a study's jobs, from the repaired values of a trial.

Values that are proposed key by key can break a rule over several keys, such as a batch that is a multiple of the
micro-batch. If changing proposed values repairs that, the trial trains with the changed ones and records a note.

A study writes specs for a trial up to a rung, its evaluation, a re-run, and the baseline evaluation. With rungs, a
trial trains at a constant rate after a warm-up of fixed length, so that its first steps do not depend on its end; a
schedule that decays towards the end of a rung would differ between rungs and restarts. The re-runs after the search
train to the end with the template's own decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.automl import data_share
from vidqa.automl.decisions import Start, Trial, Values
from vidqa.automl.history import TEMPLATE
from vidqa.automl.problems import RANGE
from vidqa.automl.space import BATCH, EPOCHS, MICRO, Space
from vidqa.automl.study import Study
from vidqa.core import files
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.spec import DataFacts, Layer, Spec, TrainSpec, check, check_with_data
from vidqa.spec.keys import value_at, with_values
from vidqa.spec.layers import brief, read_layer
from vidqa.spec.parent_layers import SAME_IN_BOTH, parent_layer
from vidqa.spec.schedule import train_samples
from vidqa.spec.train_rules import VISION_TARGETS

SPEC = "spec.toml"
GPU_MEMORY = "engine.gpu_memory_gib"
WARMUP_EPOCHS = "train.optm_warmup_epochs"
TARGETS, SAVED = "policy.lora.target_modules", "policy.lora.modules_to_save"
Change = tuple[str, Any, str]  # the key, its new value, the reason


def repaired(space: Space, template: TrainSpec, values: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of a trial, and notes of the changes. Proposed `values` whose condition is not met are dropped,
    missing ones are the template's, and values that break a rule are changed.

    Raises AUTOML_RANGE for a value that the spec refuses, and for a rule that no change repairs.
    """
    complete, notes = _complete(space, template, values)
    for repair in (_repair_batch, _repair_warmup, _repair_targets):
        if change := repair(space, template, complete):
            key, value, why = change
            notes.append(f"{key} = {brief(complete[key])} became {brief(value)}: {why}")
            complete[key] = value
    complete = space.applicable_values(complete)
    broken = _new_errors(space, template, space.trial_spec(template, complete))
    if broken:
        raise ProblemError([RANGE.at(error.where, f"{error.code}: {error.message}", error.remedy) for error in broken])
    return complete, tuple(notes)


def _complete(space: Space, template: TrainSpec, values: Values) -> tuple[dict[str, Any], list[str]]:
    """A value for every applicable parameter, and notes of dropped or added ones."""
    default = space.default(template)
    complete: dict[str, Any] = {}
    notes = []
    for parameter in space.parameters:
        name, condition = parameter.name, parameter.condition
        if not parameter.applies(complete):
            if name in values and condition:
                notes.append(f"{name} was dropped: {condition.parent} is {brief(complete.get(condition.parent))}")
        elif name in values:
            complete[name] = values[name]
        else:
            complete[name] = default.get(name, parameter.middle())
            notes.append(f"{name} was not proposed: {brief(complete[name])}")
    return complete, notes


def _value(key: str, space: Space, template: TrainSpec, values: Values) -> Any:
    """The value of a key in a trial: proposed, fixed by the study, or the template's."""
    return values[key] if key in values else space.fixed.get(key, value_at(template, key))


def _repair_batch(space: Space, template: TrainSpec, values: Values) -> Change | None:
    """Repair the batch per rank: it must be a multiple of the micro-batch, and not exceed the samples of a rank."""
    batch, micro = (_value(key, space, template, values) for key in (BATCH, MICRO))
    limit = batch if space.samples is None else min(batch, space.samples // space.ranks)
    multiple = limit // micro * micro
    if BATCH in values and multiple and multiple != batch:
        return BATCH, multiple, f"a multiple of mini_batch {micro}" if limit == batch else f"a rank has {limit} samples"
    if MICRO in values and limit % micro:
        divisor = max(size for size in range(1, limit + 1) if limit % size == 0 and size <= micro)
        return MICRO, divisor, f"the batch per rank is {limit}"
    return None


def _repair_warmup(space: Space, template: TrainSpec, values: Values) -> Change | None:
    """Repair the warm-up: it must be shorter than the training."""
    warmup, epochs = (_value(key, space, template, values) for key in (WARMUP_EPOCHS, EPOCHS))
    if WARMUP_EPOCHS in values and warmup is not None and warmup >= epochs:
        return WARMUP_EPOCHS, epochs / 2, f"the training has {epochs} epochs"
    return None


def _repair_targets(space: Space, template: TrainSpec, values: Values) -> Change | None:
    """Repair LoRA targets: no module may both have an adapter and train in full."""
    if template.policy.lora is None or not {TARGETS, SAVED} & values.keys():
        return None
    targets, saved = (_value(key, space, template, values) for key in (TARGETS, SAVED))
    if not saved:
        return None
    full = {*saved, *VISION_TARGETS} if any("visual" in name for name in saved) else set(saved)
    clash = full & ({targets} if isinstance(targets, str) else set(targets))
    if not clash:
        return None
    why = f"{', '.join(sorted(clash))} would have adapters and train in full"
    rest = [name for name in targets if name not in clash] if isinstance(targets, list) else []
    if TARGETS in values and rest:
        return TARGETS, rest, why
    return (SAVED, None, why) if SAVED in values else None


def _new_errors(space: Space, template: TrainSpec, trial: TrainSpec) -> list[Problem]:
    """The errors of a trial's spec that the template itself does not have."""

    def errors(spec: TrainSpec) -> list[Problem]:
        problems = check(spec) if space.samples is None else check_with_data(spec, DataFacts(space.samples, 1))
        return [problem for problem in problems if problem.severity == "error"]

    accepted = {(problem.code, problem.where) for problem in errors(template)}
    return [problem for problem in errors(trial) if (problem.code, problem.where) not in accepted]


def preview_trials(study: Study, trials: list[Trial], count: int) -> list[dict[str, Any]]:
    """The next `count` trials that the algorithm would start after `trials`, in order: number, proposer, values,
    repairs. Nothing is started or written. Fewer if the algorithm waits for results."""
    rows: list[dict[str, Any]] = []
    trials = list(trials)
    while len(rows) < count:
        template = Start(study.space.default(study.base), TEMPLATE)
        start = study.algorithm.next(trials) if trials else template
        if not isinstance(start, Start):
            break
        values, repairs = repaired(study.space, study.base, start.values)
        number = len(trials)
        rows.append({"number": number, "proposer": start.proposer, "values": values, "repairs": list(repairs)})
        origin = (start.rung, start.bracket, start.parent, start.extra)
        trials.append(Trial(number, values, start.proposer, "running", (), *origin))
    return rows


# --- specs -----------------------------------------------------------------------------------------------------------


def trial_changes(study: Study, values: Mapping[str, Any], steps: int | None, out: Path) -> dict[str, Any]:
    """Changes of the template for a trial's training, by dotted key; its runs go to `out`. It ends at the optimizer
    step `steps`; with None after the trial's own epochs."""
    changes = _common_changes(study, values, study.data, out)
    if steps is None:
        return changes
    epochs, warmup = _epochs_and_warmup(study, study.trained, values, study.longest)
    changes |= {"train.max_num_steps": steps, "train.epoch": epochs}
    if not study.algorithm.has_rungs:
        return changes
    return {
        **changes,
        "train.optm_decay_type": "none",
        "train.optm_warmup_epochs": None,
        "train.optm_warmup_steps": warmup,
        "train.ckpt.enable_checkpoint": True,
    }


def rerun_changes(study: Study, values: Mapping[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Changes of the template for a re-run of a trial's values, by dotted key: the whole training with all data and
    another seed. Its score is measured on the same records as in the search."""
    data = data_share.data_changes(study.folder, study.base, data_share.ALL)
    changes = _common_changes(study, values, data, folder / "runs")
    if study.by_steps:
        changes["train.epoch"], _ = _epochs_and_warmup(study, study.base, values, study.whole)
        changes["train.max_num_steps"] = study.whole
    return {**changes, "train.seed": seed, "train.train_policy.dataloader_seed": seed}


def _common_changes(study: Study, values: Mapping[str, Any], data: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Values, data, memory limit and output folder, for both search and re-run."""
    changes = {**study.space.fixed, **study.space.applicable_values(values), **data}
    changes |= _memory_limit(study, changes, study.base)
    return {**changes, "train.output_dir": str(out), "train.resume": False}


def _memory_limit(study: Study, changes: Mapping[str, Any], base: Spec) -> dict[str, Any]:
    """The GPU memory limit of a job: its share of a shared GPU, but at most the limit of its own spec."""
    limits = (study.memory_gib, changes.get(GPU_MEMORY, value_at(base, GPU_MEMORY)))
    return {GPU_MEMORY: min((limit for limit in limits if limit is not None), default=None)}


def _epochs_and_warmup(study: Study, base: TrainSpec, values: Mapping[str, Any], steps: int) -> tuple[int, int]:
    """Epochs that suffice for `steps` optimizer steps, and warm-up steps of a training of that length."""
    trial = study.space.trial_spec(base, values)
    samples = train_samples(trial)
    per_epoch = spec.steps_per_epoch(trial, samples) if samples else 0
    epochs = max(trial.train.epoch, -(-steps // per_epoch)) if per_epoch else trial.train.epoch
    whole = with_values(trial, {"train.max_num_steps": steps, "train.epoch": epochs})
    return epochs, spec.warmup_steps(whole, samples or steps * spec.effective_batch(whole))


def write_training(study: Study, changes: Mapping[str, Any], folder: Path) -> Path:
    """Write the template with `changes` as a spec into `folder`; returns its path. Raises the errors of the spec."""
    training = with_values(study.base, changes)
    raise_errors(spec.check(training))
    path = folder / SPEC
    files.write_text(path, spec.dump(training))
    return path


def write_evaluation(study: Study, name: str, run_dir: Path | None, folder: Path) -> Path:
    """Write the study's evaluation spec `name` into `folder`, set to evaluate the best export of the run in `run_dir`,
    or without a run the base model; returns its path. Frames and prompt are those of the training."""
    if run_dir is None:
        model, revision = study.base.policy.model_name_or_path, study.base.policy.model_revision
        table = {evaluate_key: value_at(study.base, train_key) for evaluate_key, train_key in SAME_IN_BOTH.items()}
        table |= {"model.model_name": f"{model}@{revision}" if revision else model, "model.enable_lora": False}
        trained = Layer("baseline", table)
    else:
        trained = parent_layer("evaluate", run_dir, "best")
    results = Layer("study", {"results_dir": str(folder / "runs")})
    evaluation = spec.resolve("evaluate", [read_layer(study.folder / name), trained, results]).spec
    path = folder / "evaluate.toml"
    files.write_text(path, spec.dump(with_values(evaluation, _memory_limit(study, {}, evaluation))))
    return path
