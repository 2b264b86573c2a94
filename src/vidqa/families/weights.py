"""The weights of a model folder: headers of its safetensors files, completeness check, quantization."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem, ProblemError
from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_BROKEN, MODEL_QUANTIZED

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # bytes; the format's own limit
MAX_AXES = 64  # of a tensor; no library supports more
UNREADABLE = (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError, RecursionError)
QUANTIZATION_KEYS = ("quantization_config", "compression_config")  # in config.json; the second is an older name
MODELOPT_FILE = "hf_quant_config.json"  # written by modelopt
INT4_GROUPS = (32, 64, 128, 256)  # numbers of inputs per scale for which there is a 4-bit matrix product
READABLE = "compressed-tensors"  # the quantization method whose folders this program can run


@dataclass(frozen=True)
class Weights:
    """Counts of a folder's safetensors files."""

    parameters: int
    bytes: int


def weight_bytes(folder: Path) -> Weights:
    """Parameters and bytes of a model folder, from the files' headers; from the index if the files are not here yet.

    Raises MODEL_BROKEN.
    """
    files = weight_files(folder)
    if not files and (folder / INDEX).is_file():
        total = int(_index(folder)["metadata"]["total_size"])
        return Weights(total // 2, total)  # published weights are bf16
    return Weights(sum(parameters_by_name(folder).values()), sum(path.stat().st_size for path in files))


def parameters_by_name(folder: Path) -> dict[str, int]:
    """The number of elements of every tensor in the existing files. Raises MODEL_BROKEN."""
    headers = [read_header(path) for path in weight_files(folder)]
    return {name: math.prod(tensor["shape"]) for header in headers for name, tensor in header.items()}


def weight_files(folder: Path) -> list[Path]:
    """The existing safetensors files of the model."""
    if (folder / INDEX).is_file():
        names = sorted(set(_index(folder)["weight_map"].values()))
    else:
        names = ["model.safetensors", "adapter_model.safetensors"]
    return [folder / name for name in names if (folder / name).is_file()]


def check_weights(folder: Path) -> list[Problem]:
    """Check the index against files: every file complete, every tensor of the index in its file."""
    if not (folder / INDEX).is_file():
        files = weight_files(folder)
        if not files:
            return [MODEL_BROKEN.at(folder, f"there is neither model.safetensors nor {INDEX}")]
        return [problem for path in files for problem in _broken(path, set())]
    try:
        placed: dict[str, set[str]] = {}
        for tensor, name in _index(folder)["weight_map"].items():
            placed.setdefault(name, set()).add(tensor)
    except ProblemError as stopped:
        return stopped.problems
    return [problem for name, tensors in sorted(placed.items()) for problem in _broken(folder / name, tensors)]


def read_header(path: Path) -> dict[str, Any]:
    """Read the header of a safetensors file: {name: {dtype, shape, data_offsets}}. Raises MODEL_BROKEN."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise MODEL_BROKEN.error(path, f"its header claims {length} bytes")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            _check_tensor(name, tensor)
        end = 8 + length + max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    except UNREADABLE as broken:
        raise MODEL_BROKEN.error(path, f"its header cannot be read: {_reason(broken)}") from broken
    if path.stat().st_size != end:
        raise MODEL_BROKEN.error(path, f"it has {path.stat().st_size} bytes; its header describes {end}")
    return header


def _check_tensor(name: str, tensor: dict[str, Any]) -> None:
    """Raise ValueError (TypeError, KeyError) for an invalid description of a tensor."""
    begin, end = tensor["data_offsets"]
    shape = tensor["shape"]
    if not isinstance(tensor["dtype"], str) or not isinstance(shape, list) or len(shape) > MAX_AXES:
        raise ValueError(f"{name[:80]!r} has no type or no shape")
    sizes = (begin, end - begin, *shape)
    if not all(type(size) is int and size >= 0 for size in sizes) or math.prod(shape) > 8 * (end - begin):
        raise ValueError(f"{name[:80]!r} has a shape that does not match its bytes")


def _reason(broken: Exception) -> str:
    return "nested too deeply" if isinstance(broken, RecursionError) else f"{type(broken).__name__}: {broken}"


def _broken(path: Path, tensors: set[str]) -> list[Problem]:
    if not path.is_file():
        return [MODEL_BROKEN.at(path, f"{INDEX} lists this file, but it does not exist")]
    try:
        missing = sorted(tensors - read_header(path).keys())
    except ProblemError as stopped:
        return stopped.problems
    if missing:
        return [MODEL_BROKEN.at(path, f"{len(missing)} tensors of {INDEX} are missing in it, first {missing[0]!r}")]
    return []


def _index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(name, str) for name in index["weight_map"].values()):
            raise ValueError("weight_map has a value that is not a file name")
        total = index.setdefault("metadata", {}).setdefault("total_size", 0)
        if isinstance(total, bool) or not isinstance(total, (int, float)) or not 0 <= total < math.inf:
            raise ValueError("metadata.total_size is not a number of bytes")
        return index
    except UNREADABLE as broken:
        raise MODEL_BROKEN.error(path, f"the index cannot be read: {_reason(broken)}") from broken


def quantization_of(folder: Path) -> dict[str, Any]:
    """The quantization table of a compressed-tensors folder; empty if its weights are not quantized.
    Raises MODEL_QUANTIZED for every other method, and MODEL_BROKEN."""
    config = read_json(folder, "config.json")
    if (folder / MODELOPT_FILE).is_file():
        raise MODEL_QUANTIZED.error(folder / MODELOPT_FILE, "this file belongs to a quantized model")
    table = config.get(QUANTIZATION_KEYS[0])
    if (
        isinstance(table, dict)
        and table.get("quant_method") == READABLE
        and isinstance(table.get("config_groups"), dict)
    ):
        return table
    # transformers reads the key from the whole model's table or from one of its parts; other tools write a file.
    parts = {"": config, **{f"{name}.": value for name, value in config.items() if isinstance(value, dict)}}
    for prefix, part in parts.items():
        for key in QUANTIZATION_KEYS:
            if quantization := part.get(key):
                method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
                message = f"{prefix}{key} says that the weights are quantized ({method})"
                raise MODEL_QUANTIZED.error(folder / "config.json", message)
    return {}


def require_plain_weights(folder: Path, purpose: str) -> None:
    """Raise MODEL_QUANTIZED if the weights are quantized; `purpose` is the operation that needs unquantized ones."""
    if table := quantization_of(folder):
        message = f"{purpose} a model whose weights are quantized ({table.get('format', READABLE)})"
        raise MODEL_QUANTIZED.error(folder / "config.json", message)


def quantized_bytes(folder: Path) -> int:
    """Bytes of a folder's weights on a GPU in the native generator, if its layers multiply in 8-bit floats
    (FP8_DYNAMIC, FP8) or 4-bit integers (W4A16): the size of the files. 0 for others."""
    groups = (quantization_of(folder).get("config_groups") or {}).values()
    few_bits = groups and (all(map(is_float8, groups)) or all(map(is_int4, groups)))
    return weight_bytes(folder).bytes if few_bits else 0


def is_int4(group: Any) -> bool:
    """Whether the layers of a compressed-tensors group have symmetric 4-bit integer weights with one scale per group of
    inputs, and unquantized inputs."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or group.get("input_activations"):
        return False
    kind = tuple(weights.get(name) for name in ("num_bits", "type", "strategy", "symmetric"))
    return kind == (4, "int", "group", True) and weights.get("group_size") in INT4_GROUPS


def is_float8(group: Any) -> bool:
    """Whether the layers of a compressed-tensors group multiply in 8-bit floats: inputs with a dynamic scale per row or
    a calibrated one, and weights with a scale per row or a single one."""
    table: Any = group if isinstance(group, dict) else {}
    weights, inputs = table.get("weights"), table.get("input_activations")
    for part in (weights, inputs):
        if not isinstance(part, dict) or (part.get("num_bits"), part.get("type")) != (8, "float"):
            return False
    steps = (inputs.get("strategy"), inputs.get("dynamic"))
    return weights.get("strategy") in ("channel", "tensor") and steps in (("token", True), ("tensor", False))
