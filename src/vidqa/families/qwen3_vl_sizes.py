"""Qwen3-VL from its config.json alone: its sizes, and every parameter by name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.families import qwen_vl_sizes as common
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.sizes import Sizes, Tensor, VisionSizes

TEXT_DEFAULTS = {"head_dim": 128, "attention_bias": False, "vocab_size": 151936}
VISION_DEFAULTS = {
    **common.VISION_DEFAULTS,
    "patch_size": 16,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
VISION_NAMES = {**common.VISION_NAMES, "positions": "num_position_embeddings"}
TEXT_NEVER_NULL = ("hidden_act", "max_position_embeddings", "rms_norm_eps", "attention_bias", "initializer_range")
VISION_NEVER_NULL = ("hidden_act", "num_heads", "initializer_range")


def sizes(config: dict[str, Any], where: Path) -> Sizes:
    """The sizes in a config.json that `where` names in problems. Raises MODEL_UNSUPPORTED."""
    text = {**TEXT_DEFAULTS, **common.table(config, "text_config", where, TEXT_NEVER_NULL)}
    vision = {**VISION_DEFAULTS, **common.table(config, "vision_config", where, VISION_NEVER_NULL)}
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    text_sizes = common.text_sizes(text, "text_config", where, tied=tied, attention_bias=bool(text["attention_bias"]))
    vision_sizes: dict[str, Any] = common.numbers(vision, VISION_NAMES, "vision_config", where)
    common.require_vision_heads(vision, vision_sizes["hidden"], where)
    taps = vision["deepstack_visual_indexes"]
    if not isinstance(taps, list) or not all(type(tap) is int and 0 <= tap < vision_sizes["blocks"] for tap in taps):
        message = f"must be a list of blocks below depth = {vision_sizes['blocks']}, not {common.short(taps)}"
        raise MODEL_UNSUPPORTED.error(where, f"vision_config.deepstack_visual_indexes {message}")
    if len(set(taps)) < len(taps):
        message = f"vision_config.deepstack_visual_indexes names a block twice: {common.short(taps)}"
        raise MODEL_UNSUPPORTED.error(where, message)
    return Sizes(text_sizes, VisionSizes(**vision_sizes, taps=len(taps)))


def tensors(model: Sizes) -> list[Tensor]:
    """Every parameter as transformers names it."""
    vision = _vision("model.visual", model.vision)
    return [*vision, *common.decoder(model.text, output_bias=model.text.attention_bias)]


def _vision(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.patch_embed.proj.weight", common.patch_kernel(vision))
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
    yield from common.vision_attention(f"{name}.attn", vision, name)
    yield from common.linear(f"{name}.mlp.linear_fc1", vision.intermediate, vision.hidden, name, bias=True)
    yield from common.linear(f"{name}.mlp.linear_fc2", vision.hidden, vision.intermediate, name, bias=True)


def _merger(name: str, normed: int, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.norm.weight", (normed,))
    yield Tensor(f"{name}.norm.bias", (normed,))
    yield from common.linear(f"{name}.linear_fc1", vision.merged, vision.merged, "", bias=True)
    yield from common.linear(f"{name}.linear_fc2", vision.out, vision.merged, "", bias=True)
