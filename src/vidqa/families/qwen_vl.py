"""What Qwen2.5-VL and Qwen3-VL have in common: processor settings, placeholders, and rope positions of a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.core.files import write_json
from vidqa.families.model_files import read_json
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.video.types import FramePlan, PixelRules

PADS = {"video": "<|video_pad|>", "image": "<|image_pad|>"}
BICUBIC = 3  # as image libraries number it
PROCESSOR_FILE = "processor_config.json"
IMAGE_FILE, VIDEO_FILE = "preprocessor_config.json", "video_preprocessor_config.json"

# What transformers' processor classes hold where a model folder says nothing.
COMMON_DEFAULTS = {
    "temporal_patch_size": 2,
    "merge_size": 2,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "resample": BICUBIC,
    "rescale_factor": 1 / 255,
}
VIDEO_DEFAULTS = {**COMMON_DEFAULTS, "min_frames": 4, "max_frames": 768, "cap_pixels_per_frame": False}
CLIP_COLORS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
IMAGE_DEFAULTS = {
    **COMMON_DEFAULTS,
    **CLIP_COLORS,
    "patch_size": 14,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28},
}
TOKEN_DEFAULTS = {"image_token_id": 151655, "video_token_id": 151656}


def video_settings(folder: Path, defaults: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The video processor's settings and the file they came from. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
    return _settings(folder, "video_processor", (VIDEO_FILE, IMAGE_FILE), defaults)


def image_rules(folder: Path) -> PixelRules:
    """The rules of the image processor, one class for all. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
    place, settings = _settings(folder, "image_processor", (IMAGE_FILE,), IMAGE_DEFAULTS)
    take_older_bounds(settings)
    return pixel_rules(place, settings)


def take_older_bounds(settings: dict[str, Any]) -> None:
    """Older processors wrote min_pixels and max_pixels beside size, and these win."""
    for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        settings["size"][name] = settings.get(older) or settings["size"].get(name)


def write_frame_cap(folder: Path, capped: bool | None) -> None:
    """Write `capped` as cap_pixels_per_frame into the video processor's settings; None writes what they mean now, which
    is false where they say nothing."""
    place, settings = video_settings(folder, {"cap_pixels_per_frame": False, "size": {}})
    written = read_json(folder, place.name)
    inside = written["video_processor"] if place.name == PROCESSOR_FILE else written
    inside["cap_pixels_per_frame"] = bool(settings["cap_pixels_per_frame"]) if capped is None else capped
    write_json(place, written)


def _settings(folder: Path, key: str, older: Sequence[str], defaults: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """One processor's settings and the file they came from: inside processor_config.json, or a file of its own."""
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


def pixel_rules(place: Path, settings: dict[str, Any], **more: Any) -> PixelRules:
    """Rules from checked settings; `more` are those of one family. Raises MODEL_UNSUPPORTED."""
    expected = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": BICUBIC}
    for name, value in expected.items():
        if settings[name] != value:
            raise MODEL_UNSUPPORTED.error(place, f"{name} is {settings[name]!r}; this program computes {value!r}")
    for name in ("patch_size", "merge_size", "temporal_patch_size"):
        require_positive(place, name, settings[name])
    if not isinstance(settings["rescale_factor"], float) or settings["rescale_factor"] <= 0:
        raise MODEL_UNSUPPORTED.error(place, f"rescale_factor must be above 0, not {settings['rescale_factor']!r}")
    for name in ("shortest_edge", "longest_edge"):
        require_positive(place, f"size.{name}", settings["size"].get(name))
    return PixelRules(
        patch_size=settings["patch_size"],
        merge_size=settings["merge_size"],
        temporal_patch_size=settings["temporal_patch_size"],
        min_pixels=settings["size"]["shortest_edge"],
        max_pixels=settings["size"]["longest_edge"],
        min_frames=settings.get("min_frames", 1),
        max_frames=settings.get("max_frames", 1),
        capped=bool(settings.get("cap_pixels_per_frame")),
        mean=_in_pixels(place, "image_mean", settings),
        std=_in_pixels(place, "image_std", settings),
        **more,
    )


def require_positive(place: Path, name: str, value: object) -> None:
    """Raises MODEL_UNSUPPORTED."""
    if not isinstance(value, int) or value < 1:
        raise MODEL_UNSUPPORTED.error(place, f"{name} must be a whole number of at least 1, not {value!r}")


def _in_pixels(place: Path, name: str, settings: dict[str, Any]) -> tuple[float, float, float]:
    """image_mean or image_std with the rescale factor folded in, in float32 as transformers does it."""
    values = settings[name]
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(value, int | float) for value in values):
        raise MODEL_UNSUPPORTED.error(place, f"{name} must be three numbers, not {values!r}")
    red, green, blue = np.asarray(values, np.float32) * np.float32(1.0 / settings["rescale_factor"])
    return float(red), float(green), float(blue)


def template_slot(kind: str) -> str:
    """What the chat template writes for one "video" or "image"."""
    return PADS[kind]


def vision_token_ids(folder: Path) -> tuple[int, int]:
    """(image placeholder id, video placeholder id) of config.json."""
    settings = {**TOKEN_DEFAULTS, **read_json(folder, "config.json")}
    for name in TOKEN_DEFAULTS:
        require_positive(folder / "config.json", name, settings[name])
    return settings["image_token_id"], settings["video_token_id"]


Block = tuple[np.ndarray, int]  # positions [3, n] of a run of placeholders, and how far the text behind it moves on


def sequence_positions(ids: np.ndarray, blocks: dict[int, Iterator[Block]]) -> np.ndarray:
    """Positions int64 [3, S] of one unpadded sequence `ids` [S]: text advances all three together.

    `blocks` has for each placeholder id its runs in reading order, with positions counted from the run's start. Raises
    ValueError where the placeholders and the runs do not agree.
    """
    ids = np.asarray(ids)
    vision = np.flatnonzero(np.isin(ids, list(blocks)))
    positions = np.empty((3, len(ids)), np.int64)
    at = done = 0  # `done` tokens have their positions; the next text token stands at `at`
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


def grid_positions(times: np.ndarray, plan: FramePlan, merge: int) -> Block:
    """A run of placeholders for temporal patches at `times` int64 [t] (counted from the run's start): rows and columns
    counted from there, and what follows continues after the longer side."""
    rows, columns = plan.grid[1] // merge, plan.grid[2] // merge
    inside = np.empty((3, len(times), rows, columns), np.int64)
    inside[0] = times[:, None, None]
    inside[1] = np.arange(rows)[:, None]
    inside[2] = np.arange(columns)
    return inside.reshape(3, -1), max(rows, columns)
