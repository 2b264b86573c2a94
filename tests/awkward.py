"""Videos on which tools disagree: few frames, odd counts, odd sizes, odd rates, odd codecs, odd containers.

paths = write_awkward(folder)       # a file for each name of AWKWARD
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from clips import write_clip, write_sparse_avi, write_with_packet_times

NTSC = Fraction(30000, 1001)
SIZE = {"width": 96, "height": 64, "frames": 10}


def _clip(**changes: Any) -> Callable[[Path], Path]:
    return partial(write_clip, **{**SIZE, **changes})


AWKWARD: dict[str, Callable[[Path], Path]] = {
    **{f"frames-{count}.mp4": _clip(frames=count) for count in (1, 2, 3, 5, 7, 11, 13, 17, 31, 64)},
    **{f"rotation-{turn}.mp4": _clip(rotation=turn) for turn in (90, 180, 270)},
    "rotation-90-odd.mov": _clip(rotation=90, width=98, height=62, frames=9),
    **{
        f"rate-{number}.mp4": _clip(fps=rate, frames=12)
        for number, rate in enumerate((Fraction(1, 3), 1, NTSC, 23.976, 59.94, 120, Fraction(25, 2)))
    },
    "variable.mp4": _clip(times_ms=(0, 40, 80, 500, 540, 1900, 2000, 2040, 5000)),
    "variable.mkv": _clip(times_ms=(0, 400, 410, 420, 430, 3000, 3100)),
    "variable-slow-start.mp4": _clip(times_ms=(0, 3000, 3040, 3080, 3120, 3160, 3200)),
    "variable-two.mkv": _clip(times_ms=(0, 1700)),
    "jitter.mp4": _clip(times_ms=(0, 41, 79, 121, 160, 199, 241, 280)),
    "late.mkv": _clip(times_ms=(900, 1000, 1100, 1200, 1300, 1400)),
    "tiny.mp4": _clip(width=16, height=16),
    "narrow.mp4": _clip(width=16, height=160),
    "wide.mp4": _clip(width=256, height=16),
    "odd-size.mp4": _clip(width=71, height=53, pix_fmt="yuv444p"),
    "odd-size.webm": _clip(width=71, height=53, codec="libvpx-vp9"),
    "nearly-square.mp4": _clip(width=94, height=98),
    "large.mp4": _clip(width=640, height=368, frames=4),
    "ten-bit.mp4": _clip(pix_fmt="yuv420p10le"),
    "ten-bit-hevc.mp4": _clip(codec="libx265", pix_fmt="yuv420p10le"),
    "ten-bit-422.mp4": _clip(pix_fmt="yuv422p10le"),
    "full-range.mp4": _clip(pix_fmt="yuvj420p"),
    "yuv444.mp4": _clip(pix_fmt="yuv444p"),
    "grey.mp4": _clip(pix_fmt="gray"),
    "rgb.mkv": _clip(codec="libx264rgb", pix_fmt="rgb24"),
    "av1.mp4": _clip(codec="libsvtav1"),
    "av1.webm": _clip(codec="libsvtav1", frames=7),
    "av1-ten-bit.mkv": _clip(codec="libsvtav1", pix_fmt="yuv420p10le"),
    "hevc.mp4": _clip(codec="libx265", b_frames=2),
    "vp8.webm": _clip(codec="libvpx", audio=True),
    "vp9.webm": _clip(codec="libvpx-vp9", frames=9),
    "mpeg4.avi": _clip(codec="mpeg4"),
    "mpeg4-b.mp4": _clip(codec="mpeg4", b_frames=2),
    "mpeg2.ts": _clip(codec="mpeg2video", fps=25),
    "mjpeg.avi": _clip(codec="mjpeg", pix_fmt="yuvj420p"),
    "prores.mov": _clip(codec="prores_ks", pix_fmt="yuv422p10le"),
    "ffv1.mkv": _clip(codec="ffv1"),
    "gif.gif": _clip(codec="gif", pix_fmt="rgb8"),
    "b-frames.mp4": _clip(b_frames=3, frames=25),
    "b-frames.ts": _clip(b_frames=2, frames=21),
    "intra.mp4": _clip(keyframe_every=1),
    "one-keyframe.mp4": _clip(keyframe_every=1000, frames=50),
    "sound.mov": _clip(audio=True, b_frames=2),
    "sound.mkv": _clip(audio=True),
    "vídeo 日本 'x', 100%:a.mp4": _clip(),
    "sparse.avi": partial(write_sparse_avi, at=(0, 1, 2, 9), frames=20, width=96, height=64),
    "sparse-no-index.avi": partial(write_sparse_avi, at=(0, 4, 5), frames=9, index=False, width=96, height=64),
    "decode-times.mp4": partial(write_with_packet_times, **SIZE, b_frames=2),
}


def write_awkward(folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return {name: write(folder / name) for name, write in AWKWARD.items()}
