"""The specs of a study's jobs: of a trial up to a rung, of its evaluation, of a re-run, of the model before training.

With rungs, a trial trains at a constant rate after a warm-up of fixed length, so that its first steps are the same
wherever it ends; a schedule that decays towards the end of a rung would differ between rungs and restarts. The re-runs
after the search train to the end with the template's own decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.automl import data_share
from vidqa.automl.study import Study
from vidqa.core import files
from vidqa.core.problem import raise_errors
from vidqa.spec import Layer, Spec, TrainSpec
from vidqa.spec.keys import value_at, with_values
from vidqa.spec.layers import read_layer
from vidqa.spec.parent_layers import SAME_IN_BOTH, parent_layer
from vidqa.spec.schedule import train_samples

SPEC = "spec.toml"
MEMORY = "engine.gpu_memory_gib"  # of a spec: the limit of its job on each GPU


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
    changes = {**study.space.fixed, **study.space.within(values), **data}
    changes |= _memory(study, changes, study.base)
    return {**changes, "train.output_dir": str(out), "train.resume": False}


def _memory(study: Study, changes: Mapping[str, Any], base: Spec) -> dict[str, Any]:
    """The memory limit of a job: its share of a GPU, and no more than its spec allows."""
    limits = (study.memory_gib, changes.get(MEMORY, value_at(base, MEMORY)))
    return {MEMORY: min((limit for limit in limits if limit is not None), default=None)}


def _to_the_last_rung(study: Study, base: TrainSpec, values: Mapping[str, Any], most: int) -> tuple[int, int]:
    """Epochs that suffice for `most` steps, and the warm-up steps of a training to its end."""
    trial = study.space.applied(base, values)
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
