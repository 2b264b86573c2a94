"""Qwen2.5-VL from its config.json alone: its sizes, and every parameter by name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vidqa.families import qwen_vl_sizes as common
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.sizes import Sizes, Tensor, VisionSizes

TEXT_DEFAULTS = {"vocab_size": 152064, "use_sliding_window": False}
VISION_DEFAULTS = {
    **common.VISION_DEFAULTS,
    "patch_size": 14,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "tokens_per_second": 4,
}
TEXT_NEVER_NULL = ("hidden_act", "max_position_embeddings", "rms_norm_eps", "initializer_range")
VISION_NEVER_NULL = ("hidden_act", "num_heads", "tokens_per_second", "initializer_range")


def sizes(config: dict[str, Any], where: Path) -> Sizes:
    """The sizes in a config.json that `where` names in problems. Raises MODEL_UNSUPPORTED."""
    part, text = _text_of(config, where)
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    if isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        if hidden % heads:
            message = f"{part}.hidden_size ({hidden}) is not a multiple of num_attention_heads ({heads})"
            raise MODEL_UNSUPPORTED.error(where, message)
        text["head_dim"] = hidden // heads
    if text["use_sliding_window"]:
        raise MODEL_UNSUPPORTED.error(where, f"{part}.use_sliding_window is true; only whole attention is trained")
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    text_sizes = common.text_sizes(text, part, where, tied=tied, attention_bias=True, head_norms=False)
    vision = _vision_of(config, where)
    found = common.numbers(vision, common.VISION_NAMES, "vision_config", where)
    common.require_vision_heads(vision, found["hidden"], where)
    side = common.numbers(vision, {"window": "window_size"}, "vision_config", where)["window"]
    window = side // found["merge"] // found["patch"]
    whole = vision["fullatt_block_indexes"]
    if not isinstance(whole, list) or not all(type(block) is int for block in whole):
        message = f"vision_config.fullatt_block_indexes must be a list of blocks, not {common.short(whole)}"
        raise MODEL_UNSUPPORTED.error(where, message)
    if not window:
        message = f"vision_config.window_size must be at least {found['merge'] * found['patch']}, not {side}"
        raise MODEL_UNSUPPORTED.error(where, message)
    whole_blocks = len({block for block in whole if 0 <= block < found["blocks"]})
    return Sizes(
        text_sizes,
        VisionSizes(**found, taps=0, positions=0, gated=True, window=window * found["merge"], whole=whole_blocks),
    )


def positions_per_s(config: dict[str, Any], where: Path) -> float:
    """How far rope positions move on in a second of a video. Raises MODEL_UNSUPPORTED."""
    names = {"steps": "tokens_per_second"}
    return float(common.numbers(_vision_of(config, where), names, "vision_config", where)["steps"])


def _text_of(config: dict[str, Any], where: Path) -> tuple[str, dict[str, Any]]:
    """The decoder's settings, and how problems call their place: published files have them beside vision_config."""
    if config.get("text_config") is None:
        common.require_no_null(config, "config", where, TEXT_NEVER_NULL)
        common.require_values(config, "config", where)
        return "config", {**TEXT_DEFAULTS, **config}
    return "text_config", {**TEXT_DEFAULTS, **common.table(config, "text_config", where, TEXT_NEVER_NULL)}


def _vision_of(config: dict[str, Any], where: Path) -> dict[str, Any]:
    return {**VISION_DEFAULTS, **common.table(config, "vision_config", where, VISION_NEVER_NULL)}


def tensors(model: Sizes) -> list[Tensor]:
    """Every parameter as transformers names it."""
    vision = _vision("model.visual", model.vision)
    return [*vision, *common.decoder(model.text, output_bias=False)]


def _vision(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.patch_embed.proj.weight", common.patch_kernel(vision))
    for number in range(vision.blocks):
        yield from _block(f"{name}.blocks.{number}", vision)
    yield Tensor(f"{name}.merger.ln_q.weight", (vision.hidden,))
    yield from common.linear(f"{name}.merger.mlp.0", vision.merged, vision.merged, "", bias=True)
    yield from common.linear(f"{name}.merger.mlp.2", vision.out, vision.merged, "", bias=True)


def _block(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.norm1.weight", (vision.hidden,), name)
    yield Tensor(f"{name}.norm2.weight", (vision.hidden,), name)
    yield from common.vision_attention(f"{name}.attn", vision, name)
    yield from common.gated_mlp(f"{name}.mlp", vision.hidden, vision.intermediate, name, bias=True)
