"""Checks of a LoRA adapter's folder before anything is built from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from vidqa.families.model_files import ConfigTable, parse, read_json
from vidqa.families.problems import MODEL_FILE_MISSING, MODEL_UNSUPPORTED
from vidqa.families.weights import read_header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PRECISION = "base_precision"  # our key of adapter_config.json: nf4 or fp8
Rank = Annotated[int, Field(ge=1, le=65_536)]  # at most any side of the matrices that an adapter stands on
# Where a LoRA matrix's rank stands in its shape.
RANK_ROWS = (".lora_A.", ".lora_embedding_A")


class AdapterConfig(ConfigTable):
    """What PEFT builds matrices from."""

    peft_type: Literal["LORA"] = "LORA"
    r: Rank = 8
    rank_pattern: dict[str, Rank] | None = None


def check_adapter(folder: Path) -> None:
    """The ranks of adapter_config.json are numbers, and those of the matrices that are here.

    PEFT builds matrices of the configured rank before it looks at the file: a wrong one can take all memory.
    Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED.
    """
    config = parse(read_json(folder, CONFIG), "config", folder / CONFIG, AdapterConfig)
    ranks = {config.r, *(config.rank_pattern or {}).values()}
    if not (folder / WEIGHTS).is_file():
        return  # named by the check of the weights
    for name, tensor in read_header(folder / WEIGHTS).items():
        shape = tensor["shape"]
        if any(part in name for part in RANK_ROWS) and (not shape or shape[0] not in ranks):
            allowed = " or ".join(map(str, sorted(ranks)))
            raise MODEL_FILE_MISSING.error(
                folder / WEIGHTS, f"{name} has shape {shape}; {CONFIG} says rank {allowed}", "Export the adapter again."
            )


def base_precision(folder: Path) -> str | None:
    """The precision, nf4 or fp8, of the base that the adapter was trained on; None where it was not quantized."""
    return read_json(folder, CONFIG).get(PRECISION) or None


def check_base_precision(folder: Path, precision: str | None) -> None:
    """Raises MODEL_UNSUPPORTED where the adapter was trained on a base of another precision than `precision`."""
    if (trained_on := base_precision(folder)) != precision:
        message = f"the adapter was trained on a base in {trained_on or '16 bits'}, and the base here is in " + (
            precision or "16 bits"
        )
        remedy = f"set policy.quantization = {trained_on or 'null'}, or merge it: scripts/export.py RUN --merge"
        raise MODEL_UNSUPPORTED.error(folder / CONFIG, message, remedy)
