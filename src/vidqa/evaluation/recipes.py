"""Whether two scores may be compared: what differs between the ways in which they were made."""

from __future__ import annotations

from typing import Any

# What may differ between two scores that are compared: which model it was, and where and when it ran.
FREE = frozenset(
    ("model", "created", "run_id", "run_dir", "results_dir", "num_gpus", "batch_size", "host", "duration_s", "versions")
)


def compare_recipes(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Differences that make two scores incomparable, as "key: first -> second"; empty when they compare.

    Everything in a recipe counts (frame plan, prompt, generation settings, data, answer rules) except the top-level
    keys in FREE.
    """
    ours, theirs = _leaves(a), _leaves(b)
    return [
        f"{key}: {_shown(ours, key)} -> {_shown(theirs, key)}"
        for key in sorted(ours.keys() | theirs.keys())
        if key.split(".", 1)[0] not in FREE and ours.get(key, ...) != theirs.get(key, ...)
    ]


def _leaves(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            found |= _leaves(inner, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = list(inner) if isinstance(inner, tuple) else inner
    return found


def _shown(leaves: dict[str, Any], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "(absent)"
