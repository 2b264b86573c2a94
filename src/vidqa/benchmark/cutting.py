"""Cuts the clips of a subset that does not come with the benchmark, each written whole or not at all.

A clip that is there is left as it is, so that a run that was stopped goes on.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.benchmark.problems import BENCHMARK_CUT
from vidqa.benchmark.questions import clips_of, home_of
from vidqa.benchmark.raw_sets import Part, agibot, bridge_episodes, holoassist
from vidqa.core.cli import counting
from vidqa.core.files import replacing
from vidqa.core.problem import Problem, ProblemError
from vidqa.video.decode import read_frames
from vidqa.video.probe import probe

if TYPE_CHECKING:
    import numpy as np

BRIDGE_FPS = Fraction(30)
# By subset, from the raw set and names of clips: where each clip comes from, or why it has no source.
SOURCES: dict[str, Callable[[Path, list[str]], Iterator[tuple[str, Part | list[bytes] | ProblemError]]]] = {
    "holoassist": holoassist,
    "agibot": agibot,
    "bridgev2": bridge_episodes,
}
DEMUXERS = {b"\xff\xd8": "jpeg_pipe", b"\x89P": "png_pipe"}  # by the first bytes of a picture


@dataclass
class Cut:
    """The clips that were written, those that existed before, and the problems of the others."""

    folder: Path
    written: list[str] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def cut(name: str, raw: Path, data: Path) -> Cut:
    """Cut the missing clips of a subset. Raises BENCHMARK_DATA, BENCHMARK_CUT."""
    clips = clips_of(home_of(data), name)
    result = Cut(home_of(data) / name / "clips")
    missing: list[str] = []
    for clip in clips:
        (result.existing if (result.folder / clip).is_file() else missing).append(clip)
    with counting(f"{name} clips", len(missing)) as advance:
        for clip, source in SOURCES[name](raw, missing) if missing else ():
            try:
                if isinstance(source, ProblemError):
                    raise source
                if isinstance(source, Part):
                    frames, rate = _of_part(clip, source)
                else:
                    frames, rate = map(_decoded, source), BRIDGE_FPS
                write(result.folder / clip, frames, rate)
                result.written.append(clip)
            except ProblemError as failed:
                result.problems += [_named(clip, problem) for problem in failed.problems]
            except (OSError, ValueError) as failed:
                result.problems.append(BENCHMARK_CUT.at(clip, str(failed)[:200]))
            advance()
    return result


def _named(clip: str, problem: Problem) -> Problem:
    """A problem of a video as one of the clip that was to be cut out of it."""
    if problem.code == BENCHMARK_CUT.name:
        return problem
    return BENCHMARK_CUT.at(clip, f"{problem.where}: {problem.message}")


def _of_part(clip: str, part: Part) -> tuple[Iterator[np.ndarray], Fraction]:
    """The frames of a part of a video and their rate. Raises BENCHMARK_CUT, and the problems of the video."""
    meta = probe(part.path, part.member)
    if part.in_frames:
        first, end = int(part.start), int(part.end)
    elif meta.frame_times_s is not None:
        inside = [at for at, time in enumerate(meta.frame_times_s) if part.start <= time < part.end]
        first, end = (inside[0], inside[-1] + 1) if inside else (0, 0)
    else:
        first, end = (math.ceil(round(second * meta.source_fps, 6)) for second in (part.start, part.end))
    end = min(end, meta.frame_count)
    if not 0 <= first < end:
        unit = "frames" if part.in_frames else "seconds"
        message = f"{unit} {part.start:g} to {part.end:g} are not in its video of {meta.duration_s:.1f} seconds"
        raise BENCHMARK_CUT.error(clip, message)
    rate = Fraction(meta.source_fps).limit_denominator(1001)
    return read_frames(part.path, part.member, range(first, end)), rate


def _decoded(image: bytes) -> np.ndarray:
    """A picture of an episode, JPEG or PNG."""
    import av

    demuxer = DEMUXERS.get(image[:2])
    if demuxer is None:
        raise ValueError("a picture of its episode is neither JPEG nor PNG")
    try:
        with av.open(io.BytesIO(image), "r", format=demuxer) as container:
            return next(container.decode(video=0)).to_ndarray(format="rgb24")
    except (av.FFmpegError, StopIteration) as broken:
        raise ValueError(f"a picture of its episode does not decode: {broken}") from broken


def write(path: Path, frames: Iterator[np.ndarray], rate: Fraction) -> None:
    """Frames uint8 [H, W, 3] as H.264 in mp4; an odd side loses its last row or column. Raises ValueError, OSError."""
    import av

    first = next(frames)
    height, width = first.shape[0] // 2 * 2, first.shape[1] // 2 * 2
    with replacing(path) as partial, av.open(str(partial), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"preset": "fast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in chain([first], frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame[:height, :width].copy(), format="rgb24")))
        container.mux(stream.encode())
