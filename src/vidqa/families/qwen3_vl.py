"""Qwen3-VL (Cosmos-Reason2, Qwen3-VL, converted Cosmos3-Nano): geometry, placeholders and rope positions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vidqa.families._base import Family, Geometry, read_json
from vidqa.families.problems import MODEL_UNSUPPORTED
from vidqa.families.qwen3_vl_sizes import sizes, tensors
from vidqa.video.types import FramePlan, PixelRules

START, END = "<|vision_start|>", "<|vision_end|>"
PADS = {"video": "<|video_pad|>", "image": "<|image_pad|>"}
BICUBIC = 3  # as image libraries number it

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
VIDEO_DEFAULTS = {
    **COMMON_DEFAULTS,
    "patch_size": 16,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
    "min_frames": 4,
    "max_frames": 768,
    "cap_pixels_per_frame": False,
    "max_video_tokens": 768,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
IMAGE_DEFAULTS = {
    **COMMON_DEFAULTS,
    "patch_size": 14,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 1280 * 28 * 28},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
TOKEN_DEFAULTS = {"image_token_id": 151655, "video_token_id": 151656}


def geometry(folder: Path) -> Geometry:
    """How this model's processor sees pixels. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
    image_file, video_file = "preprocessor_config.json", "video_preprocessor_config.json"
    video_place, video = _settings(folder, "video_processor", (video_file, image_file), VIDEO_DEFAULTS)
    image_place, image = _settings(folder, "image_processor", (image_file,), IMAGE_DEFAULTS)
    # Older image processors wrote min_pixels and max_pixels beside size, and these win.
    for name, older in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        image["size"][name] = image.get(older) or image["size"].get(name)
    return Geometry(video=_rules(video_place, video), image=_rules(image_place, image))


def _settings(folder: Path, key: str, older: Sequence[str], defaults: dict) -> tuple[Path, dict]:
    """One processor's settings and the file they came from: inside processor_config.json, or a file of its own."""
    place = folder / "processor_config.json"
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


def _rules(place: Path, settings: dict) -> PixelRules:
    expected = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": BICUBIC}
    for name, value in expected.items():
        if settings[name] != value:
            raise MODEL_UNSUPPORTED.error(place, f"{name} is {settings[name]!r}; this program computes {value!r}")
    for name in ("patch_size", "merge_size", "temporal_patch_size"):
        _require_positive(place, name, settings[name])
    if not isinstance(settings["rescale_factor"], float) or settings["rescale_factor"] <= 0:
        raise MODEL_UNSUPPORTED.error(place, f"rescale_factor must be above 0, not {settings['rescale_factor']!r}")
    for name in ("shortest_edge", "longest_edge"):
        _require_positive(place, f"size.{name}", settings["size"].get(name))
    return PixelRules(
        patch_size=settings["patch_size"],
        merge_size=settings["merge_size"],
        temporal_patch_size=settings["temporal_patch_size"],
        min_pixels=settings["size"]["shortest_edge"],
        max_pixels=settings["size"]["longest_edge"],
        min_frames=settings.get("min_frames", 1),
        max_frames=settings.get("max_frames", 1),
        max_frame_tokens=settings["max_video_tokens"] if settings.get("cap_pixels_per_frame") else None,
        mean=_in_pixels(place, "image_mean", settings),
        std=_in_pixels(place, "image_std", settings),
    )


def _require_positive(place: Path, name: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise MODEL_UNSUPPORTED.error(place, f"{name} must be a whole number of at least 1, not {value!r}")


def _in_pixels(place: Path, name: str, settings: dict) -> tuple[float, float, float]:
    """image_mean or image_std with the rescale factor folded in, in float32 as transformers does it."""
    values = settings[name]
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(value, int | float) for value in values):
        raise MODEL_UNSUPPORTED.error(place, f"{name} must be three numbers, not {values!r}")
    red, green, blue = np.asarray(values, np.float32) * np.float32(1.0 / settings["rescale_factor"])
    return float(red), float(green), float(blue)


def expand(plan: FramePlan, merge: int) -> str:
    """The text that replaces the template's slot: one timed group of pads for each temporal patch of a video.

    An image's slot becomes its pads alone, since the template itself writes the start and end around it.
    """
    time_patches, rows, columns = plan.grid
    pads = PADS[plan.kind] * (rows * columns // merge**2)
    if plan.kind == "image":
        return pads
    return "".join(f"<{time_s:.1f} seconds>{START}{pads}{END}" for time_s in plan.patch_times_s[:time_patches])


def template_slot(kind: str) -> str:
    """What the chat template writes for one "video" or "image"."""
    return PADS[kind]


def vision_token_ids(folder: Path) -> tuple[int, int]:
    """(image placeholder id, video placeholder id) of config.json."""
    settings = {**TOKEN_DEFAULTS, **read_json(folder, "config.json")}
    for name in TOKEN_DEFAULTS:
        _require_positive(folder / "config.json", name, settings[name])
    return settings["image_token_id"], settings["video_token_id"]


def rope_positions(
    ids: np.ndarray,
    image_id: int,
    video_id: int,
    plans: Sequence[FramePlan],
    merge: int,
) -> np.ndarray:
    """Positions int64 [3, S] (time, row, column) of one unpadded sequence `ids` [S].

    Text advances all three together. A temporal patch stands at one time, its rows and columns counted from there,
    and what follows continues after its longer side; true times stand in the text. Raises ValueError where the
    placeholders and the grids of `plans`, which are in reading order, do not agree.
    """
    patches = {
        token: iter([plan.grid[1:] for plan in plans if plan.kind == kind for _ in range(plan.grid[0])])
        for kind, token in (("image", image_id), ("video", video_id))
    }
    ids = np.asarray(ids)
    vision = np.flatnonzero((ids == image_id) | (ids == video_id))
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
        grid = next(patches[token], None)
        if grid is None:
            raise ValueError(f"placeholder {token} at {done} has no grid left")
        rows, columns = grid[0] // merge, grid[1] // merge
        block = slice(done, done + rows * columns)
        if not (len(ids) >= block.stop and (ids[block] == token).all()):
            raise ValueError(f"expected {rows * columns} placeholders {token} at {done}")
        positions[0, block] = at
        positions[1, block] = at + np.repeat(np.arange(rows), columns)
        positions[2, block] = at + np.tile(np.arange(columns), rows)
        at, done = at + max(rows, columns), block.stop
    if any(next(left, None) is not None for left in patches.values()):
        raise ValueError("more grids than placeholders")
    return positions


QWEN3_VL = Family(
    name="qwen3_vl",
    model_types=("qwen3_vl",),
    geometry=geometry,
    expand=expand,
    template_slot=template_slot,
    vision_token_ids=vision_token_ids,
    rope_positions=rope_positions,
    sizes=sizes,
    tensors=tensors,
)
