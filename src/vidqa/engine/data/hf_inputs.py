"""Inputs of a stock transformers model: token ids padded on the left, patches and grids of images and videos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vidqa.engine.data.pixels import as_tensor, patchify
from vidqa.engine.families import torch_half
from vidqa.planning.samples import Planner
from vidqa.video.types import FramePlan


def stock_inputs(
    planner: Planner,
    prompts: Sequence[np.ndarray],
    plans: Sequence[Sequence[FramePlan]],
    frames: Sequence[Sequence[np.ndarray]],
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The inputs of a batch: `prompts[i]` are token ids, `plans[i]` their media in reading order, and `frames[i][m]` is
    uint8 [n, 3, h, w]."""
    width = max(map(len, prompts))
    ids = np.full((len(prompts), width), planner.chat.pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(prompts):
        ids[number, width - len(row) :] = row
        mask[number, width - len(row) :] = 1
    slots = planner.chat.slot_ids
    kinds = np.where(ids == slots["image"], 1, np.where(ids == slots["video"], 2, 0))
    inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": kinds}
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        rules = getattr(planner.geometry, kind)
        media = [
            (plan, array)
            for row_plans, arrays in zip(plans, frames, strict=True)
            for plan, array in zip(row_plans, arrays, strict=True)
            if plan.kind == kind
        ]
        if media:
            parts = [patchify(as_tensor(array), rules, rules.mean, rules.std) for _, array in media]
            tensors[pixels] = torch.cat(parts)
            tensors[grid] = torch.tensor([plan.grid for plan, _ in media])
        if media and kind == "video":
            tensors |= torch_half(planner.family).video_inputs([plan for plan, _ in media])
    return {name: tensor.to(device) for name, tensor in tensors.items()}
