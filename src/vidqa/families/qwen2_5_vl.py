"""Qwen2.5-VL (Cosmos-Reason1, Qwen2.5-VL): geometry, placeholders and rope positions.

Nothing is written into the prompt about time: rope positions of a video move on with its seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vidqa.families import qwen_vl
from vidqa.families._base import Family, Geometry
from vidqa.families.model_files import parse, read_json
from vidqa.families.qwen_vl_config import Vision25Config, sizes_of_qwen25
from vidqa.families.qwen_vl_tensors import tensors_of_qwen25
from vidqa.video.types import FramePlan

# What transformers' processor class holds where a model folder says nothing. It bounds every frame by itself.
VIDEO_DEFAULTS = {
    **qwen_vl.CLIP_COLORS,
    "patch_size": 14,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28},
    "max_video_tokens": 128_000,
}
SHARE = 0.9  # of max_video_tokens, which a capped video's frames share


def geometry(folder: Path) -> Geometry:
    """How this model's processor sees pixels. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
    video = qwen_vl.video_settings(folder, VIDEO_DEFAULTS, older_bounds=True)
    rules = qwen_vl.pixel_rules(video, each_frame=True)
    rules = replace(rules, shared_pixels=int(video.max_video_tokens * rules.factor * rules.factor * SHARE))
    where = folder / "config.json"
    vision = parse(read_json(folder, where.name), "vision_config", where, Vision25Config)
    return Geometry(rules, qwen_vl.image_rules(folder), float(vision.tokens_per_second))


def expand(plan: FramePlan, merge: int) -> str:
    """The text that replaces the template's slot: pads alone; the template itself writes start and end around them."""
    return qwen_vl.PADS[plan.kind] * (plan.patches // merge**2)


def rope_positions(
    ids: np.ndarray, image_id: int, video_id: int, plans: Sequence[FramePlan], geometry: Geometry
) -> np.ndarray:
    """See `Family`. A medium is one run of placeholders. Its temporal patches stand at their seconds times
    `positions_per_s`, rounded down, in float32 as transformers computes it."""
    merge = geometry.video.merge_size
    return qwen_vl.rope_positions(ids, image_id, video_id, plans, merge, lambda plan: [_times(plan, geometry)])


def _times(plan: FramePlan, geometry: Geometry) -> np.ndarray:
    """Where temporal patches stand, int64 [t]; they are evenly spaced."""
    step_s = plan.patch_times_s[1] if plan.grid[0] > 1 else 0.0
    step = np.float32(geometry.positions_per_s) * np.float32(step_s)
    return (np.arange(plan.grid[0], dtype=np.float32) * step).astype(np.int64)


def parameter_name(stored: str) -> str:
    """Files keep the names of older classes: visual beside model, which was the decoder."""
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
    template_slot=qwen_vl.template_slot,
    vision_token_ids=qwen_vl.vision_token_ids,
    rope_positions=rope_positions,
    sizes=sizes_of_qwen25,
    tensors=tensors_of_qwen25,
    parameter_name=parameter_name,
    transformers="5.18",
)
