"""Which action a spec is for."""

from __future__ import annotations

from pathlib import Path

from vidqa.spec.layers import Layer, read_layer
from vidqa.spec.problems import ACTION

TABLES = {
    "train": {"train", "policy", "custom", "validation", "logging"},
    "evaluate": {"dataset", "model", "task", "evaluation", "generation", "metrics", "results", "num_gpus", "vision"},
}


def action_of(spec_path: Path) -> str:
    """The action whose tables a spec has. Raises SPEC_ACTION where it has those of both or of neither."""
    layer = read_layer(spec_path)
    scores = _scores(layer)
    if scores["train"] == scores["evaluate"]:
        tables = ", ".join(sorted(_tables(layer))) or "none"
        found = f"its tables ({tables}) are of no single action"
        raise ACTION.error(spec_path, found, "say --action train or --action evaluate")
    return max(scores, key=lambda action: scores[action])


def require_action(layer: Layer, spec_path: Path, action: str) -> None:
    """Raise SPEC_ACTION for an action that there is not, and for a spec that has tables of another and none of this."""
    if action not in TABLES:
        raise ACTION.error(spec_path, f"there is no action {action!r}", f"ask for one of: {', '.join(TABLES)}")
    scores = _scores(layer)
    other = max(scores, key=lambda each: scores[each])
    if scores[other] and not scores.get(action):
        message = f"{action} is asked for, and this is a spec for {other}"
        raise ACTION.error(spec_path, message, f"name a spec that build_spec.py {action} wrote, or ask for {other}")


def _scores(layer: Layer) -> dict[str, int]:
    return {action: len(_tables(layer) & tables) for action, tables in TABLES.items()}


def _tables(layer: Layer) -> set[str]:
    return {key.split(".")[0] for key in layer.table}
