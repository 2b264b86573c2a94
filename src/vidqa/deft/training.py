"""The stages that train: the round's model, and the control's, on as many samples for as many steps."""

from __future__ import annotations

from pathlib import Path

from vidqa.deft import carrying_out
from vidqa.deft.adding import assembled, validated
from vidqa.deft.turn import Done, Turn


def train(turn: Turn) -> Done:
    """The round's training, directly; the winner of a search would have its run folder here as well."""
    return _trained(turn, "training spec")


def _trained(turn: Turn, asked: str) -> Done:
    run, facts, cost = carrying_out.job("train", Path(str(turn.output(asked))), turn.settings.where)
    return Done(f"Trained: {run}", {}, facts, cost)


def control_assemble(turn: Turn) -> Done:
    """As many random samples of the pool as were mined, in place of these."""
    return assembled(turn, [Path(str(turn.output("random")))], "control_set", "control set")


def control_validate(turn: Turn) -> Done:
    """The spec of the control's training, and its preflight."""
    return validated(turn, "control set", "control_train", "control training spec")


def control_train(turn: Turn) -> Done:
    """The control's training."""
    return _trained(turn, "control training spec")
