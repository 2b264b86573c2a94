"""Pixels as the model's processor makes them: resize in decode workers, normalise and patchify on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from vidqa.video.types import PixelRules


def resize_frames(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 [N, H, W, 3] -> uint8 [N, 3, height, width]: bicubic with antialiasing, as transformers' processors do.

    The call is the one that torchvision makes for them; without importing torchvision a decode worker starts faster
    and stays small. Frames are independent, so any split of a video into calls gives the same pixels.
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
    """uint8 [N, 3, H, W] -> float32 [t * h * w, 3 * temporal * patch * patch]: the vision tower's rows, on its device.

    `mean` and `std` are those of the rules, in units of a uint8 pixel; as tensors on the frames' device they save the
    wait for a copy. N frames that do not fill the last temporal patch are padded by repeating the last one, which for
    an image means twice itself. Rows go by temporal patch, then by merged block, then inside the block, as
    the model's processor orders them. Bytes are put in order before they become floats: a quarter of the traffic.
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
