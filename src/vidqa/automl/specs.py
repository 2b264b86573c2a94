"""From the values of a trial to the specs of its jobs.

Values proposed key by key can break rules over several keys. Where a change of these values alone mends that, the trial
is trained with the changed ones, and its record has the notes.

A study has specs for a trial up to a rung, its evaluation, a re-run, and the model before training. With rungs, a trial
trains at a constant rate after a warm-up of fixed length, so that its first steps are the same wherever it ends; a
schedule that decays towards the end of a rung would differ between rungs and restarts. The re-runs after the search
train to the end with the template's own decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
MEMORY = "engine.gpu_memory_gib"  # of a spec: the limit of its job on each GPU
WARMUP_EPOCHS = "train.optm_warmup_epochs"
TARGETS, SAVED = "policy.lora.target_modules", "policy.lora.modules_to_save"
Change = tuple[str, Any, str]  # the key, its new value, why


def repaired(space: Space, spec: TrainSpec, values: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values that apply and keep the rules, and notes of the changes. A key without a proposal gets the template's
    value.

    Raises AUTOML_RANGE for a value that the spec refuses, and for a rule that stays broken.
    """
    complete, notes = _complete(space, spec, values)
    for rule in RULES:
        if change := rule(space, spec, complete):
            key, value, why = change
            notes.append(f"{key} = {brief(complete[key])} became {brief(value)}: {why}")
            complete[key] = value
    complete = space.applicable_values(complete)
    broken = _broken(space, spec, space.trial_spec(spec, complete))
    if broken:
        problems = [RANGE.at(rule.where, f"{rule.code}: {rule.message}", rule.remedy) for rule in broken]
        raise ProblemError(problems)
    return complete, tuple(notes)


def _complete(space: Space, spec: TrainSpec, values: Values) -> tuple[dict[str, Any], list[str]]:
    default = space.default(spec)
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


def _value(key: str, space: Space, spec: TrainSpec, values: Values) -> Any:
    return values[key] if key in values else space.fixed.get(key, value_at(spec, key))


def _batch(space: Space, spec: TrainSpec, values: Values) -> Change | None:
    """A multiple of the micro-batch, and no more than a rank has samples."""
    batch, micro = (_value(key, space, spec, values) for key in (BATCH, MICRO))
    most = batch if space.samples is None else min(batch, space.samples // space.ranks)
    fitting = most // micro * micro
    if BATCH in values and fitting and fitting != batch:
        return BATCH, fitting, f"a multiple of mini_batch {micro}" if most == batch else f"a rank has {most} samples"
    if MICRO in values and most % micro:
        fitting = max(size for size in range(1, most + 1) if most % size == 0 and size <= micro)
        return MICRO, fitting, f"the batch per rank is {most}"
    return None


def _warmup(space: Space, spec: TrainSpec, values: Values) -> Change | None:
    """Shorter than the training."""
    warmup, epochs = (_value(key, space, spec, values) for key in (WARMUP_EPOCHS, EPOCHS))
    if WARMUP_EPOCHS in values and warmup is not None and warmup >= epochs:
        return WARMUP_EPOCHS, epochs / 2, f"the training has {epochs} epochs"
    return None


def _targets(space: Space, spec: TrainSpec, values: Values) -> Change | None:
    """No module both has an adapter and trains in full."""
    if spec.policy.lora is None or not {TARGETS, SAVED} & values.keys():
        return None
    targets, saved = (_value(key, space, spec, values) for key in (TARGETS, SAVED))
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


RULES: tuple[Callable[[Space, TrainSpec, Values], Change | None], ...] = (_batch, _warmup, _targets)


def _broken(space: Space, template: TrainSpec, trial: TrainSpec) -> list[Problem]:
    """The errors of a trial's spec that the template itself does not have."""

    def errors(spec: TrainSpec) -> list[Problem]:
        problems = check(spec) if space.samples is None else check_with_data(spec, DataFacts(space.samples, 1))
        return [problem for problem in problems if problem.severity == "error"]

    accepted = {(problem.code, problem.where) for problem in errors(template)}
    return [problem for problem in errors(trial) if (problem.code, problem.where) not in accepted]


def suggested(study: Study, trials: list[Trial], count: int) -> list[dict[str, Any]]:
    """The next trials, as if each had begun: number, proposer, values, repairs. Nothing is started or written."""
    rows: list[dict[str, Any]] = []
    trials = list(trials)
    while len(rows) < count:
        template = Start(study.space.default(study.base), TEMPLATE)
        start = study.algorithm.next(trials) if trials else template
        if not isinstance(start, Start):
            break
        values, repairs = repaired(study.space, study.base, start.values)
        number, place = len(trials), (start.rung, start.bracket, start.parent, start.extra)
        rows.append({"number": number, "proposer": start.proposer, "values": values, "repairs": list(repairs)})
        trials.append(Trial(number, values, start.proposer, "running", (), *place))
    return rows


# --- specs -----------------------------------------------------------------------------------------------------------


def trial_changes(study: Study, values: Mapping[str, Any], steps: int | None, out: Path) -> dict[str, Any]:
    """Changes of the template for a trial's training; `steps` are all its steps at the end, None where its own values
    decide."""
    changes = _common_changes(study, values, study.data, out)
    if steps is None:
        return changes
    epochs, warmup = _to_the_last_rung(study, study.trained, values, study.longest)
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
    """Changes of the template for a re-run of a trial's values: to the end, with another seed, measured on the same
    records as the search."""
    data = data_share.data_changes(study.folder, study.base, data_share.ALL)
    changes = _common_changes(study, values, data, folder / "runs")
    if study.by_steps:
        changes["train.epoch"], _ = _to_the_last_rung(study, study.base, values, study.whole)
        changes["train.max_num_steps"] = study.whole
    return {**changes, "train.seed": seed, "train.train_policy.dataloader_seed": seed}


def _common_changes(study: Study, values: Mapping[str, Any], data: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """A trial's values, its data and its memory limit; its runs lie in `out`."""
    changes = {**study.space.fixed, **study.space.applicable_values(values), **data}
    changes |= _memory(study, changes, study.base)
    return {**changes, "train.output_dir": str(out), "train.resume": False}


def _memory(study: Study, changes: Mapping[str, Any], base: Spec) -> dict[str, Any]:
    """The memory limit of a job: its share of a GPU, and no more than its spec allows."""
    limits = (study.memory_gib, changes.get(MEMORY, value_at(base, MEMORY)))
    return {MEMORY: min((limit for limit in limits if limit is not None), default=None)}


def _to_the_last_rung(study: Study, base: TrainSpec, values: Mapping[str, Any], most: int) -> tuple[int, int]:
    """Epochs that suffice for `most` steps, and the warm-up steps of a training to its end."""
    trial = study.space.trial_spec(base, values)
    samples = train_samples(trial)
    per_epoch = spec.steps_per_epoch(trial, samples) if samples else 0
    epochs = max(trial.train.epoch, -(-most // per_epoch)) if per_epoch else trial.train.epoch
    whole = with_values(trial, {"train.max_num_steps": most, "train.epoch": epochs})
    return epochs, spec.warmup_steps(whole, samples or most * spec.effective_batch(whole))


def write_training(study: Study, changes: Mapping[str, Any], folder: Path) -> Path:
    """Write the spec of a training that starts from the model. Raises ProblemError where it breaks a rule."""
    training = with_values(study.base, changes)
    raise_errors(spec.check(training))
    path = folder / SPEC
    files.write_text(path, spec.dump(training))
    return path


def write_evaluation(study: Study, name: str, run_dir: Path | None, folder: Path) -> Path:
    """Write the spec `name` as one that evaluates the best export of a run, or the model before training where there is
    no run; with the view of a video that the training had."""
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
    files.write_text(path, spec.dump(with_values(evaluation, _memory(study, {}, evaluation))))
    return path
