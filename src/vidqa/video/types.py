"""What is known of a video, what is asked of it, and what will be taken from it."""

from __future__ import annotations

from dataclasses import dataclass


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
