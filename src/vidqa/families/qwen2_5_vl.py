"""Qwen2.5-VL (Cosmos-Reason1, Qwen2.5-VL): geometry, placeholders, rope positions, sizes and parameters.

The prompt contains no times: rope positions of a video advance with its seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from vidqa.families import qwen_vl
from vidqa.families import qwen_vl_sizes as parts
from vidqa.families._base import Family, Geometry, Sizes, Tensor, VisionSizes
from vidqa.families.model_files import parse, read_json
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.qwen_vl_sizes import TOWER
from vidqa.video.types import FramePlan

# Defaults of transformers' processor class for keys that a model folder lacks. It bounds every frame separately.
VIDEO_DEFAULTS = {
    **qwen_vl.CLIP_COLORS,
    "patch_size": 14,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
    "max_video_tokens": 128_000,
}
SHARE = 0.9  # of max_video_tokens, as the shared budget of a capped video's frames


class Text25Config(parts.TextConfig):
    vocab_size: parts.Size = 152064
    attention_bias: bool | None = None  # type: ignore[assignment]
    use_sliding_window: Any = False


class Vision25Config(parts.VisionConfig):
    patch_size: parts.Size = 14
    window_size: parts.Size = 112
    fullatt_block_indexes: list[int] = Field([7, 15, 23, 31])
    tokens_per_second: parts.Size = 4


def geometry(folder: Path) -> Geometry:
    """Preprocessing settings of this model's processor. Raises MODEL_BROKEN, MODEL_UNSUPPORTED."""
    video = qwen_vl.video_settings(folder, VIDEO_DEFAULTS, older_bounds=True)
    rules = qwen_vl.pixel_rules(video, each_frame=True)
    rules = replace(rules, shared_pixels=int(video.max_video_tokens * rules.factor * rules.factor * SHARE))
    where = folder / "config.json"
    vision = parse(read_json(folder, where.name), "vision_config", where, Vision25Config)
    return Geometry(rules, qwen_vl.image_rules(folder), float(vision.tokens_per_second))


def expand(plan: FramePlan, merge: int) -> str:
    """The text that replaces the template's placeholder: only pads, since the template writes start and end itself."""
    return qwen_vl.PADS[plan.kind] * (plan.patches // merge**2)


def rope_positions(
    ids: np.ndarray, image_id: int, video_id: int, plans: Sequence[FramePlan], geometry: Geometry
) -> np.ndarray:
    """See `Family`. A medium is one run of placeholders. Positions of its temporal patches are their seconds times
    `positions_per_s`, rounded down, in float32 as in transformers."""
    merge = geometry.video.merge_size
    return qwen_vl.rope_positions(ids, image_id, video_id, plans, merge, lambda plan: [_times(plan, geometry)])


def _times(plan: FramePlan, geometry: Geometry) -> np.ndarray:
    """Positions of temporal patches, int64 [t]; they are evenly spaced."""
    step_s = plan.patch_times_s[1] if plan.grid[0] > 1 else 0.0
    step = np.float32(geometry.positions_per_s) * np.float32(step_s)
    return (np.arange(plan.grid[0], dtype=np.float32) * step).astype(np.int64)


def sizes(config: dict[str, Any], where: Path) -> Sizes:
    """See `Family`. Published files have the decoder's keys beside vision_config. Raises MODEL_UNSUPPORTED."""
    name = "config" if config.get("text_config") is None else "text_config"
    text = parse(config, name, where, Text25Config)
    if text.hidden_size % text.num_attention_heads:
        heads = text.num_attention_heads
        message = f"hidden_size ({text.hidden_size}) is not a multiple of num_attention_heads ({heads})"
        raise MODEL_UNSUPPORTED.error(where, f"{name}.{message}")
    if text.use_sliding_window:
        raise MODEL_UNSUPPORTED.error(where, f"{name}.use_sliding_window is true; only full attention is supported")
    text.head_dim = text.hidden_size // text.num_attention_heads
    vision = parse(config, "vision_config", where, Vision25Config)
    window = vision.window_size // vision.spatial_merge_size // vision.patch_size
    if not window:
        least = vision.spatial_merge_size * vision.patch_size
        message = f"vision_config.window_size must be at least {least}, not {vision.window_size}"
        raise MODEL_UNSUPPORTED.error(where, message)
    whole = {block for block in vision.fullatt_block_indexes if 0 <= block < vision.depth}
    return Sizes(
        text.sizes(config, name, where, attention_bias=True, head_norms=False),
        vision.sizes(
            where, taps=0, positions=0, gated=True, window=window * vision.spatial_merge_size, whole=len(whole)
        ),
    )


def tensors(model: Sizes) -> list[Tensor]:
    """See `Family`."""
    vision = model.vision
    return [
        Tensor(f"{TOWER}.patch_embed.proj.weight", parts.patch_kernel(vision)),
        *(tensor for number in range(vision.blocks) for tensor in _gated_block(f"{TOWER}.blocks.{number}", vision)),
        Tensor(f"{TOWER}.merger.ln_q.weight", (vision.hidden,)),
        *parts.linear(f"{TOWER}.merger.mlp.0", vision.merged, vision.merged, "", bias=True),
        *parts.linear(f"{TOWER}.merger.mlp.2", vision.out, vision.merged, "", bias=True),
        *parts.decoder(model.text, output_bias=False),
    ]


def _gated_block(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.norm1.weight", (vision.hidden,), name)
    yield Tensor(f"{name}.norm2.weight", (vision.hidden,), name)
    yield from parts.vision_attention(f"{name}.attn", vision, name)
    yield from parts.gated_mlp(f"{name}.mlp", vision.hidden, vision.intermediate, name, bias=True)


def parameter_name(stored: str) -> str:
    """Convert names of older classes, which files keep: `visual` beside `model`, which was the decoder."""
    if stored.startswith("visual."):
        return f"model.{stored}"
    part, _, rest = stored.partition(".")
    is_old = part == "model" and rest.partition(".")[0] in ("embed_tokens", "layers", "norm")
    return f"model.language_model.{rest}" if is_old else stored


QWEN2_5_VL = Family(
    name="qwen2_5_vl",
    model_types=("qwen2_5_vl",),
    geometry=geometry,
    write_frame_cap=qwen_vl.write_frame_cap,
    expand=expand,
    placeholders=qwen_vl.PADS,
    token_ids=qwen_vl.TOKEN_IDS,
    rope_positions=rope_positions,
    sizes=sizes,
    tensors=tensors,
    parameter_name=parameter_name,
    transformers="5.18",
)
