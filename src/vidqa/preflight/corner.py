"""What a decode worker sends back when only the decoding is of interest."""

from __future__ import annotations

import numpy as np


def corner(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """One pixel of each of uint8 [N, H, W, 3]."""
    return frames[:, :1, :1].copy()
