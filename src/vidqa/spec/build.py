"""From the words of a command line to a resolved spec: which layers there are, and in which order they lie."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from vidqa.core import actions
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.files import read_object, write_text
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec.compat.cosmos import target_table, video_fps_problems
from vidqa.spec.layers import Layer, format_of, parse_set, read_layer
from vidqa.spec.models import TrainSpec
from vidqa.spec.parent_layers import PARENT_LAYER, parent_layer, profile_layer, root_layer, weights_layer
from vidqa.spec.problems import CONFLICT, FILE, NO_RUN, UNWRITABLE
from vidqa.spec.resolve import Resolved, resolve
from vidqa.spec.rules import BARE_ID, unreached_steps
from vidqa.spec.run_lookup import run_folder_of
from vidqa.spec.schedule import effective_batch, total_steps, train_samples


@dataclass(frozen=True)
class Request:
    """What the user asks for, as written. `roots` maps train, val, eval, query to a folder."""

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
    """The spec of a request. Raises ProblemError with the problems of every layer, not only of the first wrong one."""
    layers: list[Layer] = []
    problems: list[Problem] = []
    for make in _makers(request):
        try:
            layers.append(make())
        except ProblemError as wrong:
            problems += wrong.problems
    if problems:
        raise ProblemError(problems)
    used_layers = [layer for layer in layers if layer.table or layer is layers[0]]  # the profile is named in any case
    resolved = resolve(request.action, used_layers, request.target)
    resolved = replace(resolved, warnings=[*resolved.warnings, *_of_steps(request, resolved)])
    return _for_cosmos(resolved) if request.target == "cosmos-rl" else resolved


def _makers(request: Request) -> Iterable[Any]:
    """One function per layer, the lowest layer first."""
    action, declared = request.action, actions.action(request.action)
    yield lambda: profile_layer(action, request.profile)
    yield lambda: _parent(request)
    for part, root in request.roots:
        yield lambda part=part, root=root: _root(action, part, root)
    for path in request.overrides:
        yield lambda path=path: read_layer(path)
    yield lambda: _model_layer(request)
    yield lambda: _option_layer("--results-dir", declared.output_key, _absolute(request.results_dir))
    yield lambda: parse_set(request.sets)


def _option_layer(option: str, key: str, value: str | None) -> Layer:
    return Layer(option, {} if value is None else {key: value})


def _model_layer(request: Request) -> Layer:
    """The model's key; of an adapter that a training begins with, its base model and its keys."""
    name = _model(request.model)
    begun = weights_layer("--model", request.action, name) if name else None
    key = next((model.name for model in actions.action(request.action).models), "model")
    return begun or _option_layer("--model", key, name)


def _absolute(place: str | None) -> str | None:
    """A path of this machine in full, since a job may start in another folder; a remote place as it is."""
    if not place or not place.strip() or "://" in place:
        return place
    return str(Path(os.path.expanduser(place)).absolute())


def _model(name: str | None) -> str | None:
    """A model's folder in full; a name of the hub, also one that lacks hf_model://, as it is."""
    return name if name and BARE_ID.match(name) and not os.path.isdir(name) else _absolute(name)


def _parent(request: Request) -> Layer:
    if request.parent_run is not None:
        return parent_layer(request.action, request.parent_run, request.which)
    if request.which is not None:
        message = f"{request.which} is asked for, and no run is named"
        raise NO_RUN.error("--which", message, "name the run with --parent-run")
    return Layer("no parent run")


def _root(action: str, part: str, root: str) -> Layer:
    roots = {data.root: data for data in actions.action(action).data}
    if part not in roots:
        remedy = f"use {', '.join(f'--{name}-root' for name in roots)}"
        raise FILE.error(f"--{part}-root", f"a spec for {action} has no {part} data", remedy)
    return root_layer(roots[part], root)


def _for_cosmos(resolved: Resolved) -> Resolved:
    spec = resolved.spec
    trained = spec if isinstance(spec, TrainSpec) else None
    problems = [*resolved.warnings, *target_table(spec, train_samples(trained) if trained else None)[1]]
    problems += video_fps_problems(trained) if trained else []
    if any(problem.severity == "error" for problem in problems):
        raise ProblemError(problems)
    return replace(resolved, warnings=problems)


def _of_steps(request: Request, resolved: Resolved) -> list[Problem]:
    """What the records that are here say of the steps: an upper bound that is not reached, and the steps of an earlier
    run whose epochs are taken over."""
    if not actions.action(request.action).trains:
        return []
    spec = cast(TrainSpec, resolved.spec)
    earlier = _earlier_run(request, resolved.origins["train.epoch"])
    if spec.train.max_num_steps is None and earlier is None:
        return []
    samples = train_samples(spec)
    if samples is None:
        return []
    before = _planned(earlier) if earlier else None
    now = total_steps(spec, samples)
    problems = list(unreached_steps(spec, samples))
    if before is not None and before[0] != now:
        message = (
            f"the {spec.train.epoch} epochs of {earlier} are kept: with {samples} samples they are {now} steps of "
            f"{effective_batch(spec)}, there {before[0]} with {before[1]}"
        )
        remedy = "set train.epoch for other steps; for as many passes over the data as there, nothing"
        problems.append(CONFLICT.at("train.epoch", message, remedy, severity="warning"))
    return problems


def _earlier_run(request: Request, origin: str) -> Path | None:
    """The run whose epochs are taken over: that of --parent-run, or of an override file that is a run's own spec."""
    if request.parent_run is not None and origin.startswith(PARENT_LAYER):
        return run_folder_of(request.parent_run)
    return next((path.parent for path in request.overrides if str(path) == origin and path.name == "spec.toml"), None)


def _planned(run: Path) -> tuple[int, int] | None:
    """Steps and samples in a run's plan.json, where it has one."""
    plan = read_object(run / "plan.json")
    steps, samples = plan.get("total_steps"), plan.get("train_samples")
    return (steps, samples) if isinstance(steps, int) and isinstance(samples, int) else None


def output_format(named_format: str | None, out: Path | None) -> str:
    """The format that the name of the file `out` says, else the one asked for, else TOML. Raises SPEC_FILE."""
    if out is None:
        return named_format or "toml"
    named = format_of(out)
    if named_format not in (None, named):
        message = f"the name is that of a {named} file, and --format is {named_format}"
        raise FILE.error(out, message, "leave --format out")
    return named


def write_spec(out: Path, text: str, schema_of: str = "") -> None:
    """Write a spec; with `schema_of` an action, TOML begins with the line by which editors find its schema. Raises
    SPEC_UNWRITABLE."""
    if schema_of and out.suffix == ".toml":
        schema = os.path.relpath(SKILL_ROOT / "schemas" / f"{schema_of}.schema.json", out.absolute().parent)
        text = f"#:schema {schema}\n\n{text}"
    try:
        write_text(out, text)
    except OSError as refused:
        raise UNWRITABLE.error(out, f"it cannot be written: {refused.strerror or refused}") from refused
