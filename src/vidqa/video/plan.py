"""Frame numbers, size and token count of a video or image. Pure arithmetic; no file is opened.

The arithmetic is that of transformers' video and image processors, rounding included, so that a model sees the same
input in training as in any other program. All plans of the program are made here; a family sets the `PixelRules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from vidqa.video.problems import MEDIA_KEYS, MEDIA_TOO_NARROW
from vidqa.video.types import FramePlan, PixelRules, VideoMeta, VisionSpec

MAX_ASPECT = 200  # the processors refuse narrower pictures
SIDES_TOKENS = (4, 16384)  # of one frame: qwen-vl-utils' bounds on explicit sides
FitSides = Callable[[int], tuple[int, int]]


def plan_frames(meta: VideoMeta, vision: VisionSpec, span: tuple[float, float] | None = None) -> FramePlan:
    """Plan frames, size, grid and tokens of one video, or of its `span` (start, end) in seconds: the same plan as for a
    clip that had been cut from it, except that `indices` count the file's frames.

    It follows transformers, with longest_edge = total_pixels * temporal_patch_size (and at most max_pixels for each
    frame), with these differences:
    * Variable frame rate: the frames nearest to evenly spaced timestamps, with their true timestamps; transformers
      would space frame numbers evenly and read them as timestamps.
    * Budget: always tokens <= total_pixels / factor^2. Where transformers exceeds it (it ignores the padding frame of
      odd counts, a side never falls below one factor, and small videos are enlarged to its lower bound), the size is
      the one for the largest smaller longest_edge tried that fits.
    * A single frame is doubled, and frames are repeated where a video has too few; transformers refuses both.

    The timestamp of a temporal patch is the mean of its first and last frame. With `each_frame` rules, patches are
    evenly spaced from 0 by their duration. Frame numbers are rounded down exactly, where transformers' float32 is one
    too high in videos of more than 100,000 frames, and selects a frame past the end for some counts.
    Raises MEDIA_KEYS when the budget is less than one token per temporal patch and for a span without a frame, and
    MEDIA_TOO_NARROW.
    """
    rules = vision.video
    if vision.shown is not None:
        start, end = vision.shown
        low, high = span or (0.0, meta.duration_s)
        span = (max(low, start), high if end is None else min(high, _behind(meta, end)))
    if span is not None:
        first, meta = _cut(meta, span)
        plan = plan_frames(meta, replace(vision, shown=None))
        return replace(plan, indices=tuple(first + index for index in plan.indices))
    indices = _sample(meta, vision)
    source_times_s = _times(meta, indices)
    step = rules.temporal_patch_size
    patch_times_s = _patch_times(meta, source_times_s, rules)
    frames = max(len(indices), step)
    rules = _enlarging(rules, vision, 1 if rules.each_frame else len(patch_times_s) * step)

    def sides(longest: int) -> tuple[int, int]:
        fit = _frame_sides if rules.each_frame else _video_sides
        return fit(frames, meta.height, meta.width, rules, longest)

    height, width = _within_budget(sides, step, len(patch_times_s), rules, vision)
    return _plan("video", indices, source_times_s, patch_times_s, height, width, rules)


def plan_image(width: int, height: int, vision: VisionSpec) -> FramePlan:
    """Plan size, grid and tokens of one image; total_pixels and max_pixels bound height x width. Raises as
    `plan_frames` does."""
    rules = _enlarging(vision.image, vision, 1)

    def sides(longest: int) -> tuple[int, int]:
        shortest = min(rules.min_pixels, longest)
        return _round_sides(1, 1, height, width, rules.factor, shortest, longest)

    height_out, width_out = _within_budget(sides, 1, 1, rules, vision)
    return _plan("image", (0,), (0.0,), (0.0,), height_out, width_out, rules)


def _enlarging(rules: PixelRules, vision: VisionSpec, frames: int) -> PixelRules:
    """The rules with the lower bound of `vision` for `frames` frames; the upper bound is raised where it is smaller."""
    if vision.min_pixels is None:
        return rules
    least = vision.min_pixels * frames
    return replace(rules, min_pixels=least, max_pixels=max(rules.max_pixels, least))


def _behind(meta: VideoMeta, second: float) -> float:
    """End time of the frame that is displayed at `second`: `video_end` includes that frame, as in qwen-vl-utils."""
    if meta.frame_times_s is None:
        return (math.floor(round(second * meta.source_fps, 6)) + 1) / meta.source_fps
    number = int(np.searchsorted(meta.frame_times_s, second, side="right"))
    return meta.frame_times_s[number] if number < meta.frame_count else meta.duration_s


def _cut(meta: VideoMeta, span: tuple[float, float]) -> tuple[int, VideoMeta]:
    """The first frame number of a span, and the metadata that a clip of the span alone would have: the frames with
    timestamps inside, its end excluded."""
    if meta.frame_times_s is None:
        first, end = (min(meta.frame_count, math.ceil(round(at * meta.source_fps, 6))) for at in span)
    else:
        first, end = np.searchsorted(meta.frame_times_s, span).tolist()
    if span[1] >= meta.duration_s:
        end = meta.frame_count
    if first >= end:
        message = f"no frame is between {span[0]:g} and {span[1]:g} s of a video of {meta.duration_s:g} s"
        raise MEDIA_KEYS.error("span", message, "Select a part within the video, or a longer part.")
    times_s = meta.frame_times_s and tuple(at - meta.frame_times_s[first] for at in meta.frame_times_s[first:end])
    duration_s = min(span[1], meta.duration_s) - span[0]
    return first, replace(meta, frame_count=end - first, duration_s=duration_s, frame_times_s=times_s)


def _sample(meta: VideoMeta, vision: VisionSpec) -> tuple[int, ...]:
    """Source frame numbers, evenly spaced from the first frame to the last, by number or (variable rate) timestamp."""
    if vision.video.each_frame:
        return _sample_shares(meta, vision)
    count = _sample_count(meta, vision)
    if meta.frame_times_s is None:
        return tuple(np.linspace(0, meta.frame_count - 1, count).round().astype(int).tolist())
    times_s = np.asarray(meta.frame_times_s)
    even_times_s = np.linspace(times_s[0], times_s[-1], count)
    after = np.searchsorted(times_s, even_times_s).clip(1, max(len(times_s) - 1, 1))
    nearer_before = even_times_s - times_s[after - 1] <= times_s[after.clip(max=len(times_s) - 1)] - even_times_s
    return tuple(np.where(nearer_before, after - 1, after).clip(0, len(times_s) - 1).tolist())


def _sample_count(meta: VideoMeta, vision: VisionSpec) -> int:
    if vision.nframes is not None:
        return vision.nframes
    rules = vision.video
    count = int(meta.frame_count / meta.source_fps * (vision.fps or 0))
    return min(max(count, rules.min_frames), rules.max_frames, meta.frame_count)


def _sample_shares(meta: VideoMeta, vision: VisionSpec) -> tuple[int, ...]:
    """Source frame numbers: the video in equal shares, by number or (variable rate) by timestamp, and of each share the
    frame that is displayed at its start."""
    count, frames = _share_count(meta, vision), meta.frame_count
    if meta.frame_times_s is None:
        return tuple(at * frames // count for at in range(count))
    starts_s = np.arange(count) * (meta.duration_s / count) + meta.frame_times_s[0]
    shown = np.searchsorted(meta.frame_times_s, np.round(starts_s, 6), side="right") - 1
    return tuple(shown.clip(0, frames - 1).tolist())


def _share_count(meta: VideoMeta, vision: VisionSpec) -> int:
    """Frame count as a multiple of the temporal patch size; a shorter video gives all its frames."""
    rules, step, fps = vision.video, vision.video.temporal_patch_size, vision.fps
    if fps is None:
        return max(step, round((vision.nframes or 0) / step) * step)
    most = min(rules.max_frames, meta.frame_count) // step * step
    frames = min(max(meta.frame_count / meta.source_fps * fps, rules.min_frames), most)
    return max(math.floor(frames / step) * step, min(step, meta.frame_count))


def _patch_times(meta: VideoMeta, times_s: tuple[float, ...], rules: PixelRules) -> tuple[float, ...]:
    """The timestamp of every temporal patch, see `plan_frames`."""
    step = rules.temporal_patch_size
    if rules.each_frame:
        patch_s = step / (len(times_s) / meta.frame_count * meta.source_fps)
        return tuple(at * patch_s for at in range(-(-len(times_s) // step)))
    padded = [*times_s, *times_s[-1:] * (-len(times_s) % step)]
    return tuple((padded[i] + padded[i + step - 1]) / 2 for i in range(0, len(padded), step))


def _times(meta: VideoMeta, indices: tuple[int, ...]) -> tuple[float, ...]:
    if meta.frame_times_s is not None:
        return tuple(meta.frame_times_s[i] for i in indices)
    return tuple(i / meta.source_fps for i in indices)


def _within_budget(sides: FitSides, step: int, patches: int, rules: PixelRules, vision: VisionSpec) -> tuple[int, int]:
    """The sides for the requested longest edge (of `step` frames a patch), reduced where the tokens of all temporal
    `patches` exceed the budget; explicit sides are only rounded."""
    if vision.sides is not None:
        least, most = (tokens * rules.factor**2 for tokens in SIDES_TOKENS)
        return _round_sides(1, 1, *vision.sides, rules.factor, least, most)
    whole = rules.max_pixels * (patches * step if rules.each_frame else 1)
    longest = whole if vision.total_pixels is None or rules.each_frame else vision.total_pixels * step
    bounds = {"total_pixels": vision.total_pixels, "max_pixels": (vision.max_pixels or 0) * patches or None}
    limits = {key: pixels for key, pixels in bounds.items() if pixels is not None}
    if not limits:
        return sides(longest)
    key = min(limits, key=lambda key: limits[key])
    unbounded, longest, budget = longest, min(longest, limits[key] * step), limits[key] // rules.factor**2
    if budget < patches:
        value = getattr(vision, key)
        message = f"{key} {value} allows {budget} tokens, {patches} temporal patches need one each"
        enough = patches * rules.factor**2 if key == "total_pixels" else rules.factor**2
        raise MEDIA_KEYS.error(f"vision.{key}", message, f"Set {key} to at least {enough}, or take fewer frames.")
    if patches * math.prod(sides(unbounded)) // rules.factor**2 <= budget:
        return sides(unbounded)  # a narrow video may fit unreduced; a bounded edge would make it smaller than needed
    while True:  # ends: at longest = 1 both sides are one factor, which is one token per patch
        height, width = sides(longest)
        tokens = patches * height * width // rules.factor**2
        if tokens <= budget:
            return height, width
        longest = max(1, min(longest - 1, longest * budget // tokens))


def _video_sides(frames: int, height: int, width: int, rules: PixelRules, longest: int) -> tuple[int, int]:
    """(height, width) to which transformers resizes a video, given longest_edge."""
    factor, shortest = rules.factor, min(rules.min_pixels, longest)
    if rules.capped and rules.max_frame_tokens is not None:
        per_frame = min(rules.max_frame_tokens * factor**2, longest // frames)
        longest = max(per_frame, int(shortest * 1.05)) * frames
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    counted = round(frames / rules.temporal_patch_size) * rules.temporal_patch_size
    return _round_sides(frames, counted, height, width, factor, shortest, longest)


def _frame_sides(frames: int, height: int, width: int, rules: PixelRules, longest: int) -> tuple[int, int]:
    """(height, width) to which transformers resizes a video with bounds per frame, given the longest edge of all frames
    together."""
    longest = max(1, longest // frames)
    shortest = min(rules.min_pixels, longest)
    if rules.capped and rules.shared_pixels is not None:
        share = rules.shared_pixels * rules.temporal_patch_size // frames
        longest = max(min(longest, share), int(shortest * 1.05))
    return _round_sides(1, 1, height, width, rules.factor, shortest, longest)


def _round_sides(
    frames: int, counted: int, height: int, width: int, factor: int, shortest: int, longest: int
) -> tuple[int, int]:
    """Sides as multiples of `factor`, near the source's aspect ratio, frames x height x width between the two bounds.

    `counted` is the frame count rounded to temporal patches: transformers compares with it, but scales with `frames`.
    Like Python's round, a half is rounded to the even neighbour.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        message = f"the picture is {width} x {height}, more than {MAX_ASPECT}:1"
        raise MEDIA_TOO_NARROW.error("plan", message)
    rows, columns = round(height / factor), round(width / factor)
    pixels = counted * rows * columns * factor**2
    if pixels > longest:
        shrink = math.sqrt(frames * height * width / longest)
        rows = max(1, math.floor(height / shrink / factor))
        columns = max(1, math.floor(width / shrink / factor))
    elif pixels < shortest:
        grow = math.sqrt(shortest / (frames * height * width))
        rows, columns = math.ceil(height * grow / factor), math.ceil(width * grow / factor)
    return rows * factor, columns * factor


def _plan(
    kind: str,
    indices: tuple[int, ...],
    times_s: tuple[float, ...],
    patch_times_s: tuple[float, ...],
    height: int,
    width: int,
    rules: PixelRules,
) -> FramePlan:
    grid = (len(patch_times_s), height // rules.patch_size, width // rules.patch_size)
    patches = math.prod(grid)
    tokens = patches // rules.merge_size**2
    return FramePlan(kind, indices, times_s, height, width, grid, tokens, patches, patch_times_s)
