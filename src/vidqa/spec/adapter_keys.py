"""The values of policy.lora in a stored adapter, for a training that continues it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from vidqa.core.files import read_json
from vidqa.spec.problems import NO_RUN, NOT_SUPPORTED
from vidqa.spec.run_lookup import ADAPTER

# Key to PEFT field. Dropout is not part of the trained weights, so that a spec may have another value.
FIELDS = {
    "r": "r",
    "lora_alpha": "lora_alpha",
    "target_modules": "target_modules",
    "modules_to_save": "modules_to_save",
    "r_pattern": "rank_pattern",
    "alpha_pattern": "alpha_pattern",
    "use_rslora": "use_rslora",
}
DEFAULTS = {"r": 8, "lora_alpha": 8}
# Fields that change the meaning of the stored matrices, with their values for no effect.
UNUSED = {
    "use_dora": (None, False),
    "lora_bias": (None, False),
    "bias": (None, "none"),
    "fan_in_fan_out": (None, False),
    "layers_to_transform": (None, []),
    "exclude_modules": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
}
MERGE = "merge it with PEFT (merge_and_unload) and train from the merged folder"
PRECISION = "base_precision"  # a field of this program's adapters with a quantized base model
MATRIX = re.compile(r"^base_model\.model\.(.+)\.lora_(embedding_)?A(\.weight)?$")


def read_config(folder: Path) -> dict[str, Any]:
    """Read adapter_config.json of `folder`. Raises SPEC_PARENT_RUN."""
    try:
        config = read_json(folder / ADAPTER)
    except (OSError, ValueError) as broken:
        raise NO_RUN.error(folder / ADAPTER, f"it cannot be read: {broken}") from broken
    if not isinstance(config, dict) or not isinstance(config.get("base_model_name_or_path") or "", str):
        raise NO_RUN.error(folder / ADAPTER, "base_model_name_or_path must be a text")
    return config


def adapter_keys(folder: Path) -> dict[str, Any]:
    """Values of policy.lora for the adapter in `folder`. Raises SPEC_PARENT_RUN, and SPEC_NOT_SUPPORTED for an adapter
    that training cannot continue."""
    config = read_config(folder)
    if (kind := config.get("peft_type", "LORA")) != "LORA":
        raise NOT_SUPPORTED.error(folder / ADAPTER, f"peft_type is {kind!r}; adapters of LoRA are continued", MERGE)
    for name, empty in UNUSED.items():
        if (value := config.get(name)) not in empty:
            raise NOT_SUPPORTED.error(folder / ADAPTER, f"{name} is {value!r:.60}", MERGE)
    values = {key: config.get(name, DEFAULTS.get(key)) or None for key, name in FIELDS.items()}
    values["use_rslora"] = bool(values["use_rslora"])
    if isinstance(values["lora_alpha"], int):
        values["lora_alpha"] = float(values["lora_alpha"])
    if isinstance(targets := values["target_modules"], str) and targets != "all-linear":  # a regular expression
        values["target_modules"] = _adapted_modules(folder)
    elif isinstance(targets, list):
        values["target_modules"] = sorted(map(str, targets))
    return values


def differences(folder: Path, lora: Any) -> list[tuple[str, Any, Any]]:
    """(key, adapter's value, spec's value) for each value of policy.lora that differs from the adapter."""
    return [
        (key, stored, value)
        for key, stored in adapter_keys(folder).items()
        if _plain(stored) != _plain(value := getattr(lora, key))
    ]


def base_of(folder: Path) -> str:
    """The base model in an adapter's config: a folder, hf_model://org/name, or "" if there is none."""
    name = read_config(folder).get("base_model_name_or_path") or ""
    is_hub = name and not os.path.isdir(name) and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)
    return f"hf_model://{name}" if is_hub else name


def _plain(value: Any) -> Any:
    """Normalize a value for comparison: one empty value, lists sorted, patterns in order: the first match decides."""
    value = tuple(value.items()) if isinstance(value, dict) else value
    return sorted(map(str, value)) if isinstance(value, list) else value or None


def _adapted_modules(folder: Path) -> list[str]:
    """The names of the modules with stored matrices, from the file's header."""
    path = folder / "adapter_model.safetensors"
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        if not isinstance(header, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError, RecursionError, MemoryError, OverflowError) as broken:
        raise NO_RUN.error(path, f"its header cannot be read: {broken}") from broken
    matches = map(MATRIX.match, header)
    return sorted({match.group(1) for match in matches if match})


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and not a whole model."""
    return os.path.isfile(folder / ADAPTER) and not os.path.isfile(folder / "config.json")
