"""What video and image files are: rate, length, size as shown; read from their headers, of a video from its packets and
the head of its first picture, too."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from vidqa.core.problem import Problem, ProblemError
from vidqa.video.image import probe_image
from vidqa.video.problems import MEDIA_READ_DIFFERENTLY
from vidqa.video.source import open_video
from vidqa.video.stream_info import read_stream_info
from vidqa.video.timeline import read_timeline
from vidqa.video.types import ImageMeta, VideoMeta

FPS_TOLERANCE = 0.01  # 30 for 29.97 is how people write it
CLIPPED_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # Pillow's, of values that 8 bits do not hold
THREADS = 8  # a probe waits for the disk; FFmpeg lets go of the interpreter meanwhile
Header = VideoMeta | ImageMeta | list[Problem]


class MediaFile(Protocol):
    """A record's medium, or a request for frames."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def member(self) -> str | None: ...


def probe(path: str | Path, member: str | None = None) -> VideoMeta:
    """What is known of the video `path`, or of `member` of the uncompressed tar `path`.

    Size and rotation are those that the decoder gives its pictures, asked for with the head of the first one; whether
    pictures are damaged only decoding tells. The frame count is the number of frames that are in the file, not what the
    container claims. A few milliseconds for MP4 and MOV; other containers are read through once.
    Raises VIDEO_UNREADABLE, VIDEO_FRAME_MISSING (the file was cut off).
    """
    with open_video(path, member, header_alone=True) as (container, stream):
        timeline = read_timeline(path, member, container, stream)
        look = read_stream_info(path, member, container, stream)
        return VideoMeta(
            source_fps=timeline.fps,
            frame_count=timeline.count,
            duration_s=timeline.count / timeline.fps,
            width=look.width,
            height=look.height,
            rotation=look.rotation,
            codec=stream.codec_context.name,
            frame_times_s=None if timeline.even else tuple(timeline.times_s().tolist()),
            frames_lost=timeline.packets.without_frames if timeline.packets else 0,
            rate_assumed=timeline.rate_assumed,
        )


def probe_file(file: MediaFile) -> VideoMeta | ImageMeta:
    """What is known of a video or image. Raises as `probe` and `probe_image` do."""
    return (probe_image if file.kind == "image" else probe)(file.path, file.member)


def probe_many(media: Iterable[MediaFile]) -> list[Header]:
    """The header of each medium, or its problems, in their order. A file with several media in it is read once."""
    media = list(media)
    files = {(medium.kind, medium.path, medium.member): medium for medium in media}
    with ThreadPoolExecutor(THREADS) as pool:
        headers = dict(zip(files, pool.map(_header, files.values()), strict=True))
    return [headers[medium.kind, medium.path, medium.member] for medium in media]


def _header(medium: MediaFile) -> Header:
    try:
        return probe_file(medium)
    except ProblemError as broken:
        return broken.problems


def header_warnings(header: VideoMeta | ImageMeta, where: object) -> list[Problem]:
    """Warnings where a file is read differently from what its author may expect."""
    warnings = []
    if isinstance(header, ImageMeta):
        if header.mode in CLIPPED_MODES:
            message = f"its pixels have Pillow's mode {header.mode}; values above 255 become white, those below 1 black"
            warnings.append((message, "Scale its values to 0 to 255 and save it with 8 bits."))
    else:
        if header.frames_lost:
            lost = f"its first {header.frames_lost} pictures need others that the file does not have; they are left out"
            remedy = (
                "Nothing, if the seconds that annotations name count from the picture after them; else cut it again."
            )
            warnings.append((lost, remedy))
        if header.rate_assumed:
            message = f"its headers state no frame rate; {header.source_fps:g} frames per second are assumed"
            warnings.append((message, "Put it into a container: `ffmpeg -r RATE -i FILE -c copy NEW.mp4`."))
    return [MEDIA_READ_DIFFERENTLY.at(where, *warning, severity="warning") for warning in warnings]


def fps_disagreement(meta: VideoMeta, claimed_fps: float | None, where: object) -> Problem | None:
    """A warning when an annotation's video_fps is not the file's (more than 1 % off)."""
    if claimed_fps is None or abs(claimed_fps - meta.source_fps) <= FPS_TOLERANCE * meta.source_fps:
        return None
    message = f"video_fps is {claimed_fps:g}, the file has {meta.source_fps:g} frames per second, which are used"
    remedy = "Correct video_fps in the annotations or remove it."
    return MEDIA_READ_DIFFERENTLY.at(where, message, remedy, severity="warning")
