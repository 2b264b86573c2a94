"""Layers: tables of keys from files, data roots and the command line, merged so that later ones override earlier ones;
and detection of a layer's action by its tables."""

from __future__ import annotations

import io
import json
import re
import reprlib
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vidqa.core import actions
from vidqa.core.actions import ACTION
from vidqa.core.files import open_plain, value_in
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec._field import Table
from vidqa.spec.compat_keys import NO_SPECS, OF_THEIR_PROCESSES, REMOVED, RENAMED
from vidqa.spec.keys import leaves, nearest, reinforcement_keys, table_of
from vidqa.spec.problems import FILE, NO_EFFECT, UNKNOWN_KEY, VALUE

DEEPEST = 100  # levels of tables and lists in a spec
FORMATS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}  # by file suffix


@dataclass(frozen=True)
class Layer:
    """Some keys and their source. `text` is the text of a file, by which problems find the line of a key."""

    name: str
    table: dict[str, Any] = field(default_factory=dict)
    text: str = ""


# Values for messages of problems: shortened, however deep or long they are.
_shown = reprlib.Repr()
_shown.maxlevel, _shown.maxstring, _shown.maxother = 2, 120, 120
brief = _shown.repr


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-5 is a number, not a string."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_layer(path: Path | str) -> Layer:
    """Read a TOML, YAML or JSON file as a layer. Raises SPEC_FILE, with the line if possible."""
    path = Path(path)
    format = format_of(path)
    try:
        with open_plain(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig").read()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise FILE.error(path, f"it cannot be read: {unreadable}") from unreadable
    table = _parse(path, text, format)
    if not isinstance(table, dict):
        raise FILE.error(f"{path}:1", f"the file holds a {type(table).__name__}, not a table of keys")
    return Layer(str(path), {str(name): value for name, value in table.items()}, text)  # YAML keys may have any type


def format_of(path: Path) -> str:
    """The format of a spec file by its suffix: toml, yaml or json. Raises SPEC_FILE."""
    if path.suffix not in FORMATS:
        raise FILE.error(path, f"the name ends in {path.suffix!r}; a spec is .toml, .yaml or .json")
    return FORMATS[path.suffix]


def texts(value: Any, _above: tuple[int, ...] = (), _visited: set[int] | None = None) -> Iterator[str]:
    """Yield every string of a value, including keys. A part that occurs several times, as with YAML anchors, is visited
    once. Raises ValueError if a part contains itself or is nested deeper than DEEPEST."""
    visited = set() if _visited is None else _visited
    if isinstance(value, str):
        yield value
    if not isinstance(value, dict | list):
        return
    if id(value) in _above or len(_above) > DEEPEST:
        raise ValueError(f"a table contains itself, or is nested deeper than {DEEPEST} levels")
    if id(value) in visited:
        return
    visited.add(id(value))
    for part in [*value, *value.values()] if isinstance(value, dict) else value:
        yield from texts(part, (*_above, id(value)), visited)


def _parse(path: Path, text: str, format: str) -> Any:
    try:
        if format == "toml":
            return tomllib.loads(text)
        if format == "json":
            return json.loads(text)
        return yaml.load(text, _Yaml) or {}
    except tomllib.TOMLDecodeError as broken:
        line = re.search(r"line (\d+)", str(broken))
        where = int(line.group(1)) if line else text.count("\n") + 1
        raise FILE.error(f"{path}:{where}", f"not TOML: {broken}") from broken
    except json.JSONDecodeError as broken:
        raise FILE.error(f"{path}:{broken.lineno}", f"not JSON: {broken.msg}") from broken
    except yaml.MarkedYAMLError as broken:
        where = broken.problem_mark.line + 1 if broken.problem_mark else 1
        raise FILE.error(f"{path}:{where}", f"not YAML: {broken.problem}") from broken
    except (yaml.YAMLError, RecursionError, ValueError) as broken:
        raise FILE.error(f"{path}:1", f"it cannot be read: {broken}") from broken


def parse_set(assignments: Iterable[str], name: str = "--set") -> Layer:
    """Parse `a.b.c=value` arguments into one layer; a value is a TOML or JSON scalar, list or table, else text."""
    table: dict[str, Any] = {}
    problems: list[Problem] = []
    for word in assignments:
        path, equals, value = word.partition("=")
        if not equals or not path.strip():
            problems.append(FILE.at(f"{name} {word}", "it is not KEY=VALUE", "write it as train.epoch=3"))
        else:
            table[path.strip()] = parse_value(value.strip())
    if problems:
        raise ProblemError(problems)
    return Layer(name, table)


def parse_value(text: str) -> Any:
    """3 -> 3, 1e-5 -> 1e-05, true -> True, [a] -> as text, "x" -> x, null and none -> None, anything else -> text."""
    if text.lower() in ("null", "none"):
        return None
    for read in (json.loads, lambda value: tomllib.loads(f"value = {value}")["value"]):
        try:
            return read(text)
        except (ValueError, RecursionError):
            continue
    return text


def text_of(value: Any) -> str:
    """Format a value so that `parse_set` reads it back: a text unquoted, unless it would be read as another type."""
    return value if isinstance(value, str) and parse_value(value) == value else json.dumps(value, default=str)


def entries(action: str, layer: Layer) -> Iterator[tuple[str, Any] | Problem]:
    """Yield the layer's keys as (dotted path, value), or a problem for each unknown key.

    The value of a path to a table is None (the table is removed) or {} (it exists, with its defaults).
    """
    table, declared = layer.table, actions.action(action)
    if _is_benchmark_config(table):
        message = "it is a configuration of Cosmos-Reason1's benchmark: its datasets are a list of subsets"
        remedy = f"python scripts/run_benchmark.py --data DATA --config {shlex.quote(layer.name)}"
        yield FILE.at(layer.name, message, remedy)
        return
    if (outer := declared.nested_in) and isinstance(table.get(outer), dict):
        table = {**{k: v for k, v in table.items() if k != outer}, **table[outer]}
    for name, value in table.items():
        path = declared.shorthand.get(name, name)
        if outer:
            path = path.removeprefix(f"{outer}.")
        yield from _place(action, layer, declared.spec_model, path, value, "")


def _is_benchmark_config(table: dict[str, Any]) -> bool:
    """Whether a file is a config of Cosmos-Reason1's benchmark: a list of data sets beside tables of an evaluation."""
    tables = ("model", "evaluation", "generation")
    return isinstance(table.get("datasets"), list) and not table.keys().isdisjoint(tables)


def _place(
    action: str, layer: Layer, cls: type[Table], name: str, value: Any, prefix: str
) -> Iterator[tuple[str, Any] | Problem]:
    first, _, rest = name.partition(".")
    path = prefix + first
    model_field = cls.model_fields.get(first)
    if model_field is None:
        yield from _unknown_key(action, layer, prefix + name, value)
        return
    inner = table_of(model_field)
    if rest:
        if inner is None:
            yield _unknown(action, layer, prefix + name)
        else:
            yield from _place(action, layer, inner, rest, value, f"{path}.")
    elif inner is None:
        yield path, value
    elif isinstance(value, dict):
        yield path, {}
        for key, part in value.items():
            yield from _place(action, layer, inner, str(key), part, f"{path}.")
    elif value is None and not model_field.is_required() and model_field.default is None:
        yield path, None
    else:
        message = f"{path} is a table of keys; got {brief(value)}"
        yield VALUE.at(place(layer, path), message, f"set keys below it: {path}.<key>")


def _unknown_key(action: str, layer: Layer, path: str, value: Any) -> Iterator[tuple[str, Any] | Problem]:
    """Handle an unknown key: yield a renamed key of NVIDIA's files, or a problem."""
    moved = RENAMED.get(path)
    if moved is not None and moved in leaves(action):
        yield from _place(action, layer, actions.action(action).spec_model, moved, value, "")
    elif path in REMOVED:
        default, remedy = REMOVED[path]
        if value != default:
            yield UNKNOWN_KEY.at(place(layer, path), f"{path} is a key of an earlier version", remedy)
    elif isinstance(value, dict) and value and any(name.startswith(f"{path}.") for name in (*RENAMED, *REMOVED)):
        for key, part in value.items():
            yield from _unknown_key(action, layer, f"{path}.{key}", part)
    else:
        yield _unknown(action, layer, path)


def _unknown(action: str, layer: Layer, path: str) -> Problem:
    where, is_of_processes = place(layer, path), path.split(".")[0] in OF_THEIR_PROCESSES
    is_reinforcement = any(path == name or path.startswith(f"{name}.") for name in reinforcement_keys())
    # The resolved configuration of a run lists all of these.
    if (is_of_processes or is_reinforcement) and training_type(layer) == "sft":
        message = f"{path} is a key that cosmos-rl's supervised fine-tuning does not read either"
        return NO_EFFECT.at(where, message, "remove it, or ignore this", severity="warning")
    if path in NO_SPECS:
        whose, remedy = NO_SPECS[path]
    elif action == "train" and is_reinforcement:
        whose, remedy = "cosmos-rl's reinforcement learning; this is supervised fine-tuning", "remove it"
    elif is_of_processes:
        whose, remedy = "cosmos-rl's own processes, which do not run here", "remove it"
    else:
        close = nearest(action, path)
        remedy = (
            f"did you mean {', '.join(close)}?" if close else f"see references/parameters_{action}.md for every key"
        )
        return UNKNOWN_KEY.at(where, f"{path} is not a key of a spec for {action}", remedy)
    return UNKNOWN_KEY.at(where, f"{path} is a key of {whose}", remedy)


def training_type(layer: Layer) -> Any:
    """The kind of training (sft, grpo) according to the file itself; None if it says nothing."""
    return value_in(layer.table, "train.train_policy.type")


def place(layer: Layer, path: str) -> str:
    """`file:line key` if the key's last name is on exactly one line of the file, else `layer key`."""
    last = re.escape(path.rsplit(".", 1)[-1])
    lines = [
        number
        for number, line in enumerate(layer.text.splitlines(), 1)
        if re.match(rf"""^[\s{{\-]*["']?([\w.]+\.)?{last}["']?\s*[=:]|^\s*\[([\w.]+\.)?{last}\]""", line)
    ]
    return f"{layer.name}:{lines[0]} {path}" if len(lines) == 1 else f"{layer.name} {path}"


def action_of(spec_path: Path) -> str:
    """The action whose tables a spec has, and none of another's; the first if several share all of its tables.
    Raises SPEC_ACTION if there is none, or if its tables belong to several actions."""
    layer = read_layer(spec_path)
    own = _tables_by_action(layer)
    most = max(map(len, own.values()))
    best = [name for name, tables in own.items() if len(tables) == most]
    if most and all(own[name] == own[best[0]] for name in best):
        return best[0]
    tables = ", ".join(sorted(_tables(layer))) or "none"
    message = f"its tables ({tables}) do not belong to a single action"
    raise ACTION.error(spec_path, message, "give " + " or ".join(f"--action {name}" for name in best))


def require_action(layer: Layer, spec_path: Path, action: str) -> None:
    """Raise SPEC_ACTION for an unknown action, and for a spec with more tables of another action, which include those
    of this one."""
    own = _tables_by_action(layer)
    mine = own[actions.action(action).name]
    other = max(own, key=lambda name: len(own[name]))
    if len(own[other]) > len(mine) and (not mine or mine < own[other]):
        message = f"the action is {action}, but this is a spec for {other}"
        raise ACTION.error(spec_path, message, f"use action {other}, or a spec of scripts/build_spec.py {action}")


def _tables_by_action(layer: Layer) -> dict[str, set[str]]:
    """The tables and short names in a spec that belong to each action."""
    return {declared.name: _tables(layer) & {*declared.tables, *declared.shorthand} for declared in actions.every()}


def _tables(layer: Layer) -> set[str]:
    return {key.split(".")[0] for key in layer.table}
