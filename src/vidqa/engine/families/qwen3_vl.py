"""Qwen3-VL: a vision tower with learned position embeddings, whose features also enter the decoder's first layers.

Shape letters: T tokens of a pack, P patches, V vision tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import Qwen3VLForConditionalGeneration

from vidqa.engine.families import qwen_vl
from vidqa.engine.families._base import Grid, TorchFamily
from vidqa.engine.model.attention import Segments, segments_of
from vidqa.engine.model.layers import Projection, projection
from vidqa.families import VisionSizes
from vidqa.families import qwen3_vl as tables


@dataclass(frozen=True)
class FrameIndex:
    """Indices of a pack's patches, made on the CPU."""

    position_2P: torch.Tensor  # int64: row and column of the patch, for rotary embedding
    table_P4: torch.Tensor  # int64: four neighbours in the table of learned positions
    weight_P4: torch.Tensor  # float32: their bilinear weights
    segments: Segments  # one per run of frames of one size


@lru_cache(maxsize=256)
def _frame_index(rows: int, columns: int, side: int, merge: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Position [2, p], table indices [p, 4] and weights [p, 4] of one frame's patches in merge-block order."""
    order = qwen_vl.merge_order(rows, columns, merge)
    low, high, share = [], [], []
    for position, count in zip(order, (rows, columns), strict=True):
        # The table is stretched over the frame corner to corner, like interpolation with align_corners.
        exact = position.astype(np.float32) * np.float32((side - 1) / max(count - 1, 1))
        floor = exact.astype(np.int64)
        low.append(floor)
        high.append(np.minimum(floor + 1, side - 1))
        share.append(exact - floor)
    (r0, c0), (r1, c1), (dr, dc) = low, high, share
    table = np.stack([r0 * side + c0, r0 * side + c1, r1 * side + c0, r1 * side + c1], axis=1)
    weight = np.stack([(1 - dr) * (1 - dc), (1 - dr) * dc, dr * (1 - dc), dr * dc], axis=1)
    return order, table, weight.astype(np.float32)


def vision_segments(grids: Sequence[Grid], sizes: VisionSizes, count_bits: int | None = None) -> Segments:
    """The attention segments of a pack's media, one per frame."""
    return segments_of((h * w for t, h, w in grids for _ in range(t)), count_bits=count_bits)


def vision_index(grids: Sequence[Grid], sizes: VisionSizes, count_bits: int | None = None) -> FrameIndex:
    """The index of a pack's media in order; `grids` are (t, h, w) in patches, `count_bits` as in `segments_of`."""
    side = math.isqrt(sizes.positions)
    frames = [_frame_index(h, w, side, sizes.merge) for t, h, w in grids for _ in range(t)]
    position, table, weight = (
        np.concatenate(parts, axis=axis) for parts, axis in zip(zip(*frames, strict=True), (1, 0, 0), strict=True)
    )
    return FrameIndex(
        position_2P=torch.from_numpy(position),
        table_P4=torch.from_numpy(table),
        weight_P4=torch.from_numpy(weight),
        segments=vision_segments(grids, sizes, count_bits),
    )


def vision_tower(
    visual: Any, patches_PC: torch.Tensor, index: FrameIndex, run: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The tower of `qwen_vl.Parts`, with one more level of features for each block in `deepstack_visual_indexes`."""
    hidden = qwen_vl.embedded(visual, patches_PC)
    hidden = hidden + (visual.pos_embed(index.table_P4) * index.weight_P4[:, :, None]).sum(1).to(hidden.dtype)
    cos, sin = qwen_vl.vision_rotation(visual, index.position_2P)
    deepstack = []
    for number, block in enumerate(visual.blocks):
        hidden = run(block, hidden, cos, sin, index.segments)
        if number in visual.deepstack_visual_indexes:
            level = list(visual.deepstack_visual_indexes).index(number)
            deepstack.append(visual.deepstack_merger_list[level](hidden))
    return visual.merger(hidden), deepstack


def _mlp(block: Any) -> tuple[Projection, Projection, None]:
    return projection(block.mlp.linear_fc1), projection(block.mlp.linear_fc2), None


def text_rotation(decoder: Any, position_3T: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Interleaved multimodal rotary embedding: time, height and width alternate along the frequencies."""
    angle_3TE = position_3T[..., None].float() * decoder.rotary_emb.inv_freq.float()
    angle = angle_3TE[0].clone()
    for axis in (1, 2):
        picked = slice(axis, decoder.rotary_emb.mrope_section[axis] * 3, 3)
        angle[:, picked] = angle_3TE[axis][:, picked]
    angle = angle.repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


PARTS = qwen_vl.Parts(vision_tower, _mlp, text_rotation)
QWEN3_VL = TorchFamily(
    tables=tables.QWEN3_VL,
    model_class=Qwen3VLForConditionalGeneration,
    vision_index=vision_index,
    vision_segments=vision_segments,
    video_inputs=lambda plans: {},
    **qwen_vl.family_parts(PARTS),
)
