"""The export of a full fine-tune: a copy of the model folder with the trained weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from vidqa.core._optional import require
from vidqa.engine.distributed import World
from vidqa.engine.export._base import ExportFormat, Trained
from vidqa.engine.export.writing import copy_settings, named_as, rows_as_trained, shapes_of, write_from_all_ranks
from vidqa.engine.families import family_of as family_of_model
from vidqa.engine.families import torch_half
from vidqa.engine.loading.safetensors_reader import model_tensors, stored_tensors
from vidqa.engine.model.quantized import dequantize
from vidqa.engine.problems import ENGINE_UNPROVEN
from vidqa.families import family_of
from vidqa.families.problems import MODEL_BROKEN

STEM = "model"


def _write(trained: Trained, name: str, world: World) -> Path:
    parameters = [inside for inside in sorted(trained.parameters) if ".original_module." not in inside]
    names = named_as(model_tensors(trained.base), parameters)
    shapes, rows = shapes_of(trained, names), rows_as_trained(trained, names, world)

    def settings(folder: Path) -> None:
        copy_settings(trained.base, folder, trained.capped)

    return write_from_all_ranks(trained, name, STEM, shapes, rows, world, settings)


def check_tensors(export: Path, base: Path) -> None:
    """Raise ENGINE_UNPROVEN unless the export has the base model's tensors, with equal names and shapes."""
    ours, theirs = stored_tensors(export), stored_tensors(base)
    # A tied head may be stored once or twice.
    differing = {name for name in set(ours) ^ set(theirs) if name != "lm_head.weight"}
    if differing:
        raise ENGINE_UNPROVEN.error(export, f"tensor names differ from the base model's: {sorted(differing)[:5]}")
    for name in set(ours) & set(theirs):
        if (got := ours[name].shape) != (want := theirs[name].shape):
            raise ENGINE_UNPROVEN.error(export, f"{name} has shape {got}, the base model {want}")


def load_weights(folder: Path, dtype: torch.dtype) -> Any:
    """A plain transformers model from a model folder; every tensor must be used. Raises MODEL_BROKEN."""
    family = torch_half(family_of(folder))
    try:
        model, info = family.model_class.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
        )
    except (OSError, SafetensorError, ValueError) as broken:
        raise MODEL_BROKEN.error(folder, f"transformers cannot load it: {broken}") from broken
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    if left := {kind: sorted(info[kind]) for kind in kinds if info.get(kind)}:
        message = f"transformers reports {json.dumps(left, default=str)[:400]}"
        raise MODEL_BROKEN.error(folder, message)
    return model


def load_quantized(folder: Path, dtype: torch.dtype, device: torch.device, *, keep_few_bits: bool = False) -> Any:
    """A plain transformers model from a quantized folder, dequantized; with `keep_few_bits`, decoder layers in 8-bit
    floats or 4-bit integers stay quantized if the device can multiply them. Their modules cannot compute then:
    `quantized.fuse_linear` does. Prints a summary."""
    require("compressed_tensors", "engine")
    model = load_weights(folder, dtype).to(device)
    units = family_of_model(model).decoder_units(model) if keep_few_bits and device.type == "cuda" else []
    print(dequantize(model, dtype, units), file=sys.stderr, flush=True)
    return model.eval()


def _load(export: Path, base: Path, dtype: torch.dtype, device: torch.device) -> Any:
    return load_weights(export, dtype).to(device).eval()


WEIGHTS = ExportFormat("weights", STEM, _write, check_tensors, _load)
