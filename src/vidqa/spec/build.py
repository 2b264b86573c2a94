"""Build a resolved spec from the options of a command line: the layers and their order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from vidqa.core import actions
from vidqa.core.files import absolute, annotations_in_folder, read_object, value_in
from vidqa.core.problem import Problem, ProblemError, raise_errors
from vidqa.data.archive import archives_in
from vidqa.spec.adapter_keys import is_adapter
from vidqa.spec.cosmos import target_table, video_fps_problems
from vidqa.spec.layers import Layer, parse_set, read_layer
from vidqa.spec.models import TrainSpec
from vidqa.spec.parent_layers import PARENT_LAYER, from_adapter, model_keys, parent_layer, view_layer
from vidqa.spec.problems import CONFLICT, FILE, NO_RUN, VALUE
from vidqa.spec.resolve import Resolved, resolve
from vidqa.spec.rules import BARE_ID, unreached_steps
from vidqa.spec.run_lookup import run_folder_of
from vidqa.spec.schedule import effective_batch, total_steps, train_samples

ROOT_REMEDY = (
    "put annotations.json there; a file, a captions folder, shards, a data set of the hub, or a split of one, such as "
    "DATA#train[:100], needs --set '{annotations}={root}' (and --set {media}=FOLDER if media are elsewhere)"
)


@dataclass(frozen=True)
class Request:
    """The user's options, as written. `roots` maps train, val, eval, query to a folder."""

    action: str
    profile: str | None = None
    parent_run: Path | None = None
    which: str | None = None
    roots: tuple[tuple[str, str], ...] = ()
    overrides: tuple[Path, ...] = ()
    model: str | None = None
    results_dir: str | None = None
    sets: tuple[str, ...] = ()
    target: str = "native"


def build(request: Request) -> Resolved:
    """Build the spec of a request. Raises ProblemError with the problems of all layers, not only of the first."""
    layers: list[Layer] = []
    problems: list[Problem] = []
    for make in _makers(request):
        try:
            layers.append(make())
        except ProblemError as wrong:
            problems += wrong.problems
    if problems:
        raise ProblemError(problems)
    used_layers = [layer for layer in layers if layer.table or layer is layers[0]]  # the profile is always listed
    resolved = resolve(request.action, used_layers, request.target)
    if parent := next((layer for layer in layers if layer.name.startswith(PARENT_LAYER)), None):
        _require_weights_of(parent, resolved)
    resolved = replace(resolved, warnings=[*resolved.warnings, *_step_problems(request, resolved)])
    return _for_cosmos(resolved) if request.target == "cosmos-rl" else resolved


def _makers(request: Request) -> Iterator[Callable[[], Layer]]:
    """One function per layer, the lowest layer first."""
    action = request.action
    yield partial(profile_layer, action, request.profile)
    if request.parent_run is not None:
        yield partial(parent_layer, action, request.parent_run, request.which)
    elif request.which is not None:
        yield partial(_no_run, request.which)
    model = None if request.model is None else _model_name(request.model)
    if model is not None and (view := view_layer(action, model)):
        yield lambda: view
    for part, root in request.roots:
        yield partial(_root_layer, request, part, root)
    for path in request.overrides:
        yield partial(read_layer, path)
    if model is not None:
        yield partial(_model_layer, action, model)
    if request.results_dir is not None:
        output = {actions.action(action).output_key: _absolute(request.results_dir)}
        yield partial(Layer, "--results-dir", output)
    yield partial(parse_set, request.sets)


def _model_layer(action: str, name: str) -> Layer:
    """The model key. For an adapter that is trained further or evaluated: also its base model and its keys."""
    models = actions.action(action).models
    if action == "train" and is_adapter(Path(name)):
        return Layer(f"--model {name}", from_adapter(Path(name)))
    if len(models) > 1 and is_adapter(Path(name)):
        return Layer("--model", model_keys(action, Path(name)))
    return Layer("--model", {next((model.name for model in models), "model"): name})


def _model_name(name: str) -> str:
    """The absolute path of a folder. A name of the hub, with or without hf_model://, is unchanged."""
    return name if BARE_ID.match(name) and not os.path.isdir(name) else _absolute(name)


def _absolute(place: str) -> str:
    """A local path made absolute, since a job may start in another folder; a remote path unchanged."""
    return place if not place.strip() or "://" in place else str(absolute(place))


def _no_run(which: str) -> Layer:
    raise NO_RUN.error("--which", f"{which} is requested without a run", "give the run with --parent-run")


def profile_layer(action: str, name: str | None) -> Layer:
    """A named set of defaults, such as full, frozen-vision or lora for training; without a name the first one.
    Raises SPEC_VALUE."""
    profiles = actions.action(action).profiles
    name = next(iter(profiles)) if name is None else name
    if name not in profiles:
        raise VALUE.error("--profile", f"{name!r} is not a profile for {action}", f"use one of: {', '.join(profiles)}")
    return Layer(f"profile {name}", dict(profiles[name]))


def _root_layer(request: Request, part: str, root: str) -> Layer:
    """A set of records in one folder: annotations.json, and media below it or in archives; cosmos-rl reads one archive.

    A remote root (with ://) is not checked. Raises SPEC_FILE if a local one has no annotations, or the action has no
    such set.
    """
    roots = {data.root: data for data in actions.action(request.action).data}
    if part not in roots:
        remedy = f"use {', '.join(f'--{name}-root' for name in roots)}"
        raise FILE.error(f"--{part}-root", f"a spec for {request.action} has no {part} data", remedy)
    if not root.strip():
        raise FILE.error(f"--{part}-root", "the name is empty", "name a folder, or leave the option out")
    data = roots[part]
    annotations, media = data.annotations, data.media
    if "://" in root:
        table: dict[str, Any] = {annotations: f"{root.rstrip('/')}/annotations.json", media: root}
    else:
        folder = absolute(root)
        if (file := annotations_in_folder(folder)) is None:
            what = "there is no annotations.json in it" if os.path.isdir(folder) else "it is not a folder"
            raise FILE.error(folder, what, ROOT_REMEDY.format(annotations=annotations, root=root, media=media))
        archives = archives_in(folder) if request.target == "cosmos-rl" else []
        table = {annotations: str(file), media: str(next(iter(archives), folder))}
    return Layer(f"data root {root}", {**table, **data.root_sets})


def _require_weights_of(parent: Layer, resolved: Resolved) -> None:
    """Raise SPEC_CONFLICT if a later layer turns off the checkpoint of the `parent`, and nothing else of it is trained
    further: training would start from the base model of that run."""
    checkpoint, spec = value_in(parent.table, "train.resume"), resolved.spec
    if not checkpoint or not isinstance(spec, TrainSpec) or spec.train.resume:
        return
    continues_adapter = spec.policy.lora is not None and spec.policy.lora.lora_path
    if not continues_adapter and resolved.origins["policy.model_name_or_path"] == parent.name:
        base, run = spec.policy.model_name_or_path, Path(checkpoint).parent.parent
        message = f"it is false: training would start from the base model {base}, not from the weights of {run}"
        remedy = f"for these weights with a new optimizer add --model {run / 'best'}; to continue the run leave it out"
        raise CONFLICT.error("train.resume", message, remedy)


def _for_cosmos(resolved: Resolved) -> Resolved:
    spec = resolved.spec
    problems = [*resolved.warnings, *target_table(spec, train_samples(spec))[1]]
    problems += video_fps_problems(spec) if isinstance(spec, TrainSpec) else []
    raise_errors(problems)
    return replace(resolved, warnings=problems)


def _step_problems(request: Request, resolved: Resolved) -> list[Problem]:
    """Warnings about the steps, if the records are available: a step limit above the epochs' steps, and a different
    number of steps from an earlier run whose epochs are inherited."""
    if not actions.action(request.action).trains:
        return []
    spec = cast(TrainSpec, resolved.spec)
    earlier = _earlier_run(request, resolved.origins["train.epoch"])
    samples = None if spec.train.max_num_steps is None and earlier is None else train_samples(spec)
    if samples is None:
        return []
    problems = list(unreached_steps(spec, samples))
    plan = read_object(earlier / "plan.json") if earlier else {}
    before, now = plan.get("total_steps"), total_steps(spec, samples)
    if isinstance(before, int) and before != now:
        message = (
            f"train.epoch is {spec.train.epoch} as in {earlier}: with {samples} samples this is {now} steps of "
            f"{effective_batch(spec)}; there it was {before} with {plan.get('train_samples')}"
        )
        remedy = "set train.epoch for another number of steps; the number of passes over the data is the same"
        problems.append(CONFLICT.at("train.epoch", message, remedy, severity="warning"))
    return problems


def _earlier_run(request: Request, origin: str) -> Path | None:
    """The run whose epochs are inherited: that of --parent-run, or of an override file that is a run's own spec."""
    if request.parent_run is not None and origin.startswith(PARENT_LAYER):
        return run_folder_of(request.parent_run)
    return next((path.parent for path in request.overrides if str(path) == origin and path.name == "spec.toml"), None)
