"""LoRA merged into its base by stock PEFT: a model folder again, with the weights of `merge_and_unload`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vidqa.core.files import write_json
from vidqa.engine.distributed import World
from vidqa.engine.export._base import ExportFormat, Trained
from vidqa.engine.export.adapter import ADAPTER, load_adapted, merge_in_float32
from vidqa.engine.export.weights import WEIGHTS
from vidqa.families._base import read_json
from vidqa.planning.adapters import base_precision

MARK = "merged.json"  # what was merged: whole models of other folders do not say whether an adapter was
TIED = "tie_word_embeddings"


def merged_adapter(exports: Path, base: Path, lora: Any, adapter: Path, dtype: torch.dtype, capped: Any) -> Trained:
    """The export of the adapter in the folder `adapter`, trained with the spec's table `lora` from the folder `base`,
    into a folder of `exports`. Holds the whole model in host memory. An adapter of a base in few bits is merged into
    the ordinary one, in float32. Raises as `ADAPTER.load` does."""
    if base_precision(adapter):
        model = merge_in_float32(load_adapted(adapter, base, dtype))
    else:
        model = ADAPTER.load(adapter, base, dtype, torch.device("cpu"))
    parameters = dict(model.named_parameters())
    return Trained(exports, base, lora, dtype, parameters, parameters, capped)


def _write(trained: Trained, name: str, world: World) -> Path:
    """By one process."""
    folder = WEIGHTS.write(trained, name, world)
    # An adapter on a tied head or on its embeddings is of one of the two: merged, each has weights of its own.
    untied = "lm_head.weight" in trained.parameters and bool(read_json(trained.base, "config.json").get(TIED))
    if untied:
        _untie(folder)
    write_json(folder / MARK, {"schema_version": 1, "lora": trained.lora.model_dump(), "head_untied": untied})
    return folder


def _untie(folder: Path) -> None:
    config = read_json(folder, "config.json")
    config[TIED] = False
    for table in config.values():
        if isinstance(table, dict) and TIED in table:
            table[TIED] = False
    write_json(folder / "config.json", config)


MERGED = ExportFormat("merged", MARK, WEIGHTS.stem, _write, WEIGHTS.check, WEIGHTS.load)
