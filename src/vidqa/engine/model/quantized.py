"""Linear layers of a quantized model for generation: weights that stay in 8 or 4 bits, or inputs that are rounded.

A number is a code times a step: each output of a weight has a step of its own, each row of an input has one, or all of
them share one that calibration found. A layer whose weight is in 8 bits multiplies codes (`torch._scaled_mm`), one in 4
bits has kernels of its own (`kernels.int4`). Of other schemes the weight is dequantized, and what the scheme does to
inputs is done by compressed-tensors' own code.

Shape letters: T tokens, D width, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from vidqa.engine.kernels import kernels_for
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.weights import INT4_GROUPS, is_float8, is_int4

CODE = torch.float8_e4m3fn
LARGEST = torch.finfo(CODE).max
LEAST = 1e-12  # of a row that is all zero
ALIGNED = 16  # numbers of a row of a factor, or a multiple
AMPERE = (8, 0)  # compute capability from which on there are products of bfloat16
SCALED_MM = (9, 0)  # compute capability from which on a product takes a scale for each row


class Rounding(NamedTuple):
    """How the input of a layer is rounded: by the step float32 [1] of all its rows, or each row by its largest."""

    step: torch.Tensor | None


class Rounded(NamedTuple):
    """Codes [T, D] and their steps float32 [T, 1]."""

    codes: torch.Tensor
    step: torch.Tensor


class Matrix(NamedTuple):
    """One product: of a layer, or of several that share an input, one below the other. With `scale`, float32 [1, O],
    the weight is codes and takes inputs that are rounded by `rounding`; with `scale_zero` [groups, O, 2], scales beside
    zeros, it is codes of 4 bits, eight in an int32; `fake_rounding` gives an input's rounded values as they are."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    rounding: Rounding | None = None
    fake_rounding: Callable[[torch.Tensor], torch.Tensor] | None = None
    scale_zero: torch.Tensor | None = None


def step_of(wide_TD: torch.Tensor) -> torch.Tensor:
    """The step [T, 1] that brings a row's largest number to the largest code."""
    return wide_TD.abs().amax(1, keepdim=True).clamp(min=LEAST) / LARGEST


def matrix_of(*layers: Any) -> Matrix:
    """Linear layers that share an input as one product. Weights in the model's own precision become views of it: no
    memory twice, and whoever writes into them writes into it."""
    if len(set(map(_kind, layers))) > 1:
        raise MODEL_UNSUPPORTED.error("config.json", "layers that share an input are quantized in different ways")
    bias = None if layers[0].bias is None else joined([layer.bias for layer in layers])
    if hasattr(layers[0], "weight_packed"):
        scale_zero = beside_zeros(torch.cat([layer.weight_scale.data for layer in layers]))
        for layer, part in zip(layers, scale_zero.split([layer.out_features for layer in layers], 1), strict=True):
            layer.weight_scale.data = part[:, :, 0].t()  # no memory twice
        return Matrix(joined([layer.weight_packed for layer in layers]), bias, scale_zero=scale_zero)
    weight = joined([layer.weight for layer in layers])
    if weight.dtype != CODE:
        return Matrix(weight, bias, fake_rounding=_fake_rounding(layers[0]))
    scales = [layer.weight_scale.data.float().reshape(-1).expand(len(layer.weight)) for layer in layers]
    steps = [layer.input_scale.data.float().reshape(1) for layer in layers if hasattr(layer, "input_scale")]
    # Layers that share an input were calibrated on the same numbers; where their steps differ, the largest cuts none.
    rounding = Rounding(torch.stack(steps).amax(0) if steps else None)
    return Matrix(weight, bias, torch.cat(scales)[None].contiguous(), rounding)


def beside_zeros(scale_OG: torch.Tensor) -> torch.Tensor:
    """Scales as PyTorch's product of 4-bit codes takes them: [G, O, 2]."""
    return torch.stack([scale_OG.t(), torch.zeros_like(scale_OG.t())], -1)


def _kind(layer: Any) -> str:
    """The same for layers that can be one product."""
    if hasattr(layer, "weight_packed"):
        return f"int4, groups of {layer.in_features // layer.weight_scale.shape[1]}"
    return str((layer.weight.dtype, getattr(layer, "quantization_scheme", None)))


def joined(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Parameters one below the other, of which they become views."""
    if len(parameters) == 1:
        return parameters[0].data
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = part
    return whole


def product(kernels: Any, hidden: torch.Tensor | Rounded, matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
    """[T, O] in the model's precision. Inputs are rounded here where the kernel before has not done so."""
    if matrix.scale_zero is not None:
        assert isinstance(hidden, torch.Tensor)
        output = kernels.int4_product(hidden, matrix.weight, matrix.scale_zero)
        return output if matrix.bias is None else output + matrix.bias
    if matrix.scale is None:
        assert isinstance(hidden, torch.Tensor)
        return F.linear(
            hidden if matrix.fake_rounding is None else matrix.fake_rounding(hidden), matrix.weight, matrix.bias
        )
    if isinstance(hidden, torch.Tensor):
        hidden = kernels.rounded(hidden, matrix.rounding)
    output = kernels.float8_product(*hidden, matrix.weight, matrix.scale, dtype)
    return output if matrix.bias is None else output + matrix.bias


def _fake_rounding(layer: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What the layer's scheme does to its input; layers that share an input share a scheme."""
    scheme = getattr(layer, "quantization_scheme", None)
    if scheme is None or scheme.input_activations is None:
        return None
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize

    # Of a matrix it would make one step for all tokens; its own layers have a dimension more.
    return lambda hidden_TD: forward_quantize(layer, hidden_TD[None], "input", scheme.input_activations)[0]


def require_plain_inputs(*modules: nn.Module) -> None:
    """Raises MODEL_UNSUPPORTED for layers whose scheme rounds inputs, in modules whose forward here does not."""
    rounding = [
        name
        for module in modules
        for name, layer in module.named_modules()
        if (scheme := getattr(layer, "quantization_scheme", None)) and scheme.input_activations
    ]
    if rounding:
        message = f"inputs of {len(rounding)} layers outside of the decoder's are rounded, first {rounding[0]!r}"
        raise MODEL_UNSUPPORTED.error("config.json", message, "Answer with the generator transformers.")


def dequantize(model: Any, dtype: torch.dtype, keep: Sequence[nn.Module]) -> str:
    """Give a model that transformers loaded from a quantized folder its weights in `dtype`; those in `keep` that can
    multiply in 8-bit floats or 4-bit integers stay as they are. Returns what was done, in words."""
    # Attention has a scheme, too, where a cache in 8 bits has scales.
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    quantized = {name: module for name, module in linear.items() if hasattr(module, "quantization_scheme")}
    inside = {id(module) for unit in keep for module in unit.modules()}
    reasons = {name: _why_not(module, dtype, id(module) in inside) for name, module in quantized.items()}
    few_bits = [module for name, module in quantized.items() if not reasons[name]]
    for module in few_bits:
        del module.quantization_scheme  # so that it is no quantized layer to compressed-tensors
        if hasattr(module, "weight_packed"):
            module.weight_scale.data = module.weight_scale.data.to(dtype)
            packed: Any = module.weight_packed
            packed.data = kernels_for(packed.device).int4_order(packed.data)
    model.hf_quantizer.compressor.decompress_model(model)
    for name, module in quantized.items():
        if reasons[name]:
            module.weight.data = module.weight.data.to(dtype)
    int4, left = sum(hasattr(module, "weight_packed") for module in few_bits), len(quantized) - len(few_bits)
    why = next((reason for reason in reasons.values() if reason), "")
    words = [f"{len(few_bits) - int4} layers multiply in 8-bit floats"] * (len(few_bits) > int4)
    words += [f"{int4} layers multiply in 4-bit integers"] * bool(int4)
    words += [f"{left} layers are dequantized to {str(dtype).removeprefix('torch.')} ({why})"] * bool(left)
    words += ["the cache of keys and values is not in 8 bits: its scales are not applied"] * _has_cache_scales(model)
    return "quantized weights: " + "; ".join(words)


def _has_cache_scales(model: Any) -> bool:
    return any(hasattr(module, "k_scale") for module in model.modules())


def _why_not(layer: Any, dtype: torch.dtype, keep: bool) -> str:
    """Why a layer's weight cannot stay as it is; empty where it can."""
    weight, scheme = getattr(layer, "weight", None), layer.quantization_scheme.model_dump()
    if not keep:
        return "this generator computes in that precision"
    if hasattr(layer, "weight_packed") and is_int4(scheme):
        return _why_not_int4(layer, scheme["weights"]["group_size"], dtype)
    if weight is None or weight.dtype != CODE or not is_float8(scheme):
        groups = ", ".join(map(str, INT4_GROUPS))
        return f"the scheme is not one of FP8_DYNAMIC, FP8 and W4A16 in groups of {groups}"
    if any(size % ALIGNED for size in weight.shape):
        return f"the shape {list(weight.shape)} is no multiple of {ALIGNED}"
    if weight.is_cuda and (dtype != torch.bfloat16 or torch.cuda.get_device_capability(weight.device) < SCALED_MM):
        return "this GPU or precision has no product of 8-bit floats with a scale for each row"
    return ""


def _why_not_int4(layer: Any, group_size: int, dtype: torch.dtype) -> str:
    packed, width = layer.weight_packed, layer.in_features
    if hasattr(layer, "weight_g_idx") or hasattr(layer, "weight_zero_point"):
        return "its groups are not runs of inputs, or not symmetric"
    if group_size * layer.weight_scale.shape[1] != width:
        return f"groups of {group_size} do not divide {width} inputs"
    if not packed.is_cuda:
        return ""
    if dtype != torch.bfloat16 or torch.cuda.get_device_capability(packed.device) < AMPERE:
        return "this GPU or precision has no product of 4-bit integers"
    if len(packed) % 8 or width % 32:
        return f"the shape {[len(packed), width]} is none of the 4-bit product"
    return ""
