"""The shape of a spec: its JSON Schema, and what a key may hold in words."""

from __future__ import annotations

from functools import cache
from typing import Any

from vidqa.core import actions

DIALECT = "https://json-schema.org/draft/2020-12/schema"
WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "unset"}
LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "pattern": "like",
}


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
    """What a key may hold, in words: "whole number of at least 1, or unset"."""
    prop = properties(action).get(path)
    return "a table of keys" if prop is None else in_words(prop)


def in_words(prop: dict[str, Any]) -> str:
    if "anyOf" in prop:
        return ", or ".join(dict.fromkeys(in_words(choice) for choice in prop["anyOf"]))
    if "const" in prop:
        return _quoted(prop["const"])
    if "enum" in prop:
        return "one of " + ", ".join(map(_quoted, prop["enum"]))
    if prop.get("type") == "array":
        items, count = in_words(prop["items"]), prop.get("minItems")
        return f"list of {count} values, each {items}" if count else f"list, each item {items}"
    if prop.get("type") == "object":
        return f"table of name to {in_words(prop['additionalProperties'])}"
    limits = " and ".join(f"{words} {prop[name]}" for name, words in LIMITS.items() if name in prop)
    return WORDS[prop["type"]] + (f" ({limits})" if limits else "")


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
