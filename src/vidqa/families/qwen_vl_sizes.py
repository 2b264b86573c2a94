"""What the config.json of Qwen2.5-VL and Qwen3-VL have in common, and the parameters of their decoders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.sizes import Tensor, TextSizes, VisionSizes

TEXT_NAMES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "vocabulary": "vocab_size",
}
VISION_NAMES = {
    "hidden": "hidden_size",
    "blocks": "depth",
    "intermediate": "intermediate_size",
    "out": "out_hidden_size",
    "patch": "patch_size",
    "temporal_patch": "temporal_patch_size",
    "merge": "spatial_merge_size",
    "channels": "in_channels",
}
# What transformers' configuration classes hold where a config.json says nothing; the others it must say.
# A key that is written as null is not one that is left out: those classes refuse it.
DEFAULT_VISION_HEADS = 16
VISION_DEFAULTS = {"temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3}
# What no model has, and what would keep the counting of parameters busy for minutes.
MOST = {"num_hidden_layers": 1000, "depth": 1000}
MOST_OF_OTHERS = 2**27
MODEL, HEAD = "model.language_model", "lm_head.weight"
TYPES: dict[str, tuple[type, ...]] = {
    **{"attention_bias": (bool,), "use_cache": (bool,), "initializer_range": (float,), "rms_norm_eps": (float,)},
    **{"attention_dropout": (int, float), "max_position_embeddings": (int,), "pad_token_id": (int,)},
}
# Activation functions without parameters that transformers knows.
ACTIVATIONS = {
    *("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "hardswish"),
    *("laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu", "swish"),
    *("tanh",),
}


def table(config: dict[str, Any], name: str, where: Path, never_null: tuple[str, ...]) -> dict[str, Any]:
    """A table of config.json, of which `never_null` are keys besides the sizes that transformers takes no null for.
    Raises MODEL_UNSUPPORTED."""
    found = config.get(name)
    if not isinstance(found, dict):
        raise MODEL_UNSUPPORTED.error(where, f"{name} must be a table of sizes, not {found!r}")
    require_no_null(found, name, where, never_null)
    require_values(found, name, where)
    return found


def require_no_null(found: dict[str, Any], name: str, where: Path, never_null: tuple[str, ...]) -> None:
    """Raises MODEL_UNSUPPORTED."""
    for key in never_null:
        if found.get(key, 0) is None:
            raise MODEL_UNSUPPORTED.error(where, f"{name}.{key} is null, which transformers does not take")


def require_values(found: dict[str, Any], name: str, where: Path) -> None:
    """The keys besides sizes that transformers' configuration classes check. Raises MODEL_UNSUPPORTED."""
    for key, types in TYPES.items():
        if (value := found.get(key)) is not None and type(value) not in types:
            message = f"{name}.{key} must be {' or '.join(kind.__name__ for kind in types)}, not {short(value)}"
            raise MODEL_UNSUPPORTED.error(where, message)
    activation = found.get("hidden_act", "silu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        message = f"{name}.hidden_act must be one of {', '.join(sorted(ACTIVATIONS))}, not {short(activation)}"
        raise MODEL_UNSUPPORTED.error(where, message)


def require_vision_heads(vision: dict[str, Any], hidden: int, where: Path) -> None:
    """The heads of the vision tower, whose width must be even for its positions. Raises MODEL_UNSUPPORTED."""
    heads = numbers({"num_heads": DEFAULT_VISION_HEADS, **vision}, {"heads": "num_heads"}, "vision_config", where)[
        "heads"
    ]
    if hidden % (4 * heads):
        message = f"vision_config.hidden_size ({hidden}) is not a multiple of four times num_heads ({heads})"
        raise MODEL_UNSUPPORTED.error(where, message)


def text_sizes(text: dict[str, Any], part: str, where: Path, **more: Any) -> TextSizes:
    """The decoder's sizes; `more` are its other fields. Raises MODEL_UNSUPPORTED, also for scaled positions."""
    if text.get("num_key_value_heads", 0) is None:  # the one size that may be null: as many as there are heads
        text = {**text, "num_key_value_heads": text.get("num_attention_heads")}
    found: dict[str, Any] = {**numbers(text, TEXT_NAMES, part, where), **more}
    if found["heads"] % found["kv_heads"]:
        message = "num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})"
        raise MODEL_UNSUPPORTED.error(where, f"{part}.{message.format(**found)}")
    _require_plain_rope(text, part, where)
    return TextSizes(**found)


def numbers(found: dict[str, Any], names: dict[str, str], part: str, where: Path) -> dict[str, int]:
    """Sizes by our names. Raises MODEL_UNSUPPORTED."""
    for written in names.values():
        value, most = found.get(written), MOST.get(written, MOST_OF_OTHERS)
        if type(value) is not int or not 1 <= value <= most:
            message = f"{part}.{written} must be a whole number from 1 to {most}, not {short(value)}"
            raise MODEL_UNSUPPORTED.error(where, message)
    return {ours: found[written] for ours, written in names.items()}


def _require_plain_rope(text: dict[str, Any], part: str, where: Path) -> None:
    """Scaled positions (yarn, linear, dynamic) are not computed here. Older files name the table rope_scaling."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise MODEL_UNSUPPORTED.error(where, f"{part}.{name} must be a table, not {short(rope)}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "mrope"):
            raise MODEL_UNSUPPORTED.error(where, f"{part}.{name}.rope_type is {short(kind)}; only 'default' is trained")


def short(value: object) -> str:
    """A value as a problem shows it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def decoder(text: TextSizes, *, output_bias: bool) -> Iterator[Tensor]:
    """The decoder and its head; a tied head is the embeddings' other name."""
    vocabulary = (text.vocabulary, text.hidden)
    yield Tensor(f"{MODEL}.embed_tokens.weight", vocabulary, tied=HEAD if text.tied else "")
    for number in range(text.layers):
        yield from _layer(f"{MODEL}.layers.{number}", text, output_bias)
    yield Tensor(f"{MODEL}.norm.weight", (text.hidden,))
    if not text.tied:
        yield Tensor(HEAD, vocabulary, linear=True)


def _layer(name: str, text: TextSizes, output_bias: bool) -> Iterator[Tensor]:
    attention, bias = f"{name}.self_attn", text.attention_bias
    yield from linear(f"{attention}.q_proj", text.queries, text.hidden, name, bias=bias)
    yield from linear(f"{attention}.k_proj", text.keys, text.hidden, name, bias=bias)
    yield from linear(f"{attention}.v_proj", text.keys, text.hidden, name, bias=bias)
    yield from linear(f"{attention}.o_proj", text.hidden, text.queries, name, bias=output_bias)
    if text.head_norms:
        yield Tensor(f"{attention}.q_norm.weight", (text.head_dim,), name)
        yield Tensor(f"{attention}.k_norm.weight", (text.head_dim,), name)
    yield from gated_mlp(f"{name}.mlp", text.hidden, text.intermediate, name, bias=False)
    yield Tensor(f"{name}.input_layernorm.weight", (text.hidden,), name)
    yield Tensor(f"{name}.post_attention_layernorm.weight", (text.hidden,), name)


def gated_mlp(name: str, hidden: int, wide: int, unit: str, *, bias: bool) -> Iterator[Tensor]:
    yield from linear(f"{name}.gate_proj", wide, hidden, unit, bias=bias)
    yield from linear(f"{name}.up_proj", wide, hidden, unit, bias=bias)
    yield from linear(f"{name}.down_proj", hidden, wide, unit, bias=bias)


def patch_kernel(vision: VisionSizes) -> tuple[int, ...]:
    """The shape of the convolution that embeds patches."""
    return (vision.hidden, vision.channels, vision.temporal_patch, vision.patch, vision.patch)


def vision_attention(name: str, vision: VisionSizes, unit: str) -> Iterator[Tensor]:
    yield from linear(f"{name}.qkv", 3 * vision.hidden, vision.hidden, unit, bias=True)
    yield from linear(f"{name}.proj", vision.hidden, vision.hidden, unit, bias=True)


def linear(name: str, rows: int, columns: int, unit: str, *, bias: bool) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (rows, columns), unit, linear=True)
    if bias:
        yield Tensor(f"{name}.bias", (rows,), unit, linear=True)
