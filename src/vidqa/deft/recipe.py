"""The words by which a round's training is built from the loop's recipe."""

from __future__ import annotations

from pathlib import Path

from vidqa.deft import carrying_out
from vidqa.deft.problems import DEFT_GATE
from vidqa.deft.turn import TRAIN_SPEC, Turn
from vidqa.spec.run_lookup import ADAPTER, find_export


def train_words(turn: Turn, annotations: Path, out: Path) -> list[object]:
    """The words of build_spec.py: the loop's recipe on another set, from the base model or the last accepted one.

    Raises DEFT_GATE where the last one is an adapter.
    """
    sets = {
        "custom.train_dataset.annotation_path": str(annotations),
        "custom.train_dataset.media_path": str(annotations.parent),
        "train.resume": False,
    }
    words: list[object] = ["--override", turn.folder / TRAIN_SPEC, "--results-dir", turn.runs]
    if turn.settings.continue_from == "last":
        words += ["--model", _weights(turn.accepted.model)]
    words += carrying_out.sets(sets)
    return [*words, *(word for each in turn.settings.train for word in ("--set", each)), "--out", out]


def _weights(model: str) -> str:
    """The folder of weights that a training can begin with."""
    if not (Path(model) / "safetensors").is_dir():
        return model
    export = find_export(model)
    if (export / ADAPTER).is_file():
        remedy = "merge it (scripts/export.py RUN --merge --out FOLDER) and begin with that, or continue from base"
        raise DEFT_GATE.error(export, "it is an adapter, and a training continues from whole weights", remedy)
    return str(export)
