"""Linear layers of a quantized model for generation: weights in 8 or 4 bits, or quantized inputs.

A quantized value is a code times a scale. A weight has one scale per output channel (8 bits) or per group of inputs (4
bits); an input has one scale per token, computed at run time, or one calibrated scale for all tokens. Weights in
8 bits are multiplied directly (`torch._scaled_mm`), weights in 4 bits by special kernels (`kernels.int4`). For
all other schemes the weight is dequantized when the model is loaded, and compressed-tensors quantizes the inputs.

Shape letters: T tokens, D inputs of a layer, O outputs, G groups of inputs that share a scale.
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

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = torch.finfo(FLOAT8).max
MIN_ABSMAX = 1e-12  # keeps the scale of an all-zero row from being 0
SCALED_MM_MULTIPLE = 16  # torch._scaled_mm takes only sizes that are multiples of it
AMPERE = (8, 0)  # first compute capability with bfloat16 fused products
HOPPER = (9, 0)  # first compute capability with 8-bit products that take one scale per row


class InputQuantization(NamedTuple):
    """Quantization of a layer's input to 8 bits: with the calibrated `static_scale`, float32 [1], or if it is None with
    a scale per token, computed from the token's largest absolute value."""

    static_scale: torch.Tensor | None


class QuantizedInput(NamedTuple):
    """An input in 8 bits: codes, float8 [T, D], and the scale of each token, float32 [T, 1]."""

    codes: torch.Tensor
    scale: torch.Tensor


class FusedLinear(NamedTuple):
    """The weights of one fused product: of one linear layer, or of several that share an input, concatenated along
    their outputs. The optional fields distinguish the formats:

    weight                the model's precision or float8 [O, D], or int32 with eight 4-bit codes in a word
    bias                  [O], in the model's precision
    scale                 float32 [1, O]; set for a float8 weight
    input_quantization    quantization of the input to float8; set for a float8 weight
    fake_quantize         quantizes an input [T, D] and dequantizes it again; set if the scheme quantizes inputs of a
                          dequantized weight
    scale_zero            [G, O, 2], scales and zero points; set for a 4-bit weight
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    input_quantization: InputQuantization | None = None
    fake_quantize: Callable[[torch.Tensor], torch.Tensor] | None = None
    scale_zero: torch.Tensor | None = None


def token_scales(wide_TD: torch.Tensor) -> torch.Tensor:
    """Scales, float32 [T, 1], that map each token's largest absolute value to the largest float8."""
    return wide_TD.abs().amax(1, keepdim=True).clamp(min=MIN_ABSMAX) / FLOAT8_MAX


def fuse_linear(*layers: Any) -> FusedLinear:
    """Fuse linear layers that share an input. The layers' own parameters become views of the fused weight, so that
    nothing is stored twice and a later write into a layer changes the fused weight. Raises MODEL_UNSUPPORTED if the
    layers are quantized in different ways."""
    if len(set(map(_weight_format, layers))) > 1:
        raise MODEL_UNSUPPORTED.error("config.json", "layers that share an input are quantized in different ways")
    bias = None if layers[0].bias is None else concatenated_views([layer.bias for layer in layers])
    if hasattr(layers[0], "weight_packed"):
        scale_zero = with_zeros(torch.cat([layer.weight_scale.data for layer in layers]))
        for layer, part in zip(layers, scale_zero.split([layer.out_features for layer in layers], 1), strict=True):
            layer.weight_scale.data = part[:, :, 0].t()  # a view: scales are not stored twice
        packed = concatenated_views([layer.weight_packed for layer in layers])
        return FusedLinear(packed, bias, scale_zero=scale_zero)
    weight = concatenated_views([layer.weight for layer in layers])
    if weight.dtype != FLOAT8:
        return FusedLinear(weight, bias, fake_quantize=_fake_quantize(layers[0]))
    scales = [layer.weight_scale.data.float().reshape(-1).expand(len(layer.weight)) for layer in layers]
    input_scales = [layer.input_scale.data.float().reshape(1) for layer in layers if hasattr(layer, "input_scale")]
    # Layers that share an input were calibrated on the same values; if scales differ, the largest clips nothing.
    input_quantization = InputQuantization(torch.stack(input_scales).amax(0) if input_scales else None)
    return FusedLinear(weight, bias, torch.cat(scales)[None].contiguous(), input_quantization)


def with_zeros(scale_OG: torch.Tensor) -> torch.Tensor:
    """Scales with zero points of 0, [G, O, 2], the layout of PyTorch's 4-bit product."""
    return torch.stack([scale_OG.t(), torch.zeros_like(scale_OG.t())], -1)


def _weight_format(layer: Any) -> str:
    """A key that is equal for layers that can be fused."""
    if hasattr(layer, "weight_packed"):
        return f"int4, groups of {layer.in_features // layer.weight_scale.shape[1]}"
    return str((layer.weight.dtype, getattr(layer, "quantization_scheme", None)))


def concatenated_views(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Parameters concatenated along dimension 0; they become views of the result."""
    if len(parameters) == 1:
        return parameters[0].data
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = part
    return whole


def linear(kernels: Any, hidden: torch.Tensor | QuantizedInput, fused: FusedLinear, dtype: torch.dtype) -> torch.Tensor:
    """The output [T, O] in `dtype`, the model's precision. `hidden` is [T, D]; it is quantized here if the weight needs
    it and the previous kernel has not done so. `kernels` is the module of the device (`kernels_for`)."""
    if fused.scale_zero is not None:
        assert isinstance(hidden, torch.Tensor)
        output = kernels.int4_product(hidden, fused.weight, fused.scale_zero)
        return output if fused.bias is None else output + fused.bias
    if fused.scale is None:
        assert isinstance(hidden, torch.Tensor)
        inputs = hidden if fused.fake_quantize is None else fused.fake_quantize(hidden)
        return F.linear(inputs, fused.weight, fused.bias)
    if isinstance(hidden, torch.Tensor):
        hidden = kernels.quantize_rows(hidden, fused.input_quantization)
    output = kernels.float8_product(*hidden, fused.weight, fused.scale, dtype)
    return output if fused.bias is None else output + fused.bias


def _fake_quantize(layer: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The function that quantizes and dequantizes a layer's input; None if its scheme does not quantize inputs. Layers
    that share an input share a scheme."""
    scheme = getattr(layer, "quantization_scheme", None)
    if scheme is None or scheme.input_activations is None:
        return None
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize

    # compressed-tensors expects a batch dimension: for [T, D] it would compute one scale for all tokens.
    return lambda hidden_TD: forward_quantize(layer, hidden_TD[None], "input", scheme.input_activations)[0]


def require_plain_inputs(*modules: nn.Module) -> None:
    """Raise MODEL_UNSUPPORTED if a layer of `modules` quantizes its input: their forward pass here would not do it."""
    quantizing = [
        name
        for module in modules
        for name, layer in module.named_modules()
        if (scheme := getattr(layer, "quantization_scheme", None)) and scheme.input_activations
    ]
    if quantizing:
        message = f"{len(quantizing)} layers outside the decoder quantize their inputs, first {quantizing[0]!r}"
        raise MODEL_UNSUPPORTED.error("config.json", message, "Answer with the generator transformers.")


def dequantize(model: Any, dtype: torch.dtype, keep: Sequence[nn.Module]) -> str:
    """Dequantize in place the weights of a model that transformers loaded from a quantized folder, to `dtype`. Layers
    inside the modules of `keep` stay quantized if this GPU can multiply their format. Returns a sentence for the log
    with the number of layers in each format, and the reason for dequantization."""
    # Attention modules have a scheme, too, if the key-value cache is quantized: select only linear layers.
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    quantized = {name: module for name, module in linear.items() if hasattr(module, "quantization_scheme")}
    inside = {id(module) for unit in keep for module in unit.modules()}
    reasons = {name: _why_dequantize(module, dtype, id(module) in inside) for name, module in quantized.items()}
    still_quantized = [module for name, module in quantized.items() if not reasons[name]]
    for module in still_quantized:
        del module.quantization_scheme  # so that compressed-tensors does not decompress it below
        if hasattr(module, "weight_packed"):
            module.weight_scale.data = module.weight_scale.data.to(dtype)
            packed: Any = module.weight_packed
            packed.data = kernels_for(packed.device).pack_int4(packed.data)
    model.hf_quantizer.compressor.decompress_model(model)
    for name, module in quantized.items():
        if reasons[name]:
            module.weight.data = module.weight.data.to(dtype)
    int4 = sum(hasattr(module, "weight_packed") for module in still_quantized)
    float8, dequantized = len(still_quantized) - int4, len(quantized) - len(still_quantized)
    why = next((reason for reason in reasons.values() if reason), "")
    counts = [f"{float8} layers multiply in 8-bit floats"] * bool(float8)
    counts += [f"{int4} layers multiply in 4-bit integers"] * bool(int4)
    counts += [f"{dequantized} layers are dequantized to {str(dtype).removeprefix('torch.')} ({why})"] * bool(
        dequantized
    )
    if any(hasattr(module, "k_scale") for module in model.modules()):
        counts.append("the cache of keys and values is not in 8 bits: its scales are not applied")
    return "quantized weights: " + "; ".join(counts)


def _why_dequantize(layer: Any, dtype: torch.dtype, keep: bool) -> str:
    """The reason why a layer's weight cannot stay quantized; empty if it can."""
    weight, scheme = getattr(layer, "weight", None), layer.quantization_scheme.model_dump()
    if not keep:
        return "this generator computes in that precision"
    if hasattr(layer, "weight_packed") and is_int4(scheme):
        return _why_dequantize_int4(layer, scheme["weights"]["group_size"], dtype)
    if weight is None or weight.dtype != FLOAT8 or not is_float8(scheme):
        groups = ", ".join(map(str, INT4_GROUPS))
        return f"the scheme is not one of FP8_DYNAMIC, FP8 and W4A16 in groups of {groups}"
    if any(size % SCALED_MM_MULTIPLE for size in weight.shape):
        return f"the shape {list(weight.shape)} is not a multiple of {SCALED_MM_MULTIPLE}"
    if weight.is_cuda and (dtype != torch.bfloat16 or torch.cuda.get_device_capability(weight.device) < HOPPER):
        return "this GPU or precision has no product of 8-bit floats with a scale for each row"
    return ""


def _why_dequantize_int4(layer: Any, group_size: int, dtype: torch.dtype) -> str:
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
