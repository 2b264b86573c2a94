"""Shared code of Qwen2.5-VL and Qwen3-VL: processor settings, placeholders, and rope positions of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from vidqa.core.files import write_json
from vidqa.families.model_files import ConfigTable, Float, parse, read_json
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.video.types import FramePlan, PixelRules

# The chat template's text for one medium.
PADS = {"video": "<|video_pad|>", "image": "<|image_pad|>"}
# Keys of config.json with ids of these tokens, and transformers' default ids for absent keys.
TOKEN_IDS = {
    "image_token_id": (PADS["image"], 151655),
    "video_token_id": (PADS["video"], 151656),
    "vision_start_token_id": ("<|vision_start|>", 151652),
    "vision_end_token_id": ("<|vision_end|>", 151653),
}
PROCESSOR_FILE = "processor_config.json"
IMAGE_FILE, VIDEO_FILE = "preprocessor_config.json", "video_preprocessor_config.json"

Positive = Annotated[int, Field(ge=1)]
Color = Annotated[list[float], Field(min_length=3, max_length=3)]


class Edges(ConfigTable):
    """Bounds of a frame or image, in pixels."""

    shortest_edge: Positive
    longest_edge: Positive


class ProcessorSettings(ConfigTable):
    """Processor settings that affect pixels; a Literal type lists the supported values."""

    do_resize: Literal[True] = True
    do_rescale: Literal[True] = True
    do_normalize: Literal[True] = True
    resample: Literal[3] = 3  # bicubic, as numbered by image libraries
    rescale_factor: Annotated[Float, Field(gt=0)] = 1 / 255
    patch_size: Positive
    merge_size: Positive = 2
    temporal_patch_size: Positive = 2
    size: Edges
    min_frames: int = 4
    max_frames: int = 768
    max_video_tokens: Positive = 768
    cap_pixels_per_frame: Any = False
    image_mean: Color
    image_std: Color

    def in_pixels(self, values: list[float]) -> tuple[float, float, float]:
        """A mean or standard deviation with the rescale factor folded in, in float32 as in transformers."""
        red, green, blue = np.asarray(values, np.float32) * np.float32(1.0 / self.rescale_factor)
        return float(red), float(green), float(blue)


CLIP_COLORS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
# Defaults of transformers' processor classes for keys that a model folder lacks, beside the defaults above.
IMAGE_DEFAULTS = {
    **CLIP_COLORS,
    "patch_size": 14,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28},
    "min_frames": 1,
    "max_frames": 1,
}


def video_settings(folder: Path, defaults: dict[str, Any], *, older_bounds: bool = False) -> ProcessorSettings:
    """Read the video processor's settings. Raises MODEL_BROKEN, MODEL_UNSUPPORTED."""
    place, settings = _settings(folder, "video_processor", (VIDEO_FILE, IMAGE_FILE), defaults)
    if older_bounds:
        _take_older_bounds(settings)
    return parse({"video_processor": settings}, "video_processor", place, ProcessorSettings)


def image_rules(folder: Path) -> PixelRules:
    """Read the image processor's rules; all models use one class. Raises MODEL_BROKEN, MODEL_UNSUPPORTED."""
    place, settings = _settings(folder, "image_processor", (IMAGE_FILE,), IMAGE_DEFAULTS)
    _take_older_bounds(settings)
    return pixel_rules(parse({"image_processor": settings}, "image_processor", place, ProcessorSettings))


def _take_older_bounds(settings: dict[str, Any]) -> None:
    """Override size by min_pixels and max_pixels, which older processors wrote beside it."""
    for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        settings["size"][name] = settings.get(older) or settings["size"].get(name)


def write_frame_cap(folder: Path, capped: bool | None) -> None:
    """Write `capped` as cap_pixels_per_frame into the video processor's settings; None writes the current value, which
    is false if the key is absent."""
    place, settings = _settings(folder, "video_processor", (VIDEO_FILE, IMAGE_FILE), {"size": {}})
    written = read_json(folder, place.name)
    inside = written["video_processor"] if place.name == PROCESSOR_FILE else written
    inside["cap_pixels_per_frame"] = bool(settings.get("cap_pixels_per_frame")) if capped is None else capped
    write_json(place, written)


def _settings(folder: Path, key: str, older: Sequence[str], defaults: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """One processor's settings and their file: processor_config.json, or a file for this processor alone."""
    place = folder / PROCESSOR_FILE
    written = read_json(folder, place.name).get(key) if place.is_file() else None
    if written is None:
        place = next((folder / name for name in older if (folder / name).is_file()), folder / older[0])
        written = read_json(folder, place.name)
    if not isinstance(written, dict):
        raise MODEL_UNSUPPORTED.error(place, f"{key} must be a table of settings, not {written!r}")
    settings = {**defaults, **{name: value for name, value in written.items() if value is not None}}
    if not isinstance(settings["size"], dict):
        raise MODEL_UNSUPPORTED.error(place, f"size must be {{shortest_edge, longest_edge}}, not {settings['size']!r}")
    return place, {**settings, "size": dict(settings["size"])}


def pixel_rules(settings: ProcessorSettings, **more: Any) -> PixelRules:
    """Build rules from checked settings; `more` are rules of one family."""
    return PixelRules(
        patch_size=settings.patch_size,
        merge_size=settings.merge_size,
        temporal_patch_size=settings.temporal_patch_size,
        min_pixels=settings.size.shortest_edge,
        max_pixels=settings.size.longest_edge,
        min_frames=settings.min_frames,
        max_frames=settings.max_frames,
        capped=bool(settings.cap_pixels_per_frame),
        mean=settings.in_pixels(settings.image_mean),
        std=settings.in_pixels(settings.image_std),
        **more,
    )


def rope_positions(
    ids: np.ndarray,
    image_id: int,
    video_id: int,
    plans: Sequence[FramePlan],
    merge: int,
    run_times: Callable[[FramePlan], list[np.ndarray]],
) -> np.ndarray:
    """See `Family`: text advances all three axes together. `run_times(plan)` returns, for each run of a medium's
    placeholders, the times int64 [t] of its temporal patches, counted from the run's start."""
    blocks = {
        token: iter([_block(times, plan, merge) for plan in plans if plan.kind == kind for times in run_times(plan)])
        for kind, token in (("image", image_id), ("video", video_id))
    }
    ids = np.asarray(ids)
    vision = np.flatnonzero(np.isin(ids, list(blocks)))
    positions = np.empty((3, len(ids)), np.int64)
    at = done = 0  # `done` tokens have positions; the next text token has position `at`
    while done < len(ids):
        following = np.searchsorted(vision, done)
        until = int(vision[following]) if following < len(vision) else len(ids)
        positions[:, done:until] = at + np.arange(until - done)
        at, done = at + until - done, until
        if done == len(ids):
            break
        token = int(ids[done])
        block = next(blocks[token], None)
        if block is None:
            raise ValueError(f"placeholder {token} at {done} has no grid left")
        inside, further = block
        run = slice(done, done + inside.shape[1])
        if not (len(ids) >= run.stop and (ids[run] == token).all()):
            raise ValueError(f"expected {inside.shape[1]} placeholders {token} at {done}")
        positions[:, run] = at + inside
        at, done = at + further, run.stop
    if any(next(left, None) is not None for left in blocks.values()):
        raise ValueError("more grids than placeholders")
    return positions


def _block(times: np.ndarray, plan: FramePlan, merge: int) -> tuple[np.ndarray, int]:
    """Positions [3, n] of a run of placeholders, counted from its start, and the offset of the text after it: the
    longer of rows and columns."""
    rows, columns = plan.grid[1] // merge, plan.grid[2] // merge
    inside = np.empty((3, len(times), rows, columns), np.int64)
    inside[0] = times[:, None, None]
    inside[1] = np.arange(rows)[:, None]
    inside[2] = np.arange(columns)
    return inside.reshape(3, -1), max(rows, columns)
