"""From the words of a command line to a resolved spec: which layers there are, and in which order they lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.files import write_text
from vidqa.problem import Problem, ProblemError
from vidqa.spec.cosmos import cosmos_table, read_records, video_fps_problems
from vidqa.spec.layers import Layer, format_of, parse_set, read_layer
from vidqa.spec.models import SPECS, Spec, TrainSpec
from vidqa.spec.problems import ACTION, FILE, NO_RUN, ROOT, UNWRITABLE
from vidqa.spec.resolve import Resolved, resolve
from vidqa.spec.sources import DATA_KEYS, parent_layer, profile_layer, root_layer

MODEL_KEY = {"train": "policy.model_name_or_path", "evaluate": "model.model_name"}
RESULTS_KEY = {"train": "train.output_dir", "evaluate": "results_dir"}


@dataclass(frozen=True)
class Request:
    """What the user asks for, as written. `roots` maps train, val, eval to a folder."""

    action: str
    profile: str = "full"
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
    if request.action not in SPECS:
        raise ACTION.error(request.action, f"{request.action!r} has no spec", f"use {' or '.join(SPECS)}")
    layers: list[Layer] = []
    problems: list[Problem] = []
    for make in _makers(request):
        try:
            layers.append(make())
        except ProblemError as wrong:
            problems += wrong.problems
    if problems:
        raise ProblemError(problems)
    resolved = resolve(request.action, layers, request.target)
    if request.target == "cosmos-rl" and isinstance(resolved.spec, TrainSpec):
        return _for_cosmos(resolved, resolved.spec)
    return resolved


def _makers(request: Request) -> Iterable[Any]:
    """One function per layer, the lowest layer first."""
    action = request.action
    yield lambda: profile_layer(action, request.profile)
    yield lambda: _parent(request)
    for part, root in request.roots:
        yield lambda part=part, root=root: _root(action, part, root)
    for path in request.overrides:
        yield lambda path=path: read_layer(path)
    yield lambda: _given("--model", MODEL_KEY[action], request.model)
    yield lambda: _given("--results-dir", RESULTS_KEY[action], request.results_dir)
    yield lambda: parse_set(request.sets)


def _given(option: str, key: str, value: str | None) -> Layer:
    return Layer(option, {} if value is None else {key: value})


def _parent(request: Request) -> Layer:
    if request.parent_run is None and request.which is None:
        return Layer("no parent run")
    if request.parent_run is None:
        raise NO_RUN.error(
            "--which", f"{request.which} is asked for, and no run is named", "name the run with --parent-run"
        )
    which = request.which or ("best" if request.action == "evaluate" else "latest")
    return parent_layer(request.action, request.parent_run, which)


def _root(action: str, part: str, root: str) -> Layer:
    if (action, part) not in DATA_KEYS:
        known = ", ".join(f"--{name}-root" for of, name in DATA_KEYS if of == action)
        raise ROOT.error(f"--{part}-root", f"a spec for {action} has no {part} data", f"use {known}")
    return root_layer(action, part, root)


def _for_cosmos(resolved: Resolved, spec: TrainSpec) -> Resolved:
    problems = [*resolved.warnings, *cosmos_table(spec, train_samples(spec))[1], *video_fps_problems(spec)]
    if any(problem.severity == "error" for problem in problems):
        raise ProblemError(problems)
    return Resolved(resolved.spec, resolved.origins, problems)


def train_samples(spec: Spec) -> int | None:
    """Records that train, after a split by number or share; None where there are none or they cannot be read here."""
    if not isinstance(spec, TrainSpec):
        return None
    records = read_records(Path(spec.custom.train_dataset.annotation_path))
    if records is None:
        return None
    part = spec.train.train_policy.dataset.test_size
    if part is None or spec.custom.val_dataset.annotation_path:
        return len(records)
    return max(0, len(records) - (part if isinstance(part, int) else round(part * len(records))))


def output_format(asked: str | None, out: Path | None) -> str:
    """The format that the name of the file `out` says, else the one asked for, else TOML. Raises SPEC_FILE."""
    if out is None:
        return asked or "toml"
    named = format_of(out)
    if asked not in (None, named):
        raise FILE.error(out, f"the name is that of a {named} file, and --format is {asked}", "leave --format out")
    return named


def write_spec(out: Path, text: str) -> None:
    """Raises SPEC_UNWRITABLE."""
    try:
        write_text(out, text)
    except OSError as refused:
        raise UNWRITABLE.error(out, f"it cannot be written: {refused.strerror or refused}") from refused
