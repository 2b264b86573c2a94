"""Qwen3-VL from its config.json alone: its sizes, and every parameter by name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.sizes import Sizes, Tensor, TextSizes, VisionSizes

# What transformers' configuration classes hold where a config.json says nothing; the others it must say.
# A key that is written as null is not one that is left out: those classes refuse it.
TEXT_DEFAULTS = {"head_dim": 128, "attention_bias": False, "vocab_size": 151936}
VISION_DEFAULTS = {
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "in_channels": 3,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
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
    "positions": "num_position_embeddings",
}
# What no model has, and what would keep the counting of parameters busy for minutes.
MOST = {"num_hidden_layers": 1000, "depth": 1000}
MOST_OF_OTHERS = 2**27
# Keys besides the sizes that transformers' classes do not take null for.
NEVER_NULL = {
    "text_config": ("hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias", "initializer_range"),
    "vision_config": ("hidden_act", "num_heads", "initializer_range"),
}


def sizes(config: dict[str, Any], where: Path) -> Sizes:
    """The sizes in a config.json that `where` names in problems. Raises MODEL_UNSUPPORTED."""
    text = {**TEXT_DEFAULTS, **_table(config, "text_config", where)}
    vision = {**VISION_DEFAULTS, **_table(config, "vision_config", where)}
    if text.get("num_key_value_heads", 0) is None:  # the one size that may be null: as many as there are heads
        text["num_key_value_heads"] = text.get("num_attention_heads")
    text_sizes = _numbers(text, TEXT_NAMES, "text_config", where)
    vision_sizes = _numbers(vision, VISION_NAMES, "vision_config", where)
    if text_sizes["heads"] % text_sizes["kv_heads"]:
        message = "text_config.num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})"
        raise MODEL_UNSUPPORTED.error(where, message.format(**text_sizes))
    taps = vision["deepstack_visual_indexes"]
    if not isinstance(taps, list) or not all(type(tap) is int and 0 <= tap < vision_sizes["blocks"] for tap in taps):
        message = f"must be a list of blocks below depth = {vision_sizes['blocks']}, not {_short(taps)}"
        raise MODEL_UNSUPPORTED.error(where, f"vision_config.deepstack_visual_indexes {message}")
    if len(set(taps)) < len(taps):
        message = f"vision_config.deepstack_visual_indexes names a block twice: {_short(taps)}"
        raise MODEL_UNSUPPORTED.error(where, message)
    _require_plain_rope(text, where)
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    return Sizes(
        TextSizes(**text_sizes, tied=tied, attention_bias=bool(text["attention_bias"])),
        VisionSizes(**vision_sizes, taps=len(taps)),
    )


def _table(config: dict[str, Any], name: str, where: Path) -> dict[str, Any]:
    table = config.get(name)
    if not isinstance(table, dict):
        raise MODEL_UNSUPPORTED.error(where, f"{name} must be a table of sizes, not {table!r}")
    for key in NEVER_NULL[name]:
        if table.get(key, 0) is None:
            raise MODEL_UNSUPPORTED.error(where, f"{name}.{key} is null, which transformers does not take")
    return table


def _numbers(table: dict[str, Any], names: dict[str, str], part: str, where: Path) -> dict[str, int]:
    for written in names.values():
        value, most = table.get(written), MOST.get(written, MOST_OF_OTHERS)
        if type(value) is not int or not 1 <= value <= most:
            message = f"{part}.{written} must be a whole number from 1 to {most}, not {_short(value)}"
            raise MODEL_UNSUPPORTED.error(where, message)
    return {ours: table[written] for ours, written in names.items()}


def _require_plain_rope(text: dict[str, Any], where: Path) -> None:
    """Scaled positions (yarn, linear, dynamic) are not computed here. Older files name the table rope_scaling."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise MODEL_UNSUPPORTED.error(where, f"text_config.{name} must be a table, not {_short(rope)}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "mrope"):
            raise MODEL_UNSUPPORTED.error(
                where, f"text_config.{name}.rope_type is {_short(kind)}; only 'default' is trained"
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def tensors(model: Sizes) -> list[Tensor]:
    """Every parameter as transformers names it; a tied head is the embeddings' other name."""
    text, vision = model.text, model.vision
    vocabulary, head = (text.vocabulary, text.hidden), "lm_head.weight"
    found = [
        *_vision("model.visual", vision),
        Tensor("model.language_model.embed_tokens.weight", vocabulary, tied=head if text.tied else ""),
    ]
    for number in range(text.layers):
        found += _layer(f"model.language_model.layers.{number}", text)
    found.append(Tensor("model.language_model.norm.weight", (text.hidden,)))
    if not text.tied:
        found.append(Tensor(head, vocabulary, linear=True))
    return found


def _vision(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    patch = (vision.channels, vision.temporal_patch, vision.patch, vision.patch)
    yield Tensor(f"{name}.patch_embed.proj.weight", (vision.hidden, *patch))
    yield Tensor(f"{name}.patch_embed.proj.bias", (vision.hidden,))
    yield Tensor(f"{name}.pos_embed.weight", (vision.positions, vision.hidden))
    for number in range(vision.blocks):
        yield from _block(f"{name}.blocks.{number}", vision)
    yield from _merger(f"{name}.merger", vision.hidden, vision)
    for number in range(vision.taps):
        yield from _merger(f"{name}.deepstack_merger_list.{number}", vision.merged, vision)


def _block(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    for norm in ("norm1", "norm2"):
        yield Tensor(f"{name}.{norm}.weight", (vision.hidden,), name)
        yield Tensor(f"{name}.{norm}.bias", (vision.hidden,), name)
    yield from _linear(f"{name}.attn.qkv", 3 * vision.hidden, vision.hidden, name, bias=True)
    yield from _linear(f"{name}.attn.proj", vision.hidden, vision.hidden, name, bias=True)
    yield from _linear(f"{name}.mlp.linear_fc1", vision.intermediate, vision.hidden, name, bias=True)
    yield from _linear(f"{name}.mlp.linear_fc2", vision.hidden, vision.intermediate, name, bias=True)


def _merger(name: str, normed: int, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.norm.weight", (normed,))
    yield Tensor(f"{name}.norm.bias", (normed,))
    yield from _linear(f"{name}.linear_fc1", vision.merged, vision.merged, "", bias=True)
    yield from _linear(f"{name}.linear_fc2", vision.out, vision.merged, "", bias=True)


def _layer(name: str, text: TextSizes) -> Iterator[Tensor]:
    attention, bias = f"{name}.self_attn", text.attention_bias
    yield from _linear(f"{attention}.q_proj", text.queries, text.hidden, name, bias=bias)
    yield from _linear(f"{attention}.k_proj", text.keys, text.hidden, name, bias=bias)
    yield from _linear(f"{attention}.v_proj", text.keys, text.hidden, name, bias=bias)
    yield from _linear(f"{attention}.o_proj", text.hidden, text.queries, name, bias=bias)
    yield Tensor(f"{attention}.q_norm.weight", (text.head_dim,), name)
    yield Tensor(f"{attention}.k_norm.weight", (text.head_dim,), name)
    yield from _linear(f"{name}.mlp.gate_proj", text.intermediate, text.hidden, name, bias=False)
    yield from _linear(f"{name}.mlp.up_proj", text.intermediate, text.hidden, name, bias=False)
    yield from _linear(f"{name}.mlp.down_proj", text.hidden, text.intermediate, name, bias=False)
    yield Tensor(f"{name}.input_layernorm.weight", (text.hidden,), name)
    yield Tensor(f"{name}.post_attention_layernorm.weight", (text.hidden,), name)


def _linear(name: str, rows: int, columns: int, unit: str, *, bias: bool) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (rows, columns), unit, linear=True)
    if bias:
        yield Tensor(f"{name}.bias", (rows,), unit, linear=True)
