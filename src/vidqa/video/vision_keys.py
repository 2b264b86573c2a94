"""The keys that say how media become frames: those of a spec's table, and those beside one medium of a conversation.

Names and meaning are those of qwen-vl-utils. A key of one medium takes the place of the table's for that medium.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vidqa.video.problems import MEDIA_KEYS
from vidqa.video.types import VisionSpec

if TYPE_CHECKING:
    from vidqa.families import Geometry

IMAGE_KEYS: dict[str, type] = {"max_pixels": int, "min_pixels": int, "resized_height": int, "resized_width": int}
VIDEO_KEYS: dict[str, type] = {
    **{"fps": float, "nframes": int, "min_frames": int, "max_frames": int, "total_pixels": int},
    **IMAGE_KEYS,
    **{"video_start": float, "video_end": float},
}
KEYS_OF: dict[str, dict[str, type]] = {"video": VIDEO_KEYS, "image": IMAGE_KEYS}
VISION_KEYS = (*VIDEO_KEYS, "cap_pixels_per_frame")
PIXEL_BOUNDS = ("total_pixels", "max_pixels", "min_pixels")
ORDERED = (("min_pixels", "max_pixels"), ("min_frames", "max_frames"), ("video_start", "video_end"))


def vision_spec(geometry: Geometry, **keys: Any) -> VisionSpec:
    """What is asked of every medium of a model with this geometry, by the keys of a spec's table (`VISION_KEYS`); None
    is unset. Exactly one of `fps` and `nframes`. Raises MEDIA_KEYS where the model has no such rule."""
    if unknown := keys.keys() - set(VISION_KEYS):
        raise TypeError(f"unknown keys: {', '.join(sorted(unknown))}")
    if (keys.get("fps") is None) == (keys.get("nframes") is None):
        message = f"fps={keys.get('fps')}, nframes={keys.get('nframes')}"
        raise ValueError(f"exactly one of fps and nframes is needed: got {message}")
    return with_keys(VisionSpec(geometry.video, geometry.image), keys)


def with_keys(vision: VisionSpec, keys: Mapping[str, Any]) -> VisionSpec:
    """`vision` with the values of `keys` in place of its own; None is unset. Of the number of frames (fps with its
    bounds, or nframes) and of the size (sides, or bounds in pixels) the last one asked for holds. Raises MEDIA_KEYS."""
    values = {name: value for name, value in keys.items() if value is not None}
    changes: dict[str, Any] = {name: values[name] for name in PIXEL_BOUNDS if name in values}
    if changes:
        changes["sides"] = None
    if "resized_height" in values and "resized_width" in values:
        changes["sides"] = values["resized_height"], values["resized_width"]
    if values.keys() & {"fps", "nframes"}:
        changes |= {name: values.get(name) for name in ("fps", "nframes")}
    elif vision.nframes is not None and values.keys() & {"min_frames", "max_frames"}:
        message = f"min_frames and max_frames bound what fps takes, and nframes is {vision.nframes}"
        raise MEDIA_KEYS.error("max_frames", message, "Write fps beside them.")
    if values.keys() & {"video_start", "video_end"}:
        start, end = vision.shown or (0.0, None)
        changes["shown"] = values.get("video_start", start), values.get("video_end", end)
    video = vision.video
    most = values.get("max_frames", video.max_frames)
    least = values.get("min_frames", min(most, video.min_frames))
    capped = values.get("cap_pixels_per_frame", video.capped)
    if capped and video.max_frame_tokens is None and video.shared_pixels is None:
        raise MEDIA_KEYS.error("cap_pixels_per_frame", "the model's processor has no such bound")
    video = replace(video, min_frames=least, max_frames=max(most, least), capped=capped)
    return replace(vision, video=video, **changes)


def contradictions(keys: Mapping[str, float]) -> Iterator[str]:
    """What keys of one medium say against each other, as qwen-vl-utils refuses it."""
    if "fps" in keys and "nframes" in keys:
        yield "fps and nframes exclude each other"
    if ("resized_height" in keys) != ("resized_width" in keys):
        yield "one of resized_height and resized_width is there, and they hold together"
    for low, high in ORDERED:
        if low in keys and high in keys and (keys[low] > keys[high] or (keys[low] == keys[high] and "video" in low)):
            yield f"{low} is {keys[low]:g} and {high} is {keys[high]:g}"


def without_effect(keys: Mapping[str, float]) -> Iterator[str]:
    """Keys of one medium that other keys of it leave without effect, and why."""
    if "resized_height" in keys and "resized_width" in keys:
        yield from (f"{name}: resized_height and resized_width hold" for name in PIXEL_BOUNDS if name in keys)
    if "nframes" in keys:
        yield from (
            f"{name}: it bounds fps, and nframes holds" for name in ("min_frames", "max_frames") if name in keys
        )
