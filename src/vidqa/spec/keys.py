"""The keys of a spec as dotted paths: list of all keys, their values, nearest matches, and allowed values as JSON
Schema and in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic.fields import FieldInfo

from vidqa.core import actions
from vidqa.spec._field import Table
from vidqa.spec.compat_keys import REINFORCEMENT
from vidqa.spec.models import Spec

SpecT = TypeVar("SpecT", bound=Spec)
DIALECT = "https://json-schema.org/draft/2020-12/schema"
WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "unset"}
LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "pattern": "like",
}


def table_of(field: FieldInfo) -> type[Table] | None:
    """The table class of a field, also of an optional table; None for a leaf."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Table):
            return kind
    return None


def _walk(cls: type[Table], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in cls.model_fields.items():
        inner = table_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            yield from _walk(inner, f"{prefix}{name}.")


@cache
def leaves(action: str) -> Mapping[str, FieldInfo]:
    """Every key of an action's spec, by dotted path, in the order of the models."""
    return dict(_walk(actions.action(action).spec_model, ""))


@cache
def reinforcement_keys() -> tuple[str, ...]:
    """Tables and keys that only cosmos-rl's reinforcement learning reads."""
    within = ("engine.", *(f"{name}." for name in REINFORCEMENT))
    own = (path for path in leaves("grpo") if path not in leaves("train") and not path.startswith(within))
    return (*REINFORCEMENT, *own)


def flat(spec: Table) -> dict[str, Any]:
    """Every key of a validated spec with its value; an absent table is one key with None."""
    values: dict[str, Any] = {}

    def visit(part: Table, prefix: str) -> None:
        for name in type(part).model_fields:
            value = getattr(part, name)
            if isinstance(value, Table):
                visit(value, f"{prefix}{name}.")
            else:
                values[prefix + name] = value

    visit(spec, "")
    return values


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values by dotted path to nested tables."""
    whole: dict[str, Any] = {}
    for path, value in values.items():
        table, last = table_at(whole, path)
        table[last] = value
    return whole


def table_at(tables: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """The innermost table of a dotted path, created if missing, and the path's last name."""
    *outer, last = path.split(".")
    for name in outer:
        if not isinstance(tables.get(name), dict):
            tables[name] = {}
        tables = tables[name]
    return tables, last


def value_at(spec: Table, key: str) -> Any:
    """The value of a key, or of an entry in a dictionary under that key."""
    value: Any = spec
    for name in key.split("."):
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def with_values(spec: SpecT, values: Mapping[str, Any]) -> SpecT:
    """A copy of a spec with other values at some dotted keys."""
    tables = spec.model_dump()
    for key, value in values.items():
        table, name = table_at(tables, key)
        table[name] = value
    return type(spec).model_validate(tables)


def nearest(action: str, path: str) -> list[str]:
    """Up to three known keys or tables similar to `path`: by the whole path first, then by the last name alone."""
    names = [*leaves(action), *actions.action(action).shorthand]
    tables = {name.rpartition(".")[0] for name in leaves(action)}
    close = difflib.get_close_matches(path, [*names, *tables], n=3, cutoff=0.75)
    last = path.rsplit(".", 1)[-1]
    same = [name for name in names if name.rsplit(".", 1)[-1] == last]
    by_last = difflib.get_close_matches(last, {name.rsplit(".", 1)[-1] for name in names}, n=2, cutoff=0.7)
    like = [name for end in by_last for name in names if name.rsplit(".", 1)[-1] == end]
    return list(dict.fromkeys([*same, *close, *like]))[:3]


def facts(field: FieldInfo) -> dict[str, Any]:
    """The x- properties of a key: x-native always, x-instead and x-automl if set."""
    extra = field.json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}


@cache
def schema(action: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of an action's spec: no unknown key, every default, x-native, x-automl."""
    shape = actions.action(action).spec_model.model_json_schema(mode="validation")
    return {"$schema": DIALECT, "$id": f"{action}.schema.json", **shape, "title": f"Spec of {action}"}


@cache
def properties(action: str) -> dict[str, dict[str, Any]]:
    """The schema of every key, by dotted path."""
    whole = schema(action)
    by_path: dict[str, dict[str, Any]] = {}

    def visit(part: dict[str, Any], prefix: str) -> None:
        for name, prop in part["properties"].items():
            inner = _table(whole, prop)
            if inner is None:
                by_path[prefix + name] = prop
            else:
                visit(inner, f"{prefix}{name}.")

    visit(whole, "")
    return by_path


def _table(whole: dict[str, Any], prop: dict[str, Any]) -> dict[str, Any] | None:
    for choice in (prop, *prop.get("anyOf", [])):
        if "$ref" in choice:
            return whole["$defs"][choice["$ref"].rsplit("/", 1)[-1]]
    return None


def expected(action: str, path: str) -> str:
    """The allowed values of a key, in words: "whole number of at least 1, or unset"."""
    prop = properties(action).get(path)
    return "a table of keys" if prop is None else _in_words(prop)


def _in_words(prop: dict[str, Any]) -> str:
    if "anyOf" in prop:
        return ", or ".join(dict.fromkeys(_in_words(choice) for choice in prop["anyOf"]))
    if "const" in prop:
        return _quoted(prop["const"])
    if "enum" in prop:
        return "one of " + ", ".join(map(_quoted, prop["enum"]))
    if prop.get("type") == "array":
        items, count = _in_words(prop["items"]), prop.get("minItems")
        return f"list of {count} values, each {items}" if count else f"list, each item {items}"
    if prop.get("type") == "object":
        return f"table of name to {_in_words(prop['additionalProperties'])}"
    limits = " and ".join(f"{words} {prop[name]}" for name, words in LIMITS.items() if name in prop)
    return WORDS[prop["type"]] + (f" ({limits})" if limits else "")


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
