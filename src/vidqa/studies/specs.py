"""The specs of a study's jobs: of a trial up to a rung, of its evaluation, of a re-run, of the model before training.

Where a study has rungs, a trial trains with a constant rate after a warm-up of fixed length, so that its first steps
are the same wherever it ends: a schedule that falls towards the end of a rung would make rungs and restarts differ. The
template's own decay comes back in the re-runs after the search, which train to the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.contract import files
from vidqa.contract.problem import raise_errors
from vidqa.spec import Layer, Spec, TrainSpec
from vidqa.spec.keys import value_at, with_values
from vidqa.spec.layers import read_layer
from vidqa.spec.parent_layers import SAME_IN_BOTH, parent_layer
from vidqa.spec.schedule import train_samples
from vidqa.studies import subset
from vidqa.studies.history import Entry
from vidqa.studies.places import MEMORY, within
from vidqa.studies.study import Study

SPEC = "spec.toml"


def trial_changes(study: Study, values: Mapping[str, Any], steps: int | None, out: Path) -> dict[str, Any]:
    """What a trial's training has otherwise than the template; `steps` are all that it has taken in the end, None
    where it trains as long as its own values say."""
    changes = {**study.space.fixed, **study.space.within(values), "train.output_dir": str(out), "train.resume": False}
    changes |= study.data
    changes |= _memory(study, changes, study.base)
    if steps is None:
        return changes
    epochs, warmup = _to_the_last_rung(study, study.trained, values, study.longest)
    changes |= {"train.max_num_steps": steps, "train.epoch": epochs}
    if not study.has_rungs:
        return changes
    return {
        **changes,
        "train.optm_decay_type": "none",
        "train.optm_warmup_epochs": None,
        "train.optm_warmup_steps": warmup,
        "train.ckpt.enable_checkpoint": True,
    }


def rerun(study: Study, entry: Entry, seed: int, folder: Path) -> dict[str, Any]:
    """What a re-run of a trial's values has otherwise than the template: it trains to the end, with another seed, and
    is measured on the records that the search was measured on."""
    changes = {**study.space.fixed, **study.space.within(entry.values), **subset.of_reruns(study.folder, study.base)}
    if study.by_steps:
        changes["train.epoch"], _ = _to_the_last_rung(study, study.base, entry.values, study.whole)
        changes["train.max_num_steps"] = study.whole
    changes |= _memory(study, changes, study.base)
    seeds = {"train.seed": seed, "train.train_policy.dataloader_seed": seed}
    return {**changes, **seeds, "train.output_dir": str(folder / "runs"), "train.resume": False}


def _memory(study: Study, changes: Mapping[str, Any], asked: Spec) -> dict[str, Any]:
    """What a job may take of a GPU: its share where several use one, and no more than its spec says."""
    return {MEMORY: within(study.memory_gib, changes.get(MEMORY, value_at(asked, MEMORY)))}


def _to_the_last_rung(study: Study, base: TrainSpec, values: Mapping[str, Any], most: int) -> tuple[int, int]:
    """Epochs of its data that are enough for `most` steps, and the steps of warm-up of a training to its end."""
    asked = study.space.applied(base, values)
    samples = train_samples(asked)
    per_epoch = spec.steps_per_epoch(asked, samples) if samples else 0
    epochs = max(asked.train.epoch, -(-most // per_epoch)) if per_epoch else asked.train.epoch
    whole = with_values(asked, {"train.max_num_steps": most, "train.epoch": epochs})
    return epochs, spec.warmup_steps(whole, samples or most * spec.effective_batch(whole))


def write_training(study: Study, changes: Mapping[str, Any], folder: Path) -> Path:
    """Write the spec of a training that starts from the model. Raises ProblemError where it breaks a rule."""
    made = with_values(study.base, changes)
    raise_errors(spec.check(made))
    path = folder / SPEC
    files.write_text(path, spec.dump(made))
    return path


def write_evaluation(study: Study, name: str, run_dir: Path, folder: Path) -> Path:
    """Write the spec `name` as one that evaluates the best export of a run, with the run's view of a video."""
    layers = [
        read_layer(study.folder / name),
        parent_layer("evaluate", run_dir, "best"),
        Layer("study", {"results_dir": str(folder / "runs")}),
    ]
    return _write_evaluation(study, layers, folder)


def write_baseline(study: Study, name: str, folder: Path) -> Path:
    """Write the spec `name` as one of the model before training, with the template's view of a video."""
    model, revision = study.base.policy.model_name_or_path, study.base.policy.model_revision
    table = {mine: value_at(study.base, theirs) for mine, theirs in SAME_IN_BOTH.items()}
    table |= {"model.model_name": f"{model}@{revision}" if revision else model, "model.enable_lora": False}
    table |= {"results_dir": str(folder / "runs")}
    return _write_evaluation(study, [read_layer(study.folder / name), Layer("baseline", table)], folder)


def _write_evaluation(study: Study, layers: list[Layer], folder: Path) -> Path:
    path = folder / "evaluate.toml"
    made = spec.resolve("evaluate", layers).spec
    files.write_text(path, spec.dump(with_values(made, _memory(study, {}, made))))
    return path
