"""Merge layers into one validated spec that records the origin of each value."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from pydantic import ValidationError

from vidqa.core import actions
from vidqa.core.actions import ACTION
from vidqa.core.environment import redacted
from vidqa.core.files import value_in
from vidqa.core.problem import Problem, ProblemError, bounded, control_characters, raise_errors
from vidqa.spec._field import Table
from vidqa.spec.adapter_keys import adapter_keys, is_adapter
from vidqa.spec.keys import expected, flat, leaves, table_at, table_of
from vidqa.spec.layers import DEEPEST, Layer, brief, entries, place, read_layer, require_action, texts, training_type
from vidqa.spec.models import EvaluateSpec, Spec, TrainSpec
from vidqa.spec.problems import CONFLICT, FILE, SECRET, UNKNOWN_KEY, VALUE
from vidqa.spec.rules import check

TEMPLATE = "template"
PROMPTS = ("system_prompt", "prompt")  # last names of the keys whose text may have several lines
OPTIONAL_TABLE = "policy.lora"  # its presence alone changes the run
ADAPTER_FOLDER = "policy.lora.lora_path"
TRAIN_SET, VALIDATION_SET = "custom.train_dataset.annotation_path", "custom.val_dataset.annotation_path"
LOADER = "custom.loader"
NAMED = "train.train_policy.dataset"  # cosmos-rl's table with the name of a data set
HELD_OUT = "train.train_policy.dataset.test_size"
KINDS = (
    "use the action train for supervised fine-tuning, the action grpo for reinforcement learning (AutoML searches no "
    'values for it), or set train.train_policy.type to "sft" or "grpo"'
)
# cosmos-rl allows a list of these, one for each part of a model; a list of equal values is that value.
PER_PART = ("train.optm_name", "train.optm_lr", "train.optm_impl")


@dataclass(frozen=True)
class Resolved:
    """A valid spec, the layer of each of its keys by dotted path, warnings, and the layers in order."""

    spec: Spec
    origins: dict[str, str]
    warnings: list[Problem]
    layers: tuple[str, ...] = ()


@overload
def load(path: Path | str, action: Literal["train"]) -> TrainSpec: ...


@overload
def load(path: Path | str, action: Literal["evaluate"]) -> EvaluateSpec: ...


@overload
def load(path: Path | str, action: str) -> Spec: ...


def load(path: Path | str, action: str) -> Spec:
    """Load the spec in a TOML, YAML or JSON file, over the template. Raises as `resolve_file`."""
    return resolve_file(path, action).spec


def resolve_file(path: Path | str, action: str, target: str = "native") -> Resolved:
    """Resolve one file, as `resolve` does. Raises SPEC_ACTION for a spec of another action, else every problem."""
    layer = read_layer(path)
    require_action(layer, Path(path), action)
    return resolve(action, [layer], target)


def load_training(path: Path | str) -> TrainSpec:
    """Load the spec of a training run, supervised or by reinforcement, as its file says. Raises as `load`."""
    layer = read_layer(path)
    spec = resolve("grpo" if training_type(layer) == "grpo" else "train", [layer]).spec
    assert isinstance(spec, TrainSpec)
    return spec


def resolve(action: str, layers: Iterable[Layer], target: str = "native") -> Resolved:
    """Merge `layers` over the template, later ones overriding. Raises ProblemError with all problems."""
    model = actions.action(action).spec_model
    merger = _LayerMerger(action)
    for layer in layers:
        merger.add(layer)
    merger.settle()
    try:
        spec = model.model_validate(merger.values)
    except ValidationError as invalid:
        wrong = list(dict.fromkeys(_path(model, error["loc"]) for error in invalid.errors()))
        everything = [*merger.problems, *_explain(action, merger, wrong), *_rules_beside(model, merger, wrong, target)]
        everything.sort(key=lambda problem: problem.code != ACTION.name)  # other problems may follow from it
        raise ProblemError(bounded(everything)) from invalid
    by_rules = [p for p in check(spec, target) if p not in merger.problems and p.where not in merger.conflicts]
    problems = bounded([*merger.problems, *by_rules])
    raise_errors(problems)
    origins = {path: merger.origin(path) for path in flat(spec)}
    return Resolved(spec, origins, problems, tuple(merger.layers))


def _address_of_named(named: dict[str, Any]) -> str:
    """The annotation path of a data set given by name, subset, split and revision: a folder, or the hub's address."""
    name, subset, split = str(named["name"]), named.get("subset") or "", named.get("split", "")
    split = "+".join(map(str, split)) if isinstance(split, list) else str(split or "")
    revision = f"@{named['revision']}" if named.get("revision") else ""
    is_place = os.path.isdir(os.path.expanduser(name)) or name.startswith(("/", ".", "~")) or "://" in name
    place = name if is_place else f"hf_dataset://{name}{revision}"
    part = f"{subset}:{split}" if subset else split
    return f"{place}#{part}" if part else place


class _LayerMerger:
    """Values and origins while layers are merged."""

    def __init__(self, action: str) -> None:
        self.action, self.declared = action, actions.action(action)
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.sources: dict[str, Layer] = {}
        self.problems: list[Problem] = []
        self.conflicts: set[str] = set()  # first keys of exclusive pairs of which one layer sets both
        self.layers = [TEMPLATE]

    def origin(self, path: str) -> str:
        """The layer that sets a key. For a default in the optional table: the template, and the layer that opens it."""
        opened = self.origins.get(OPTIONAL_TABLE) if path.startswith(f"{OPTIONAL_TABLE}.") else None
        return self.origins.get(path) or (f"{TEMPLATE}, by {opened}" if opened else TEMPLATE)

    def add(self, layer: Layer) -> None:
        self.layers.append(layer.name)
        placed = list(entries(self.action, layer))
        self.problems += [entry for entry in placed if isinstance(entry, Problem)]
        values = dict(entry for entry in placed if not isinstance(entry, Problem))
        for path, value in values.items():
            self.problems += _unfit(path, value, layer)
            self._put(path, value, layer)
        for one, other in self.declared.exclusive:
            if values.get(one) is not None and values.get(other) is not None:
                self.problems.append(CONFLICT.at(place(layer, one), f"{one} and {other} are both set", "keep one"))
                self.conflicts.add(one)
        for pairs, empty in ((self.declared.exclusive, None), (self.declared.later_wins, 0)):
            for path, cleared in (*pairs, *(pair[::-1] for pair in pairs)):
                if values.get(path) not in (None, empty) and cleared not in values:
                    self._put(cleared, empty, layer)

    def settle(self) -> None:
        """Derive values from all layers together. A held-out part enables validation, unless a layer disables it. No
        warm-up at all is written as 0 steps, because an unset key would be read from a file as the template's value."""
        self._name_sources()
        for path in PER_PART:
            value = value_in(self.values, path)
            if isinstance(value, list) and value and all(item == value[0] for item in value):
                self._put(path, value[0], self.sources[path])
        self._take_adapter()
        if value_in(self.values, HELD_OUT) == 0:  # cosmos-rl's value for no held-out part
            self._put(HELD_OUT, None, self.sources[HELD_OUT])
        if value_in(self.values, HELD_OUT) is not None and "validation.enable" not in self.origins:
            self._put("validation.enable", True, self.sources[HELD_OUT])
        if value_in(self.values, "train.optm_warmup_epochs") is None:
            train = self.values.get("train")
            if isinstance(train, dict) and train.get("optm_warmup_steps", 0) is None:
                train["optm_warmup_steps"] = 0

    def _take_adapter(self) -> None:
        """Set keys of policy.lora that no layer sets to those of the adapter that training continues, if it is here."""
        name = value_in(self.values, ADAPTER_FOLDER)
        if not isinstance(name, str) or not is_adapter(folder := Path(os.path.expanduser(name))):
            return
        try:
            stored = adapter_keys(folder)
        except ProblemError as unusable:
            self.problems += unusable.problems
            return
        for key, value in stored.items():
            if (path := f"{OPTIONAL_TABLE}.{key}") not in self.origins:
                self._put(path, value, self.sources[ADAPTER_FOLDER])

    def _name_sources(self) -> None:
        """Convert the name of a data set, and a loader, to annotation paths, which all other tools read."""
        named = value_in(self.values, NAMED)
        if named and isinstance(named, dict) and named.get("name") and not value_in(self.values, TRAIN_SET):
            layer = self.sources[f"{NAMED}.name"]
            self._put(TRAIN_SET, _address_of_named(named), layer)
            for name, usual in (("name", ""), ("subset", ""), ("split", "train"), ("revision", "")):
                self._put(f"{NAMED}.{name}", usual, layer)
        loader = value_in(self.values, LOADER)
        if isinstance(loader, str) and loader:
            layer = self.sources[LOADER]
            for key in (TRAIN_SET, VALIDATION_SET):
                annotations = value_in(self.values, key)
                if isinstance(annotations, str) and (annotations or key == TRAIN_SET):
                    self._put(key, f"{loader}#{annotations}" if annotations else loader, layer)
                elif key == TRAIN_SET and annotations is None:
                    self._put(key, loader, layer)
            self._put(LOADER, "", layer)

    def _put(self, path: str, value: Any, layer: Layer) -> None:
        table, last = table_at(self.values, path)
        # The value {} of a table creates it, and None removes it.
        if path in leaves(self.action) or value is None or not isinstance(table.get(last), dict):
            table[last] = value
        self.origins[path] = layer.name
        self.sources[path] = layer


def _unfit(path: str, value: Any, layer: Layer) -> list[Problem]:
    """Problems of a value: it contains a secret, cannot be written to the run's spec, or is a name or path with
    characters that split lines or words in generated scripts."""
    try:
        strings = list(texts(value))
        "".join(strings).encode("utf-8")
    except ValueError as broken:
        remedy = f"use UTF-8, in names of folders too, and at most {DEEPEST} levels"
        return [FILE.at(place(layer, path), f"{path} cannot be written to the run's spec: {broken}", remedy)]
    if any(redacted(text) != text for text in strings):
        return [SECRET.at(place(layer, path), f"{path} contains a token or a password")]
    odd = control_characters("".join(strings))
    if odd and path.rpartition(".")[2] not in PROMPTS:
        remedy = "rename the file or folder; only prompts may have several lines"
        return [VALUE.at(place(layer, path), f"{path} contains {odd}", remedy)]
    return []


def _explain(action: str, merger: _LayerMerger, wrong: list[str]) -> list[Problem]:
    """A problem for each key that pydantic refuses, in terms of the spec."""
    problems = []
    for path in wrong:
        layer = merger.sources.get(path, Layer(TEMPLATE))
        value = value_in(merger.values, path)
        where, shown = place(layer, path), brief(value)
        if path == "train.train_policy.trainer_type" and "train.train_policy.type" in wrong:
            continue  # the same value again
        if path == "train.train_policy.type":
            problems.append(ACTION.at(where, f"the training type is {shown}", KINDS))
            continue
        field = leaves(action).get(path)
        code = UNKNOWN_KEY if field is None else VALUE
        rule = expected(action, path)
        values = re.findall(r'"([^"]+)"', rule)
        near = difflib.get_close_matches(value.upper(), values, 1) if isinstance(value, str) else []
        remedy = f'did you mean "{near[0]}"? {path} is {rule}' if near else f"set {path} to {rule}"
        problems.append(code.at(where, f"{path} must be {rule}; got {shown}", remedy))
    return problems


def _rules_beside(model: type[Spec], merger: _LayerMerger, wrong: list[str], target: str) -> list[Problem]:
    """Apply the rules to the tables without an invalid value, so that one problem does not hide another."""
    left_out = [*wrong, "validation.enable"] if HELD_OUT in wrong else wrong  # it may be derived from HELD_OUT
    for path in left_out:
        *tables, last = path.split(".")
        inside = value_in(merger.values, ".".join(tables)) if tables else merger.values
        if isinstance(inside, dict):
            inside.pop(last, None)
    try:
        spec = model.model_validate(merger.values)
    except ValidationError:
        return []
    touched = {path.rpartition(".")[0] for path in left_out}
    return [p for p in check(spec, target) if touched.isdisjoint((p.where, p.where.rpartition(".")[0]))]


def _path(cls: type[Table], location: tuple[int | str, ...]) -> str:
    """The dotted path of a pydantic location, without the parts for union members and list items."""
    names: list[str] = []
    inner: type[Table] | None = cls
    for part in location:
        if inner is None or not isinstance(part, str) or part not in inner.model_fields:
            continue
        names.append(part)
        inner = table_of(inner.model_fields[part])
    return ".".join(names)
