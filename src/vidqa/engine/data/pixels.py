"""Pixels as in the model's processor: resized in decode workers, normalised and cut into patches on any device.

The media of a pack stay uint8 as decoded; they are converted to floats only when the vision tower reads them. A
uint8 frame has a quarter of the size of its float32 patches, so a batch takes a quarter of host memory and transfer,
and no CPU time is spent on normalising.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from vidqa.video.types import PixelRules


def resize_frames(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize uint8 [N, H, W, 3] to [N, 3, height, width]: bicubic with antialiasing, as transformers' processors do.

    The call is the same as in torchvision, which they use; without importing torchvision a decode worker starts faster
    and uses less memory. Frames are independent, so any split of a video into calls gives the same pixels.
    """
    frames_NCHW = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).contiguous()
    if frames_NCHW.shape[-2:] == (height, width):
        return frames_NCHW.numpy()
    return F.interpolate(frames_NCHW, size=(height, width), mode="bicubic", antialias=True).numpy()


def patchify(
    frames: torch.Tensor,
    rules: PixelRules,
    mean: Sequence[float] | torch.Tensor,
    std: Sequence[float] | torch.Tensor,
) -> torch.Tensor:
    """Cut uint8 frames [N, 3, H, W] into float32 patches [t * h * w, 3 * temporal * patch * patch] on their device.

    `mean` and `std` are those of the rules, in units of a uint8 pixel; as tensors on the frames' device they avoid
    waiting for a copy. If N frames do not fill the last temporal patch, the last frame is repeated, which for
    an image means twice. Rows are ordered by temporal patch, then by merged block, then inside the block, as
    in the model's processor. Bytes are reordered before conversion to floats: a quarter of the memory traffic.
    """
    patch, merge, step = rules.patch_size, rules.merge_size, rules.temporal_patch_size
    if missing := -len(frames) % step:
        frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    count, channels, height, width = frames.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    blocks = frames.view(count // step, step, channels, rows, merge, patch, columns, merge, patch)
    ordered = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, channels, step * patch * patch)
    mean_C1, std_C1 = (torch.as_tensor(v, dtype=torch.float32, device=frames.device).view(-1, 1) for v in (mean, std))
    return ordered.to(torch.float32).sub_(mean_C1).div_(std_C1).flatten(1)


@dataclass(frozen=True)
class Pixels:
    """Media in the order of their patches: uint8 [n, 3, h, w] each, with their rules and, per medium, mean and std of
    the rules as one float32 [2, 3] on the same device."""

    frames: tuple[torch.Tensor, ...]
    rules: tuple[PixelRules, ...]
    scales: tuple[torch.Tensor, ...]

    def patches(self) -> torch.Tensor:
        """The patches, float32 [P, C] on the frames' device, computed again at each call."""
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
    """The array as a tensor without a copy; suppresses torch's warning of read-only memory (the frame cache's maps)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
