"""Layers from a model: from a run that is continued, evaluated or trained further, an export, an adapter."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from vidqa.core import actions
from vidqa.core.actions.train import held_out
from vidqa.core.cli import command
from vidqa.core.files import absolute, read_object
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import EXPORT, RunFolder
from vidqa.spec.adapter_keys import PRECISION, adapter_keys, base_of, is_adapter, read_config
from vidqa.spec.keys import flat
from vidqa.spec.layers import Layer, read_layer, training_type
from vidqa.spec.models import QuantizeSpec, Spec, TrainSpec
from vidqa.spec.problems import MODEL, NO_RUN
from vidqa.spec.resolve import load, load_training
from vidqa.spec.run_lookup import ADAPTER, EXPORTS, find_checkpoint, find_export, run_folder_of
from vidqa.spec.run_tables import Vision

PARENT_LAYER = "parent run"
# Keys that an evaluation inherits from the run that trained its model, so that a video gives the same frames.
SAME_IN_BOTH = {
    **{f"vision.{name}": f"custom.vision.{name}" for name in Vision.model_fields},
    "dataset.system_prompt": "custom.system_prompt",
}
# The keys of a training that determine the model's input for a record.
VIEW_KEYS = (*SAME_IN_BOTH.values(), "policy.model_max_length", "custom.train_dataset.response_mode")


def parent_layer(action: str, run: Path, which: str | None) -> Layer:
    """The keys that a spec inherits from a run, for its save `which` or the default save of the action.

    Raises SPEC_PARENT_RUN.
    """
    parent = actions.action(action).parent
    if parent is None:
        raise NO_RUN.error("--parent-run", f"a spec for {action} reads nothing from a run", "leave --parent-run out")
    if action == "train" and is_adapter(run):
        if which is not None:
            raise NO_RUN.error("--which", f"{which} is requested, but {run} is an adapter, not a run", "leave it out")
        return Layer(f"{PARENT_LAYER} {run}", from_adapter(run))
    which = parent.save if which is None else which
    home = run_folder_of(run)
    learns = issubclass(actions.action(action).spec_model, TrainSpec | QuantizeSpec)
    if learns and isinstance(parent_spec := _parent_spec(home), QuantizeSpec):
        source, message = Path(parent_spec.model.model_path), "it is a quantization; this needs unquantized weights"
        folder = f"--parent-run {source.parent.parent}" if source.parent.name == EXPORTS else f"--model {source}"
        raise NO_RUN.error(home, message, f"name the model that it quantized: {folder}")
    state = RunFolder(home).read_status().get("state", "COMPLETE")
    save = which if state == "COMPLETE" else f"{which} of a run that is {state}"
    return Layer(f"{PARENT_LAYER} {home} ({save})", actions.resolve(parent.keys)(run, home, which))


def model_layer(action: str, name: str, which: str | None = None) -> Layer:
    """The keys for the model `name`: a run (its best export, or `which`), an export in it, another folder of weights or
    of an adapter, or a name of the hub. A run adds its sampling settings and its system prompt.

    Raises SPEC_PARENT_RUN.
    """
    place = absolute(name)
    if "://" in name:
        return Layer(f"model {name}", {"model.model_name": name})
    if not any(os.path.isfile(place / file) for file in ("config.json", ADAPTER)):
        return parent_layer(action, place, which)
    if which is not None:
        raise NO_RUN.error("--which", f"{which} is requested, but {place} is a model, not a run", "leave it out")
    return Layer(f"model {name}", _evaluation_keys(trained_view(place)) | model_keys(action, place))


def model_keys(action: str, folder: Path) -> dict[str, Any]:
    """The model keys of an evaluation, inference, embedding or quantization, for a folder of weights or an adapter."""
    model, base = actions.action(action).models
    keys: dict[str, Any] = {model.name: str(folder.absolute())}
    if (folder / ADAPTER).is_file():
        keys |= {base.only_with: True, base.name: _base_model(folder)}
    return keys


def evaluated_model(name: str, which: str | None = None) -> dict[str, Any]:
    """The keys of `model_layer` about the model alone, for the specs of an evaluation and an embedding."""
    keys = {"model.enable_lora": False, **model_layer("evaluate", name, which).table}
    return {key: value for key, value in keys.items() if key.startswith("model.")}


def view_layer(action: str, name: str) -> Layer | None:
    """The sampling settings and the system prompt with which the model folder `name` was trained; None if unknown."""
    if "://" in name or actions.action(action).parent is None:
        return None
    view = trained_view(Path(name))
    trains = issubclass(actions.action(action).spec_model, TrainSpec)
    return Layer(f"the training of {name}", view if trains else _evaluation_keys(view)) if view else None


def trained_view(folder: Path) -> dict[str, Any]:
    """The values of VIEW_KEYS with which a model folder or an adapter was trained: those recorded in its export.json;
    if any are missing, those of the run that exported it; empty without both."""
    recorded = read_object(folder / EXPORT).get("spec")
    view = {key: recorded[key] for key in VIEW_KEYS if key in recorded} if isinstance(recorded, dict) else {}
    parent = _spec_of_export(folder) if len(view) < len(VIEW_KEYS) else None
    return view_of(parent) if parent else view


def _base_model(adapter: Path) -> str:
    """The base model of an adapter, by its name in the training's spec if that is known."""
    parent = _spec_of_export(adapter)
    return parent.policy.model_name_or_path if isinstance(parent, TrainSpec) else base_of(adapter)


def _spec_of_export(folder: Path) -> Spec | None:
    """The spec of the run that exported a model folder; None for other folders."""
    both = (folder, folder.resolve()) if os.path.isdir(folder) else ()
    places = (place for place in both if place.parent.name == EXPORTS)
    return next((spec for place in places if (spec := _parent_spec(place.parent.parent))), None)


def view_of(spec: Spec) -> dict[str, Any]:
    """The values of VIEW_KEYS in a TrainSpec, or in a QuantizeSpec under its own names."""
    values = flat(spec)
    if isinstance(spec, QuantizeSpec):
        return {theirs: values[mine] for mine, theirs in SAME_IN_BOTH.items()}
    return {key: values[key] for key in VIEW_KEYS}


def _evaluation_keys(view: dict[str, Any]) -> dict[str, Any]:
    """Convert view keys of a training to those of an evaluation."""
    return {mine: view[theirs] for mine, theirs in SAME_IN_BOTH.items() if theirs in view}


def continued(run: Path, home: Path, which: str) -> dict[str, Any]:
    """The keys of a continued training: the run's spec, and its checkpoint to resume. With LoRA also its adapter, from
    which training starts with a new optimizer if there is no checkpoint, or with train.resume = false."""
    table = (layer := read_layer(_spec_file(home))).table
    if not isinstance(table.get("train", {}), dict):
        raise NO_RUN.error(home / "spec.toml", "train is a value; it must be a table")
    if training_type(layer) == "grpo":
        remedy = f"to start from its weights: --model {home / 'best'}"
        raise NO_RUN.error(home, "it is a run of reinforcement learning, which train does not continue", remedy)
    adapter = None
    with suppress(ProblemError):  # a run may have checkpoints alone
        export = find_export(home, which)
        adapter = export if is_adapter(export) else None
    try:
        resume: Any = str(find_checkpoint(run, which).absolute())
    except ProblemError:
        if adapter is None:
            raise
        resume = False
    train = {key: value for key, value in table.get("train", {}).items() if key != "output_dir"}
    values = {**table, "train": {**train, "resume": resume}}
    policy = table.get("policy")
    if adapter is not None and isinstance(policy, dict) and isinstance(lora := policy.get("lora"), dict):
        values["policy"] = {**policy, "lora": {**lora, "lora_path": str(adapter.absolute())}}
    return values


def from_adapter(adapter: Path) -> dict[str, Any]:
    """The keys of a training that starts with `adapter`: base model and adapter, and the sampling settings and prompt
    of the run that trained it, if it is a run of this program."""
    values = trained_view(adapter) | {f"policy.lora.{key}": value for key, value in adapter_keys(adapter).items()}
    values["policy.lora.lora_path"] = str(adapter.absolute())
    if base := _base_model(adapter):
        values["policy.model_name_or_path"] = base
    if precision := read_config(adapter).get(PRECISION):
        values["policy.quantization"] = precision
    return values


def refined(run: Path, home: Path, which: str) -> dict[str, Any]:
    """The keys that reinforcement learning inherits from a training: its export as the initial model, its sampling
    settings and prompt. Raises SPEC_MODEL for an adapter, whose base model would become the reference."""
    export = find_export(run, which)
    if (export / ADAPTER).is_file():
        remedy = f"merge it first: {command('export', home, '--merge', '--out', 'FOLDER')}, then --model FOLDER"
        raise MODEL.error(export, "the run trained an adapter", remedy)
    return trained_view(export) | {"policy.model_name_or_path": str(export.absolute())}


def quantized(run: Path, home: Path, which: str) -> dict[str, Any]:
    """The keys that a quantization inherits from a training: its export, view of a video, and training records."""
    values = {key.replace("model_name", "model_path"): value for key, value in exported(run, home, which).items()}
    if isinstance(parent := _parent_spec(home), TrainSpec):
        trained = parent.custom.train_dataset
        values["dataset.annotation_path"], values["dataset.media_dir"] = trained.annotation_path, trained.media_path
        values["dataset.response_mode"] = trained.response_mode
        values["engine.on_bad_sample"] = parent.engine.on_bad_sample
        if validation := held_out(parent):
            values["dataset.test_size"], values["dataset.split_seed"] = validation
    return values


def exported(run: Path, home: Path, which: str) -> dict[str, Any]:
    """The keys that an evaluation inherits from a training or a quantization: its export, and its view of a video."""
    export = find_export(run, which)
    return _evaluation_keys(trained_view(export)) | model_keys("evaluate", export)


def _spec_file(home: Path) -> Path:
    if (file := home / "spec.toml").is_file():
        return file
    if (config := home / "config.toml").is_file():
        message = "it is a run of cosmos-rl, whose checkpoints this engine does not read"
        remedy = f"start from its weights with a new optimizer: --override {config} --model {home}/safetensors/NAME"
        raise NO_RUN.error(home, message, remedy)
    raise NO_RUN.error(home, "the run has no spec.toml to continue from", "use --override with the spec it ran with")


def _parent_spec(home: Path) -> Spec | None:
    """The parent's own spec; None for a run of another program, whose spec is unknown."""
    if not (home / "run.json").is_file() or not (home / "spec.toml").is_file():
        return None
    if read_object(home / "run.json").get("action") == "quantize":
        return load(home / "spec.toml", "quantize")
    return load_training(home / "spec.toml")
