"""Whether the weights of a model folder are quantized, and how: from its config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_QUANTIZED
from vidqa.families.weights import weight_bytes

TABLES = ("quantization_config", "compression_config")  # in config.json; the second one's name is an older one
OTHER_FILE = "hf_quant_config.json"  # of modelopt
INT4_GROUPS = (32, 64, 128, 256)  # inputs that share a scale, of which there is a product of 4-bit weights
READABLE = "compressed-tensors"  # the method whose folders this program answers with


def quantization_of(folder: Path) -> dict[str, Any]:
    """The quantization table of a folder that compressed-tensors reads; empty where its weights are not quantized.
    Raises MODEL_QUANTIZED for every other method, and MODEL_FILE_MISSING."""
    config = read_json(folder, "config.json")
    if (folder / OTHER_FILE).is_file():
        raise MODEL_QUANTIZED.error(folder / OTHER_FILE, "this file is that of a quantized model")
    table = config.get(TABLES[0])
    if (
        isinstance(table, dict)
        and table.get("quant_method") == READABLE
        and isinstance(table.get("config_groups"), dict)
    ):
        return table
    # transformers takes the key from the whole model's table or from one of its parts'; other tools leave a file.
    parts = {"": config, **{f"{name}.": value for name, value in config.items() if isinstance(value, dict)}}
    for prefix, part in parts.items():
        for key in TABLES:
            if quantization := part.get(key):
                method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
                message = f"{prefix}{key} says that the weights are quantized ({method})"
                raise MODEL_QUANTIZED.error(folder / "config.json", message)
    return {}


def require_plain_weights(folder: Path, purpose: str) -> None:
    """Raises MODEL_QUANTIZED where the weights are quantized; `purpose` is what needs them as they were."""
    if table := quantization_of(folder):
        message = f"{purpose} a model whose weights are quantized ({table.get('format', READABLE)})"
        raise MODEL_QUANTIZED.error(folder / "config.json", message)


def kept_bytes(folder: Path) -> int:
    """Bytes that the native generator holds of the weights of a folder on a GPU, where its layers multiply in 8-bit
    floats (FP8_DYNAMIC, FP8) or in 4-bit integers (W4A16): those of the files. 0 for every other."""
    groups = (quantization_of(folder).get("config_groups") or {}).values()
    few_bits = groups and (all(map(is_float8, groups)) or all(map(is_int4, groups)))
    return weight_bytes(folder).bytes if few_bits else 0


def is_int4(group: Any) -> bool:
    """Whether the layers of a group of compressed-tensors have symmetric weights in 4-bit integers, of which runs of
    inputs share a scale, and take inputs as they are."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or group.get("input_activations"):
        return False
    kind = tuple(weights.get(name) for name in ("num_bits", "type", "strategy", "symmetric"))
    return kind == (4, "int", "group", True) and weights.get("group_size") in INT4_GROUPS


def is_float8(group: Any) -> bool:
    """Whether the layers of a group of compressed-tensors multiply in 8-bit floats: inputs that have a step for each
    row, or one that calibration found, and weights with a step for each row or one for all."""
    table: Any = group if isinstance(group, dict) else {}
    weights, inputs = table.get("weights"), table.get("input_activations")
    for part in (weights, inputs):
        if not isinstance(part, dict) or (part.get("num_bits"), part.get("type")) != (8, "float"):
            return False
    steps = (inputs.get("strategy"), inputs.get("dynamic"))
    return weights.get("strategy") in ("channel", "tensor") and steps in (("token", True), ("tensor", False))
