"""Which action a spec is for."""

from __future__ import annotations

from pathlib import Path

from vidqa.core import actions
from vidqa.core.actions.problems import ACTION
from vidqa.spec.layers import Layer, read_layer


def action_of(spec_path: Path) -> str:
    """The action whose tables a spec has, and none of another's; of those that share all of its tables, the first.
    Raises SPEC_ACTION where there is none, or where its tables are of several."""
    layer = read_layer(spec_path)
    scores = _scores(layer)
    best = [name for name, score in scores.items() if score == max(scores.values())]
    if len({frozenset(_own(layer, name)) for name in best}) > 1 or not _own(layer, best[0]):
        tables = ", ".join(sorted(_tables(layer))) or "none"
        message = f"its tables ({tables}) are of no single action"
        raise ACTION.error(spec_path, message, "say " + " or ".join(f"--action {name}" for name in best))
    return best[0]


def require_action(layer: Layer, spec_path: Path, action: str) -> None:
    """Raise SPEC_ACTION for an action that there is not, and for a spec that has tables of another, of which this one
    has fewer."""
    name = actions.action(action).name
    scores = _scores(layer)
    other = max(scores, key=lambda name_of: scores[name_of])
    if scores[other] > scores[name] and (not _own(layer, name) or _own(layer, name) < _own(layer, other)):
        message = f"{name} is asked for, and this is a spec for {other}"
        raise ACTION.error(spec_path, message, f"name a spec that build_spec.py {name} wrote, or ask for {other}")


def _scores(layer: Layer) -> dict[str, int]:
    return {declared.name: len(_own(layer, declared.name)) for declared in actions.every()}


def _own(layer: Layer, action: str) -> set[str]:
    """The tables and short names of a spec that this action has."""
    declared = actions.action(action)
    return _tables(layer) & {*declared.tables, *declared.shorthand}


def _tables(layer: Layer) -> set[str]:
    return {key.split(".")[0] for key in layer.table}
