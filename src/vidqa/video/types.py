"""What is known of a video, what is asked of it and by which keys, and what will be taken from it.

The keys are those of a spec's table, and those beside one medium of a conversation, which take the place of the table's
for that medium. Names and meaning are those of qwen-vl-utils.
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
    """What a probe found in a file. `width` and `height` are as shown, after `rotation` (degrees) is applied.

    `frame_times_s` is filled only where the frame rate varies: the presentation time of every frame, from 0.
    `frames_lost` pictures at the beginning cannot be decoded and are no frames, because they refer to pictures before
    them. With `rate_assumed` no header states a frame rate.
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
    """Size of an image as shown, after `orientation` (EXIF 1 to 8) is applied; `mode` is Pillow's, such as RGB."""

    width: int
    height: int
    orientation: int = 1
    mode: str = "RGB"


@dataclass(frozen=True, slots=True)
class PixelRules:
    """How a processor turns pixels into patches; read from the model folder by its family.

    `min_pixels` and `max_pixels` bound frames x height x width of one video (height x width of one image). One token
    covers factor x factor pixels of `temporal_patch_size` frames. The vision tower receives (pixel - mean) / std for
    each channel, in units of a uint8 pixel: the processor's rescale factor is folded in (127.5, not 0.5).

    With `each_frame` the two bound height x width of every frame, and frames are taken otherwise: whole patches of
    them, each at the start of its equal share of the video, instead of the first to the last.
    """

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    min_frames: int = 1
    max_frames: int = 1
    capped: bool = False  # the processor's cap_pixels_per_frame: one of the next two bounds holds, too
    max_frame_tokens: int | None = None  # of each frame
    each_frame: bool = False
    shared_pixels: int | None = None  # with `each_frame`: of all temporal patches of a video
    mean: tuple[float, float, float] = (127.5, 127.5, 127.5)
    std: tuple[float, float, float] = (127.5, 127.5, 127.5)

    @property
    def factor(self) -> int:
        """Height and width are multiples of this."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """What is asked of every video: exactly one of `fps` (sampled frames per second) and `nframes`.

    `total_pixels` is the spec's key: an upper bound counted per temporal patch, so total_pixels / factor^2 is the
    largest number of tokens of one video (one image). `max_pixels`, the spec's key too, bounds every single frame (and
    an image). The smaller one holds; None leaves the processor's own bound. `min_pixels` enlarges every frame that is
    smaller. `sides` (height, width) is the size of every frame and image, whatever its shape. Of every video the part
    `shown` is taken, (start, end) in seconds, the frame at its end included; None is the video's own end.
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
    """What will be taken from one video or image: everything about it that training and evaluation must agree on.

    `indices` are source frame numbers in presentation order, not padded; `times_s` their true times, one each.
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
    patch_times_s: tuple[float, ...]  # one per temporal patch, as the model is told: see `plan.plan_frames`


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
