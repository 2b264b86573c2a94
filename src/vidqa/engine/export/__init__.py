"""Exports: weights for transformers, PEFT and vLLM, and the proof that an export is correct.

    <run>/safetensors/<name>/   a full fine-tune: the model folder again, with the trained weights
                                LoRA: adapter_config.json and adapter_model.safetensors for stock PEFT
    merged                      LoRA merged into its base, as a model folder; written by scripts/export.py
All carry the complete processor and tokenizer of the base model.
"""

from pathlib import Path
from typing import Any

import torch

from vidqa.engine.export._base import ExportFormat
from vidqa.engine.export.adapter import ADAPTER
from vidqa.engine.export.weights import WEIGHTS, load_quantized
from vidqa.families import quantization_of, require_plain_weights


def format_for(lora: Any) -> ExportFormat:
    """The export format of a run with this `policy.lora`."""
    return WEIGHTS if lora is None else ADAPTER


def load_export(
    export: Path, base: Path | None, dtype: torch.dtype, device: torch.device, *, keep_few_bits: bool = False
) -> Any:
    """A plain transformers model from an export or any model folder; with `base`, `export` is an adapter, which stock
    PEFT loads and merges. Quantized weights are dequantized, except with `keep_few_bits` those that `load_quantized`
    keeps. Raises MODEL_BROKEN for a missing or surplus tensor, and MODEL_QUANTIZED for a quantized base."""
    if base is not None:
        require_plain_weights(base, "an adapter is put on")
        return ADAPTER.load(export, base, dtype, device)
    if quantization_of(export):
        return load_quantized(export, dtype, device, keep_few_bits=keep_few_bits)
    return WEIGHTS.load(export, export, dtype, device)
