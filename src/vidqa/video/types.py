"""Types of the video layer: metadata of a file (VideoMeta, ImageMeta), sampling and resizing settings (VisionSpec), and
the planned frames (FramePlan). The settings come from a table of the spec; keys beside one medium of a conversation
override the table for that medium. Names and meaning of the keys are those of qwen-vl-utils.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vidqa.video.problems import MEDIA_KEYS

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


@dataclass(frozen=True, slots=True)
class VideoMeta:
    """Metadata of a video file. `width` and `height` are as displayed, after `rotation` (degrees) is applied.

    `frame_times_s` holds the presentation timestamp of every frame, from 0; it is set only for a variable frame rate.
    `frames_lost` counts pictures at the beginning that cannot be decoded, because they refer to pictures before them;
    they are not counted as frames. `rate_assumed`: no header states a frame rate.
    """

    source_fps: float
    frame_count: int
    duration_s: float
    width: int
    height: int
    rotation: int = 0
    codec: str = ""
    frame_times_s: tuple[float, ...] | None = None
    frames_lost: int = 0
    rate_assumed: bool = False


@dataclass(frozen=True, slots=True)
class ImageMeta:
    """Size of an image as displayed, after `orientation` (EXIF 1 to 8) is applied; `mode` is Pillow's, such as RGB."""

    width: int
    height: int
    orientation: int = 1
    mode: str = "RGB"


@dataclass(frozen=True, slots=True)
class PixelRules:
    """Resizing and normalization rules of a processor, read from the model folder by the model family.

    `min_pixels` and `max_pixels` bound frames x height x width of one video (height x width of one image). One token
    covers factor x factor pixels of `temporal_patch_size` frames. The vision tower receives (pixel - mean) / std for
    each channel, in units of a uint8 pixel: the processor's rescale factor is folded in (127.5, not 0.5).

    With `each_frame` the two bound height x width of every frame, and sampling differs: the number of frames is a
    multiple of the temporal patch size, and each frame is at the start of its equal share of the video.
    """

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    min_frames: int = 1
    max_frames: int = 1
    capped: bool = False  # the processor's cap_pixels_per_frame: one of the next two bounds applies, too
    max_frame_tokens: int | None = None  # of each frame
    each_frame: bool = False
    shared_pixels: int | None = None  # with `each_frame`: of all temporal patches of a video
    mean: tuple[float, float, float] = (127.5, 127.5, 127.5)
    std: tuple[float, float, float] = (127.5, 127.5, 127.5)

    @property
    def factor(self) -> int:
        """The common divisor of height and width, in pixels."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """Frame sampling and resizing settings. Exactly one of `fps` (sampled frames per second) and `nframes` is set.

    `total_pixels` is the spec's key: an upper bound counted per temporal patch, so total_pixels / factor^2 is the
    largest number of tokens of one video (one image). `max_pixels`, the spec's key too, bounds every single frame (and
    an image). The smaller bound applies; None leaves the processor's own bound. `min_pixels` enlarges every smaller
    frame. `sides` (height, width) is the size of every frame and image, whatever its aspect ratio. `shown` is the used
    part of every video, (start, end) in seconds, including the frame at its end; an end of None is the video's end.
    """

    video: PixelRules
    image: PixelRules
    fps: float | None = None
    nframes: int | None = None
    total_pixels: int | None = None
    max_pixels: int | None = None
    min_pixels: int | None = None
    sides: tuple[int, int] | None = None
    shown: tuple[float, float | None] | None = None


@dataclass(frozen=True, slots=True)
class FramePlan:
    """Planned frames of one video or image: everything about it that training and evaluation must agree on.

    `indices` are source frame numbers in presentation order, not padded; `times_s` are their true timestamps.
    `grid` is (t, h, w) in patches; t counts temporal patches, the last frame repeated where the count is odd.
    """

    kind: str  # "video" | "image"
    indices: tuple[int, ...]
    times_s: tuple[float, ...]
    height: int
    width: int
    grid: tuple[int, int, int]
    tokens: int  # placeholders in the decoder: t * h * w / merge^2
    patches: int  # rows into the vision tower: t * h * w
    patch_times_s: tuple[float, ...]  # one per temporal patch, as in the prompt: see `plan.plan_frames`


def vision_spec(geometry: Geometry, **keys: Any) -> VisionSpec:
    """Build the settings of a model with this geometry from the keys of a spec's table (`VISION_KEYS`); None is unset.
    Exactly one of `fps` and `nframes` is needed. Raises MEDIA_KEYS for a bound that the model's processor lacks."""
    if unknown := keys.keys() - set(VISION_KEYS):
        raise TypeError(f"unknown keys: {', '.join(sorted(unknown))}")
    if (keys.get("fps") is None) == (keys.get("nframes") is None):
        message = f"fps={keys.get('fps')}, nframes={keys.get('nframes')}"
        raise ValueError(f"exactly one of fps and nframes is needed: got {message}")
    return with_keys(VisionSpec(geometry.video, geometry.image), keys)


def with_keys(vision: VisionSpec, keys: Mapping[str, Any]) -> VisionSpec:
    """Override settings of `vision` by `keys`; None is unset. Keys of the frame count (fps with its bounds, or nframes)
    replace earlier ones, as do keys of the size (sides, or bounds in pixels). Raises MEDIA_KEYS."""
    values = {name: value for name, value in keys.items() if value is not None}
    changes: dict[str, Any] = {name: values[name] for name in PIXEL_BOUNDS if name in values}
    if changes:
        changes["sides"] = None
    if "resized_height" in values and "resized_width" in values:
        changes["sides"] = values["resized_height"], values["resized_width"]
    if values.keys() & {"fps", "nframes"}:
        changes |= {name: values.get(name) for name in ("fps", "nframes")}
    elif vision.nframes is not None and values.keys() & {"min_frames", "max_frames"}:
        message = f"min_frames and max_frames bound fps sampling, but nframes is {vision.nframes}"
        raise MEDIA_KEYS.error("max_frames", message, "Set fps with them.")
    if values.keys() & {"video_start", "video_end"}:
        start, end = vision.shown or (0.0, None)
        changes["shown"] = values.get("video_start", start), values.get("video_end", end)
    video = vision.video
    most = values.get("max_frames", video.max_frames)
    least = values.get("min_frames", min(most, video.min_frames))
    capped = values.get("cap_pixels_per_frame", video.capped)
    if capped and video.max_frame_tokens is None and video.shared_pixels is None:
        raise MEDIA_KEYS.error("cap_pixels_per_frame", "the model's processor does not support it")
    video = replace(video, min_frames=least, max_frames=max(most, least), capped=capped)
    return replace(vision, video=video, **changes)


def contradictions(keys: Mapping[str, float]) -> Iterator[str]:
    """Yield contradictions between the keys of one medium, the same that qwen-vl-utils refuses."""
    if "fps" in keys and "nframes" in keys:
        yield "fps and nframes exclude each other"
    if ("resized_height" in keys) != ("resized_width" in keys):
        yield "resized_height and resized_width must be set together"
    for low, high in ORDERED:
        if low in keys and high in keys and (keys[low] > keys[high] or (keys[low] == keys[high] and "video" in low)):
            yield f"{low} is {keys[low]:g} and {high} is {keys[high]:g}"


def without_effect(keys: Mapping[str, float]) -> Iterator[str]:
    """Yield the keys of one medium that other keys override, with the reason."""
    if "resized_height" in keys and "resized_width" in keys:
        yield from (f"{name}: resized_height and resized_width hold" for name in PIXEL_BOUNDS if name in keys)
    if "nframes" in keys:
        yield from (
            f"{name}: it bounds fps, but nframes is set" for name in ("min_frames", "max_frames") if name in keys
        )
