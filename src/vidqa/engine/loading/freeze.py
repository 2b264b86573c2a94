"""Selection of trainable parameters by patterns and by LoRA through PEFT; names of PEFT's parameters; counts of
trainable parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import nn

from vidqa.engine.model.quantized_base import quantized_layers
from vidqa.engine.problems import ENGINE_NOTHING_TRAINS
from vidqa.planning.budget.params import ADAPTER, is_all_linear, is_trained

if TYPE_CHECKING:
    from peft import LoraConfig  # importing it takes seconds where bitsandbytes is installed


def choose_trainable(model: nn.Module, policy: Any) -> None:
    """Apply `policy.lora`, `policy.freeze_pattern` and `policy.trainable_pattern` (a PolicySpec) in place to a model on
    any device, also meta. Raises ENGINE_NOTHING_TRAINS."""
    if policy.lora is not None:
        _add_lora(model, policy.lora)
    for name, parameter in model.named_parameters():
        if not is_trained(name, policy):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ENGINE_NOTHING_TRAINS.error("policy", "freeze_pattern and trainable_pattern leave nothing to train")


def lora_config(lora: Any) -> LoraConfig:
    """PEFT's configuration for the spec's `policy.lora`."""
    from peft import LoraConfig

    targets = "all-linear" if is_all_linear(lora.target_modules) else lora.target_modules
    return LoraConfig(
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=targets,
        modules_to_save=lora.modules_to_save or None,
        use_rslora=lora.use_rslora,
        rank_pattern=lora.r_pattern or {},
        alpha_pattern=lora.alpha_pattern or {},
        init_lora_weights=lora.init_lora_weights,
        task_type="CAUSAL_LM",
    )


def _add_lora(model: nn.Module, lora: Any) -> None:
    from peft import inject_adapter_in_model

    try:
        inject_adapter_in_model(lora_config(lora), model, ADAPTER, low_cpu_mem_usage=True)
    except ValueError as missing:
        raise ENGINE_NOTHING_TRAINS.error("policy.lora.target_modules", str(missing)) from missing
    # From here on PEFT sets requires_grad: False for the base, True for adapters and for copies in modules_to_save.


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name is a LoRA matrix, A or B."""
    return ".lora_" in name


def is_added(name: str) -> bool:
    """Whether a parameter of this name belongs in an adapter folder: a LoRA matrix, or the trained copy of a module in
    modules_to_save."""
    return is_adapter(name) or ".modules_to_save." in name


def base_module(module: Any) -> nn.Module:
    """The module with the base model's weights: `module`, or the module inside PEFT's wrapper for LoRA or for
    modules_to_save."""
    return getattr(module, "base_layer", None) or getattr(module, "original_module", module)


def base_name(name: str) -> str:
    """The name of a parameter in the base model's safetensors, without the prefixes and suffixes of PEFT's wrappers."""
    name = name.replace(".base_layer.", ".").replace(".original_module.", ".")
    return name.replace(f".modules_to_save.{ADAPTER}.", ".")


def trainable_table(model: nn.Module) -> list[dict[str, Any]]:
    """The numbers of all and of trainable parameters for each part of the model, for `run.json` and the log. A sharded
    parameter counts in whole, weights of quantized layers by their number before quantization."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, parameter in model.named_parameters():
        row = counts[_part(name)]
        row[0] += parameter.numel()
        row[1] += parameter.numel() if parameter.requires_grad else 0
    for name, layer in quantized_layers(model):
        counts[f"{_part(name)} ({layer.precision})"][0] += layer.out_features * layer.in_features
    return [{"part": part, "parameters": total, "trainable": trained} for part, (total, trained) in counts.items()]


def _part(name: str) -> str:
    """A parameter's part of the model: its name up to the layer index."""
    part = re.sub(r"\.\d+\..*", "", name.removeprefix("model."))
    part = re.sub(r"\.(weight|bias)$", "", part)
    return f"{part} (LoRA)" if is_adapter(name) else part
