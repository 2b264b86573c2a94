"""Qwen2.5-VL for vLLM's own process, with the rope positions of the plan. Imports only vLLM and its dependencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm import ModelRegistry
from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration


class PlannedQwen2_5_VL(Qwen2_5_VLForConditionalGeneration):
    """Times of a video in float32; text behind it goes on after the longer side of its frames. In vLLM's own, text and
    answer go on after the video's latest time."""

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        """Positions int64 [3, S], and how much further than its place an answer's token stands."""
        vision, parts, at, done = self.config.vision_config, [], 0, 0
        for feature in sorted(mm_features, key=lambda each: each.mm_position.offset):
            text = feature.mm_position.offset - done
            patches, height, width = feature.data[f"{feature.modality}_grid_thw"].data.tolist()
            rows, columns = height // vision.spatial_merge_size, width // vision.spatial_merge_size
            inside = np.indices((patches, rows, columns))
            if feature.modality == "video":
                step_s = np.float32(feature.data["second_per_grid_ts"].data.item())
                inside[0] = inside[0].astype(np.float32) * (np.float32(vision.tokens_per_second) * step_s)
            parts += [_in_line(at, text), at + text + inside.reshape(3, -1)]
            at, done = at + text + max(rows, columns), done + text + patches * rows * columns
        positions = np.concatenate([*parts, _in_line(at, len(input_tokens) - done)], axis=1)
        return torch.from_numpy(positions), int(positions[:, -1].max()) + 1 - len(input_tokens)


def _in_line(start: int, count: int) -> np.ndarray:
    """Positions of text."""
    return np.broadcast_to(start + np.arange(count), (3, count))


ModelRegistry.register_model(PlannedQwen2_5_VL.__name__, PlannedQwen2_5_VL)
