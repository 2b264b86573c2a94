"""Qwen3-VL (Cosmos-Reason2, Qwen3-VL, converted Cosmos3-Nano): geometry, placeholders, rope positions, sizes and
parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.families import qwen_vl
from vidqa.families import qwen_vl_sizes as parts
from vidqa.families._base import Family, Geometry, Sizes, Tensor, VisionSizes
from vidqa.families.model_files import parse
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.qwen_vl_sizes import TOWER
from vidqa.video.types import FramePlan

START, END = "<|vision_start|>", "<|vision_end|>"

# Defaults of transformers' processor class for keys that a model folder lacks.
VIDEO_DEFAULTS = {
    "patch_size": 16,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def geometry(folder: Path) -> Geometry:
    """Preprocessing settings of this model's processor. Raises MODEL_BROKEN, MODEL_UNSUPPORTED."""
    video = qwen_vl.video_settings(folder, VIDEO_DEFAULTS)
    rules = qwen_vl.pixel_rules(video, max_frame_tokens=video.max_video_tokens)
    return Geometry(rules, qwen_vl.image_rules(folder))


def expand(plan: FramePlan, merge: int) -> str:
    """The text that replaces the template's placeholder: one timed group of pads for each temporal patch of a video.

    An image's placeholder becomes only its pads, since the template writes the start and end itself.
    """
    time_patches, rows, columns = plan.grid
    pads = qwen_vl.PADS[plan.kind] * (rows * columns // merge**2)
    if plan.kind == "image":
        return pads
    return "".join(f"<{time_s:.1f} seconds>{START}{pads}{END}" for time_s in plan.patch_times_s[:time_patches])


def rope_positions(
    ids: np.ndarray, image_id: int, video_id: int, plans: Sequence[FramePlan], geometry: Geometry
) -> np.ndarray:
    """See `Family`. A temporal patch is one run of placeholders with one time position: the text has the real times."""
    now, merge = np.zeros(1, np.int64), geometry.video.merge_size
    return qwen_vl.rope_positions(ids, image_id, video_id, plans, merge, lambda plan: [now] * plan.grid[0])


def sizes(config: dict[str, Any], where: Path) -> Sizes:
    """See `Family`. Raises MODEL_UNSUPPORTED."""
    text = parse(config, "text_config", where, parts.TextConfig)
    vision = parse(config, "vision_config", where, parts.VisionConfig)
    taps = vision.deepstack_visual_indexes
    if len(set(taps)) < len(taps) or not all(0 <= tap < vision.depth for tap in taps):
        message = f"must be different blocks below depth = {vision.depth}, not {taps!r:.60}"
        raise MODEL_UNSUPPORTED.error(where, f"vision_config.deepstack_visual_indexes {message}")
    return Sizes(
        text.sizes(config, "text_config", where, attention_bias=text.attention_bias, head_norms=True),
        vision.sizes(where, taps=len(taps), positions=vision.num_position_embeddings),
    )


def tensors(model: Sizes) -> list[Tensor]:
    """See `Family`."""
    vision = model.vision
    return [
        Tensor(f"{TOWER}.patch_embed.proj.weight", parts.patch_kernel(vision)),
        Tensor(f"{TOWER}.patch_embed.proj.bias", (vision.hidden,)),
        Tensor(f"{TOWER}.pos_embed.weight", (vision.positions, vision.hidden)),
        *(tensor for number in range(vision.blocks) for tensor in _block(f"{TOWER}.blocks.{number}", vision)),
        *_merger(f"{TOWER}.merger", vision.hidden, vision),
        *(
            tensor
            for number in range(vision.taps)
            for tensor in _merger(f"{TOWER}.deepstack_merger_list.{number}", vision.merged, vision)
        ),
        *parts.decoder(model.text, output_bias=model.text.attention_bias),
    ]


def _block(name: str, vision: VisionSizes) -> Iterator[Tensor]:
    for norm in ("norm1", "norm2"):
        yield Tensor(f"{name}.{norm}.weight", (vision.hidden,), name)
        yield Tensor(f"{name}.{norm}.bias", (vision.hidden,), name)
    yield from parts.vision_attention(f"{name}.attn", vision, name)
    yield from parts.linear(f"{name}.mlp.linear_fc1", vision.intermediate, vision.hidden, name, bias=True)
    yield from parts.linear(f"{name}.mlp.linear_fc2", vision.hidden, vision.intermediate, name, bias=True)


def _merger(name: str, normed: int, vision: VisionSizes) -> Iterator[Tensor]:
    yield Tensor(f"{name}.norm.weight", (normed,))
    yield Tensor(f"{name}.norm.bias", (normed,))
    yield from parts.linear(f"{name}.linear_fc1", vision.merged, vision.merged, "", bias=True)
    yield from parts.linear(f"{name}.linear_fc2", vision.out, vision.merged, "", bias=True)


QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl",),
    geometry=geometry,
    write_frame_cap=qwen_vl.write_frame_cap,
    expand=expand,
    placeholders=qwen_vl.PADS,
    token_ids=qwen_vl.TOKEN_IDS,
    rope_positions=rope_positions,
    sizes=sizes,
    tensors=tensors,
)
