"""The recipe that llm-compressor applies to the decoder of a model, from the spec's table `quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from vidqa.core._optional import GPU_UNFIT, require
from vidqa.engine.families import family_of
from vidqa.planning.quantization import QuantizationPlan
from vidqa.spec.quantize_tables import GROUPED, is_smoothed, method_of

# Activations after a norm are scaled down, and the weights that read them up.
SMOOTHED = [
    [["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*input_layernorm"],
    [["re:.*gate_proj", "re:.*up_proj"], "re:.*post_attention_layernorm"],
]


def compress(model: Any, plan: QuantizationPlan, quantize: Any, source: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Quantize the planned layers of a stock model in place, running only its decoder: `rows`, the decoder's inputs,
    include vision features, so that samples with any kinds of media calibrate the same traced forward. Without `rows`
    weights are rounded without data. Raises ENV_GPU_UNFIT for AWQ without a GPU."""
    oneshot = require("llmcompressor", "quantize").oneshot
    if method_of(quantize) == "awq" and not torch.cuda.is_available():
        raise GPU_UNFIT.error(
            "quantize.method", "AWQ needs a GPU, and there is none", "leave it at auto, which uses GPTQ, or use a GPU"
        )
    layers = family_of(model).decoder_layers
    decoder = model.get_submodule(layers.rpartition(".")[0])
    decoder.config._name_or_path = str(source)
    prefix = f"{layers.rpartition('.')[0]}."
    data: dict[str, Any] = {}
    if rows:
        loader: Any = DataLoader(rows, batch_size=None, shuffle=False)  # type: ignore[arg-type]
        targets = sorted({type(layer).__name__ for layer in model.get_submodule(layers)})
        data = {"dataset": loader, "sequential_targets": targets, "pipeline": "sequential"}
    oneshot(model=decoder, recipe=recipe(quantize, [name.removeprefix(prefix) for name in plan.unquantized]), **data)
    round_weights(model, plan)


def round_weights(model: Any, plan: QuantizationPlan) -> None:
    """Round the weights of the planned layers in memory to the values in files. The library rounds them at every use
    and again when it writes, with different kernels on a GPU and on the host, which differ for values between two
    codes. A rounded weight is rounded to itself by both."""
    from compressed_tensors.offload import update_offload_parameter
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize

    for name in plan.modules:
        layer = model.get_submodule(name)
        rounded = forward_quantize(layer, layer.weight, "weight", layer.quantization_scheme.weights)
        update_offload_parameter(layer, "weight", rounded)


def recipe(quantize: Any, ignored: list[str]) -> list[Any]:
    """The modifiers of llm-compressor; `ignored` are layers that stay unquantized, by their names in the decoder."""
    from compressed_tensors.quantization import QuantizationArgs, preset_name_to_scheme
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    method, steps = method_of(quantize), list[Any]()
    if is_smoothed(quantize):
        from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

        steps.append(SmoothQuantModifier(smoothing_strength=quantize.smoothing_strength, mappings=SMOOTHED))
    if method == "awq":
        from llmcompressor.modifiers.transform.awq import AWQModifier
        from llmcompressor.modifiers.transform.awq.mappings import default_mappings

        steps.append(AWQModifier(duo_scaling=False, mappings=default_mappings))
    scheme = preset_name_to_scheme(quantize.quantization_scheme, ["Linear"])
    if quantize.quantization_scheme in GROUPED:
        scheme.weights.group_size = quantize.group_size
    options: dict[str, Any] = {"config_groups": {"group_0": scheme}, "ignore": ignored}
    if quantize.kv_precision == "fp8":
        options["kv_cache_scheme"] = QuantizationArgs(num_bits=8, type="float", strategy="tensor", dynamic=False)
    steps.append((GPTQModifier if method == "gptq" else QuantizationModifier)(**options))
    return steps
