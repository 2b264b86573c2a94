"""A pack's media as the bytes they were decoded to; they become floats only where the vision tower reads them.

A uint8 frame is a quarter of its float32 patches, so that a batch costs the host's memory and the bus to the GPU that
much less, and no CPU time is spent on normalising.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vidqa.engine.data.resize import patchify
from vidqa.video.types import PixelRules


@dataclass(frozen=True)
class Pixels:
    """Media in the order of their patches: uint8 [n, 3, h, w] each, with their rules and, per medium, mean and std of
    the rules as one float32 [2, 3] on the same device."""

    frames: tuple[torch.Tensor, ...]
    rules: tuple[PixelRules, ...]
    scales: tuple[torch.Tensor, ...]

    def patches(self) -> torch.Tensor:
        """float32 [P, C] on the frames' device, made afresh at each call."""
        parts = [
            patchify(frames, rules, scale[0], scale[1])
            for frames, rules, scale in zip(self.frames, self.rules, self.scales, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def pixels_of(media: Sequence[tuple[np.ndarray, PixelRules]]) -> Pixels:
    """The pixels of a pack on the CPU, without a copy."""
    rules = tuple(rules for _, rules in media)
    scales = tuple(torch.tensor([rule.mean, rule.std], dtype=torch.float32) for rule in rules)
    return Pixels(tuple(as_tensor(frames) for frames, _ in media), rules, scales)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The array without a copy; torch warns of read-only memory (the frame cache's maps), which nothing writes to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
