"""Qwen3-VL (Cosmos-Reason2, Qwen3-VL, converted Cosmos3-Nano): geometry, placeholders and rope positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vidqa.families import qwen_vl
from vidqa.families._base import Family, Geometry
from vidqa.families.qwen_vl_config import sizes_of_qwen3
from vidqa.families.qwen_vl_tensors import tensors_of_qwen3
from vidqa.video.types import FramePlan

START, END = "<|vision_start|>", "<|vision_end|>"

# What transformers' processor class holds where a model folder says nothing.
VIDEO_DEFAULTS = {
    "patch_size": 16,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def geometry(folder: Path) -> Geometry:
    """How this model's processor sees pixels. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
    video = qwen_vl.video_settings(folder, VIDEO_DEFAULTS)
    rules = qwen_vl.pixel_rules(video, max_frame_tokens=video.max_video_tokens)
    return Geometry(rules, qwen_vl.image_rules(folder))


def expand(plan: FramePlan, merge: int) -> str:
    """The text that replaces the template's slot: one timed group of pads for each temporal patch of a video.

    An image's slot becomes its pads alone, since the template itself writes the start and end around it.
    """
    time_patches, rows, columns = plan.grid
    pads = qwen_vl.PADS[plan.kind] * (rows * columns // merge**2)
    if plan.kind == "image":
        return pads
    return "".join(f"<{time_s:.1f} seconds>{START}{pads}{END}" for time_s in plan.patch_times_s[:time_patches])


def rope_positions(
    ids: np.ndarray, image_id: int, video_id: int, plans: Sequence[FramePlan], geometry: Geometry
) -> np.ndarray:
    """See `Family`. A temporal patch is a run of placeholders that stands at one time: true times are in the text."""
    now, merge = np.zeros(1, np.int64), geometry.video.merge_size
    return qwen_vl.rope_positions(ids, image_id, video_id, plans, merge, lambda plan: [now] * plan.grid[0])


QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl",),
    geometry=geometry,
    write_frame_cap=qwen_vl.write_frame_cap,
    expand=expand,
    template_slot=qwen_vl.template_slot,
    vision_token_ids=qwen_vl.vision_token_ids,
    rope_positions=rope_positions,
    sizes=sizes_of_qwen3,
    tensors=tensors_of_qwen3,
)
