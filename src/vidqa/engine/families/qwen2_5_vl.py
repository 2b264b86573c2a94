"""Qwen2.5-VL: a vision tower in which all blocks but a few attend inside windows of a frame.

Windows of one size, from any frames, are one dense call of attention. So patches have two orders: frame
by frame for blocks that see whole frames, and sorted by window size for the others; between two blocks
of different kind they are reordered once.

Shape letters: T tokens of a pack, P patches, V vision tokens, D width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from vidqa.engine.families import qwen_vl
from vidqa.engine.families._base import Grid, TorchFamily
from vidqa.engine.model.attention import Segments, segments_of
from vidqa.engine.model.layers import Projection, projection
from vidqa.families import VisionSizes
from vidqa.families import qwen2_5_vl as tables
from vidqa.video.types import FramePlan


@dataclass(frozen=True)
class WindowIndex:
    """Indices of a pack's patches, made on the CPU."""

    position_2P: torch.Tensor  # int64: row and column of the patch, for rotary embedding; frame by frame
    window_at_P: torch.Tensor  # int64: from the order of frames to that of windows
    frame_at_P: torch.Tensor  # int64: the inverse of window_at_P
    frames: Segments  # one per run of frames of one size
    windows: Segments  # one per window size

    @property
    def segments(self) -> Segments:
        """The segments of all attention calls."""
        return self.frames + self.windows


@lru_cache(maxsize=256)
def _frame_windows(rows: int, columns: int, sizes: VisionSizes) -> dict[int, np.ndarray]:
    """The patches of one frame, in merge-block order, by the length of their windows: {length: int64 [n, length]}."""
    row, column = qwen_vl.merge_order(rows, columns, sizes.merge) // sizes.window
    number = row * -(-columns // sizes.window) + column
    order, lengths = np.argsort(number, kind="stable"), np.bincount(number)
    by_length = defaultdict(list)
    for window, length in zip(np.split(order, np.cumsum(lengths)[:-1]), lengths.tolist(), strict=True):
        by_length[length].append(window)
    return {length: np.stack(windows) for length, windows in by_length.items()}


def vision_segments(grids: Sequence[Grid], sizes: VisionSizes, count_bits: int | None = None) -> Segments:
    """The segments of all attention calls: of blocks that see whole frames, then of window blocks."""
    counts: dict[int, int] = defaultdict(int)
    for t, h, w in grids:
        for length, windows in _frame_windows(h, w, sizes).items():
            counts[length] += t * len(windows)
    return _frames(grids, count_bits) + _windows(counts, count_bits)


def _frames(grids: Sequence[Grid], count_bits: int | None) -> Segments:
    return segments_of((h * w for t, h, w in grids for _ in range(t)), count_bits=count_bits)


def _windows(counts: dict[int, int], count_bits: int | None) -> Segments:
    lengths = (length for length in sorted(counts, reverse=True) for _ in range(counts[length]))
    return segments_of(lengths, count_bits=count_bits)


def vision_index(grids: Sequence[Grid], sizes: VisionSizes, count_bits: int | None = None) -> WindowIndex:
    """The index of a pack's media in order; `grids` are (t, h, w) in patches, `count_bits` as in `segments_of`."""
    positions, start = [], 0
    by_length: dict[int, list[np.ndarray]] = defaultdict(list)
    for t, h, w in grids:
        positions += [qwen_vl.merge_order(h, w, sizes.merge)] * t
        for frame in range(t):
            for length, windows in _frame_windows(h, w, sizes).items():
                by_length[length].append(start + frame * h * w + windows)
        start += t * h * w
    order = np.concatenate([part.ravel() for length in sorted(by_length, reverse=True) for part in by_length[length]])
    return WindowIndex(
        position_2P=torch.from_numpy(np.concatenate(positions, axis=1)),
        window_at_P=torch.from_numpy(order),
        frame_at_P=torch.from_numpy(np.argsort(order)),
        frames=_frames(grids, count_bits),
        windows=_windows({length: sum(map(len, parts)) for length, parts in by_length.items()}, count_bits),
    )


def vision_tower(
    visual: Any, patches_PC: torch.Tensor, index: WindowIndex, run: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The tower of `qwen_vl.Parts`; the decoder gets no further levels of features."""
    hidden, in_windows = qwen_vl.embedded(visual, patches_PC), False
    rotation = qwen_vl.vision_rotation(visual, index.position_2P)
    rotation_in_windows = tuple(part[index.window_at_P] for part in rotation)
    for number, block in enumerate(visual.blocks):
        if in_windows == (number in visual.fullatt_block_indexes):
            hidden, in_windows = hidden[index.frame_at_P if in_windows else index.window_at_P], not in_windows
        turn, segments = (rotation_in_windows, index.windows) if in_windows else (rotation, index.frames)
        hidden = run(block, hidden, *turn, segments)
    return visual.merger(hidden[index.frame_at_P] if in_windows else hidden), []


def _mlp(block: Any) -> tuple[Projection, Projection, Projection]:
    mlp = block.mlp
    return projection(mlp.up_proj), projection(mlp.down_proj), projection(mlp.gate_proj)


def text_rotation(decoder: Any, position_3T: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Multimodal rotary embedding in sections: the first frequencies rotate with time, then height, then width."""
    angle_3TE = position_3T[..., None].float() * decoder.rotary_emb.inv_freq.float()
    sections = angle_3TE.split(decoder.rotary_emb.mrope_section, dim=-1)
    angle = torch.cat([section[number % 3] for number, section in enumerate(sections)], dim=-1).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _video_inputs(plans: Sequence[FramePlan]) -> dict[str, torch.Tensor]:
    """The duration of a temporal patch of each video in seconds; 1.0, without effect, if there is only one patch."""
    steps = [plan.patch_times_s[1] if plan.grid[0] > 1 else 1.0 for plan in plans]
    return {"second_per_grid_ts": torch.tensor(steps, dtype=torch.float32)}


PARTS = qwen_vl.Parts(vision_tower, _mlp, text_rotation)
QWEN2_5_VL = TorchFamily(
    tables=tables.QWEN2_5_VL,
    model_class=Qwen2_5_VLForConditionalGeneration,
    vision_index=vision_index,
    vision_segments=vision_segments,
    video_inputs=_video_inputs,
    **qwen_vl.family_parts(PARTS),
)
