"""Write frames as an H.264 clip that most players accept; the file appears only when it is complete."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np

from vidqa.core.files import replacing


def write_h264(
    path: Path, frames: Iterable[np.ndarray], rate: Fraction, preset: str, crf: int = 23, threads: int = 0
) -> None:
    """Write at least one frame, uint8 [H, W, 3], at `rate` frames per second, as H.264 in mp4; an odd side loses its
    last row or column. `preset` (encoding speed) and `crf` (quality; a smaller number is better) are libx264's.
    `threads` = 0 uses every core. Raises ValueError, OSError."""
    import av

    frames = iter(frames)
    first = next(frames)
    height, width = (side // 2 * 2 for side in first.shape[:2])
    with replacing(path) as temporary, av.open(str(temporary), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"preset": preset, "crf": str(crf)})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.thread_count = threads
        for frame in chain([first], frames):
            pixels = np.ascontiguousarray(frame[:height, :width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
