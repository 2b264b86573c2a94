"""Which action a spec is for."""

from __future__ import annotations

from pathlib import Path

from vidqa.core import actions
from vidqa.core.actions import ACTION
from vidqa.spec.layers import Layer, read_layer


def action_of(spec_path: Path) -> str:
    """The action whose tables a spec has, and none of another's; of those that share all of its tables, the first.
    Raises SPEC_ACTION where there is none, or where its tables are of several."""
    layer = read_layer(spec_path)
    own = _tables_by_action(layer)
    most = max(map(len, own.values()))
    best = [name for name, tables in own.items() if len(tables) == most]
    if most and all(own[name] == own[best[0]] for name in best):
        return best[0]
    tables = ", ".join(sorted(_tables(layer))) or "none"
    message = f"its tables ({tables}) are of no single action"
    raise ACTION.error(spec_path, message, "say " + " or ".join(f"--action {name}" for name in best))


def require_action(layer: Layer, spec_path: Path, action: str) -> None:
    """Raise SPEC_ACTION for an action that there is not, and for a spec that has tables of another, of which this one
    has fewer."""
    own = _tables_by_action(layer)
    mine = own[actions.action(action).name]
    other = max(own, key=lambda name: len(own[name]))
    if len(own[other]) > len(mine) and (not mine or mine < own[other]):
        message = f"{action} is asked for, and this is a spec for {other}"
        raise ACTION.error(spec_path, message, f"name a spec that build_spec.py {action} wrote, or ask for {other}")


def _tables_by_action(layer: Layer) -> dict[str, set[str]]:
    """The tables and short names of a spec that each action has."""
    return {declared.name: _tables(layer) & {*declared.tables, *declared.shorthand} for declared in actions.every()}


def _tables(layer: Layer) -> set[str]:
    return {key.split(".")[0] for key in layer.table}
