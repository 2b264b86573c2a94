"""The registry of actions. Each is one declaration of its spec, its job and its work.

Six are declared in this package. An installed package adds others by entry points in the group `vidqa.actions`
("count = count_action:COUNT"), in every process that finds the package.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from vidqa.core.actions._base import Action, DataSet, ModelKey, Parent, RecordSampling, Resuming, resolve
from vidqa.core.problem import Code, ProblemError

__all__ = [
    "ACTION",
    "Action",
    "DataSet",
    "ModelKey",
    "Parent",
    "RecordSampling",
    "Resuming",
    "action",
    "action_for",
    "every",
    "names",
    "profiles",
    "resolve",
    "roots",
]

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

HERE = {  # action name -> module of this package that declares it, as a variable of that name in capitals
    "train": "train",
    "evaluate": "reading",
    "inference": "reading",
    "embed": "reading",
    "grpo": "train",
    "quantize": "quantize",
}
GROUP = "vidqa.actions"
ACTION = Code(
    "SPEC_ACTION",
    "The action is unknown or cannot be loaded, or the spec was written for another action.",
    "Give the action that the spec was written for, such as train, grpo or evaluate.",
)


def _installed() -> dict[str, EntryPoint]:
    return _entry_points(tuple(sys.path))


@lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """The entry points of packages on `path` (sys.path). Cached, because scanning all packages on each lookup would add
    the time of a preflight."""
    from importlib.metadata import entry_points  # slower than all other imports here

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in HERE}


def names() -> tuple[str, ...]:
    """The names of all actions."""
    return (*HERE, *sorted(_installed()))


def action(name: str) -> Action:
    """The action of this name. Raises SPEC_ACTION if there is none, or its package cannot be loaded."""
    if name in HERE:
        declared: Action = getattr(importlib.import_module(f"vidqa.core.actions.{HERE[name]}"), name.upper())
        return declared
    installed = _installed()
    if name not in installed:
        message = f"there is no action {name!r}"
        raise ACTION.error(name, message, f"use one of: {', '.join((*HERE, *sorted(installed)))}")
    try:
        brought: Action = installed[name].load()
    except (ImportError, AttributeError) as broken:
        message = f"the package that provides it cannot be loaded: {broken}"
        raise ACTION.error(name, message, "repair the package, or uninstall it") from broken
    return brought


def every() -> list[Action]:
    """All actions that can be loaded; for the others `action` raises the reason."""
    declared = [action(name) for name in HERE]
    for name in sorted(_installed()):
        with suppress(ProblemError):
            declared.append(action(name))
    return declared


def action_for(spec: object) -> Action:
    """The action of a spec."""
    ours = next((declared for declared in map(action, HERE) if declared.spec_model is type(spec)), None)
    return ours or next(declared for declared in every() if declared.spec_model is type(spec))


def profiles() -> str:
    """The profile names of specs, as a help text."""
    first, *others = dict.fromkeys(name for declared in every() for name in declared.profiles)
    return f"{first} (default), {', '.join(others[:-1])} or {others[-1]}"


def roots() -> tuple[str, ...]:
    """The data folder options of build_spec.py: train, val, eval, query."""
    return tuple(dict.fromkeys(data.root for declared in every() for data in declared.data))
