"""The stages that train: the round's model, and the control's, on as many samples for as many steps."""

from __future__ import annotations

import random
from pathlib import Path

from vidqa.contract.files import read_json, write_json
from vidqa.deft import carrying_out
from vidqa.deft.adding import assembled, validated
from vidqa.deft.turn import Done, Turn, annotations_in


def train(turn: Turn) -> Done:
    """The round's training, directly; the winner of a search would have its run folder here as well."""
    return _trained(turn, "training spec")


def _trained(turn: Turn, asked: str) -> Done:
    run, facts, cost = carrying_out.job("train", Path(str(turn.output(asked))), turn.settings.where)
    return Done(f"Trained: {run}", {}, facts, cost)


def control_assemble(turn: Turn) -> Done:
    """As many random samples of the pool as were mined, in place of these."""
    pool = annotations_in(turn.settings.sets.pool)
    rows = read_json(pool) if pool and pool.is_file() else []
    count = sum(int(turn.fact(stage, "samples")) for stage in ("mine", "augment") if turn.has(stage))
    chosen = random.Random(f"{turn.settings.seed} {turn.number}").sample(range(len(rows)), min(count, len(rows)))
    place = turn.place / "control" / "annotations.json"
    media = Path(str(turn.settings.sets.pool)).absolute()
    write_json(place, [_with_full_paths(rows[at], media) for at in sorted(chosen)])
    return assembled(turn, [place], "control_set", "control set")


def _with_full_paths(row: dict[str, object], media: Path) -> dict[str, object]:
    named = {kind: str(media / str(row[kind])) for kind in ("video", "image") if isinstance(row.get(kind), str)}
    return {**row, **named}


def control_validate(turn: Turn) -> Done:
    """The spec of the control's training, and its preflight."""
    return validated(turn, "control set", "control_train", "control training spec")


def control_train(turn: Turn) -> Done:
    """The control's training."""
    return _trained(turn, "control training spec")
