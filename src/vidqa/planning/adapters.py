"""Checks of a stored LoRA adapter: its files before anything is built from them, its matrices, and its base model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from vidqa.core.files import read_object
from vidqa.core.problem import Problem
from vidqa.core.run_folder import EXPORT
from vidqa.families.model_files import ConfigTable, parse, read_json
from vidqa.families.problems import ADAPTER_MISMATCH, MODEL_BROKEN, MODEL_UNSUPPORTED
from vidqa.families.weights import read_header
from vidqa.planning.budget.params import ADAPTER
from vidqa.planning.resume_compat import same_weights
from vidqa.spec.adapter_keys import PRECISION
from vidqa.spec.run_lookup import ADAPTER as CONFIG

WEIGHTS = "adapter_model.safetensors"
BASE_LAYER = ".base_layer."  # PEFT may store the base's embeddings beside an adapter of them
Rank = Annotated[int, Field(ge=1, le=65_536)]  # the largest side of a matrix that may have an adapter
# Parts of the names of LoRA matrices whose first dimension is the rank.
RANK_ROWS = (".lora_A.", ".lora_embedding_A")


class _PeftConfig(ConfigTable):
    """The fields of adapter_config.json that decide the shapes of PEFT's matrices."""

    peft_type: Literal["LORA"] = "LORA"
    r: Rank = 8
    rank_pattern: dict[str, Rank] | None = None


def check_adapter(folder: Path) -> None:
    """Check that the ranks in adapter_config.json are numbers and match the shapes of the stored matrices.

    PEFT builds matrices of the configured rank before it reads the weights: a wrong rank can fill all memory. Raises
    MODEL_BROKEN, MODEL_UNSUPPORTED.
    """
    config = parse(read_json(folder, CONFIG), "config", folder / CONFIG, _PeftConfig)
    ranks = {config.r, *(config.rank_pattern or {}).values()}
    if not (folder / WEIGHTS).is_file():
        return  # the check of the weights reports it
    for name, tensor in read_header(folder / WEIGHTS).items():
        shape = tensor["shape"]
        if any(part in name for part in RANK_ROWS) and (not shape or shape[0] not in ranks):
            allowed = " or ".join(map(str, sorted(ranks)))
            raise MODEL_BROKEN.error(
                folder / WEIGHTS, f"{name} has shape {shape}; {CONFIG} says rank {allowed}", "Export the adapter again."
            )


def base_precision(folder: Path) -> str | None:
    """The precision, nf4 or fp8, of the base that the adapter was trained on; None if it was not quantized."""
    return read_json(folder, CONFIG).get(PRECISION) or None


def check_base_precision(folder: Path, precision: str | None) -> None:
    """Raise MODEL_UNSUPPORTED if the adapter was trained on a base of another precision than `precision`."""
    if (trained_on := base_precision(folder)) != precision:
        ours, theirs = precision or "16 bits", trained_on or "16 bits"
        message = f"the adapter was trained on a base in {theirs}, and the base here is in {ours}"
        merge = "python scripts/export.py RUN --merge --out FOLDER"
        remedy = f"set policy.quantization = {trained_on or 'null'}, or merge it: {merge}"
        raise MODEL_UNSUPPORTED.error(folder / CONFIG, message, remedy)


def adapter_name(name: str) -> str:
    """The name in PEFT's files of a parameter of an adapter, or of a module that trains in full beside adapters."""
    name = name.replace(f".modules_to_save.{ADAPTER}.", ".")
    return "base_model.model." + name.replace(f".{ADAPTER}.", ".").removesuffix(f".{ADAPTER}")


def adapter_problems(folder: Path, shapes: Mapping[str, tuple[int, ...]], precision: str | None) -> list[Problem]:
    """MODEL_ADAPTER_MISMATCH if the tensors in an adapter's file header differ from those that a run adds to its model
    (`shapes`, by the run's parameter names). `precision` is that of the run's base (policy.quantization). Raises
    MODEL_BROKEN, and MODEL_UNSUPPORTED for an adapter of a base of another precision."""
    check_adapter(folder)
    if (folder / EXPORT).is_file():  # other programs do not record the precision
        check_base_precision(folder, precision)
    if not (folder / WEIGHTS).is_file():
        raise MODEL_BROKEN.error(folder / WEIGHTS, "the adapter has no such file")
    stored = {name: tuple(tensor["shape"]) for name, tensor in read_header(folder / WEIGHTS).items()}
    stored = {name: shape for name, shape in stored.items() if BASE_LAYER not in name}
    added = {adapter_name(name): tuple(shape) for name, shape in shapes.items()}
    problems = []
    if different := sorted(stored.keys() ^ added.keys()):
        missing = len(added.keys() - stored.keys())
        message = f"{missing} tensors of the run are missing, {len(different) - missing} in it are not the run's: "
        problems.append(ADAPTER_MISMATCH.at(folder / WEIGHTS, message + ", ".join(different[:3])))
    unlike = [name for name in stored.keys() & added.keys() if stored[name] != added[name]]
    for name in sorted(unlike)[:3]:
        message = f"{name} has shape {list(stored[name])}, the base model needs {list(added[name])}"
        problems.append(ADAPTER_MISMATCH.at(folder / WEIGHTS, message))
    return problems


def base_problems(folder: Path, base: Path) -> list[Problem]:
    """MODEL_ADAPTER_MISMATCH if an adapter of this program was trained on other weights than those in `base`. Adapters
    of other programs do not record them."""
    facts = read_object(folder / EXPORT).get("weights")
    recorded = facts.get("base_model") if isinstance(facts, dict) else None
    if not recorded or same_weights(recorded, base):
        return []
    message = f"it was trained on weights with the hash {str(recorded)[:12]}, which {base} does not have"
    return [ADAPTER_MISMATCH.at(folder, message)]
