"""Which action a spec is for."""

from __future__ import annotations

from pathlib import Path

from vidqa import actions
from vidqa.actions.problems import ACTION
from vidqa.spec.layers import Layer, read_layer


def action_of(spec_path: Path) -> str:
    """The action whose tables a spec has. Raises SPEC_ACTION where it has as many of another, or none."""
    layer = read_layer(spec_path)
    scores = _scores(layer)
    best = [name for name, score in scores.items() if score == max(scores.values())]
    if len(best) > 1:
        tables = ", ".join(sorted(_tables(layer))) or "none"
        found = f"its tables ({tables}) are of no single action"
        raise ACTION.error(spec_path, found, "say " + " or ".join(f"--action {name}" for name in best))
    return best[0]


def require_action(layer: Layer, spec_path: Path, action: str) -> None:
    """Raise SPEC_ACTION for an action that there is not, and for a spec that has tables of another and none of this."""
    name = actions.action(action).name
    scores = _scores(layer)
    other = max(scores, key=lambda each: scores[each])
    if scores[other] and not scores[name]:
        message = f"{name} is asked for, and this is a spec for {other}"
        raise ACTION.error(spec_path, message, f"name a spec that build_spec.py {name} wrote, or ask for {other}")


def _scores(layer: Layer) -> dict[str, int]:
    return {each.name: len(_tables(layer) & set(each.tables)) for each in actions.every()}


def _tables(layer: Layer) -> set[str]:
    return {key.split(".")[0] for key in layer.table}
