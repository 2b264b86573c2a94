"""What a video file is: rate, length, size as shown; read from its header and its first frame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.problem import Problem
from vidqa.video.problems import VIDEO_FPS_DISAGREES, VIDEO_UNREADABLE
from vidqa.video.source import open_video, place
from vidqa.video.timeline import read_timeline
from vidqa.video.types import VideoMeta

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

FPS_TOLERANCE = 0.01  # 30 for 29.97 is how people write it


def probe(path: str | Path, member: str | None = None) -> VideoMeta:
    """What is known of the video `path`, or of `member` of the uncompressed tar `path`.

    The first frame is decoded: it alone says how the picture is turned and cropped. The frame count is the number of
    frames that are in the file, not what the container claims. A few milliseconds for MP4 and MOV; other containers
    are read through once, without decoding more than that frame.
    Raises VIDEO_UNREADABLE, VIDEO_EMPTY, VIDEO_NO_STREAM, VIDEO_FRAME_MISSING (the file was cut off).
    """
    with open_video(path, member, header_alone=True) as (container, stream):
        timeline = read_timeline(path, member, container, stream)
        frame = _first_picture(container, stream) or _first_frame(path, member, timeline.count)
        rotation = right_angle(frame.rotation)
        width, height = (frame.height, frame.width) if rotation % 180 else (frame.width, frame.height)
        return VideoMeta(
            source_fps=timeline.fps,
            frame_count=timeline.count,
            duration_s=timeline.count / timeline.fps,
            width=width,
            height=height,
            rotation=rotation,
            codec=stream.codec_context.name,
            frame_times_s=None if timeline.even else tuple(timeline.times_s().tolist()),
        )


def _first_picture(container: InputContainer, stream: VideoStream) -> VideoFrame | None:
    """What the first packet alone decodes to; None where the decoder wants more than that, or finds it broken."""
    from av.error import FFmpegError

    packet = next((packet for packet in container.demux(stream) if packet.size), None)
    try:
        return next(iter(packet.decode() or stream.decode(None)), None) if packet else None
    except FFmpegError:
        return None


def _first_frame(path: str | Path, member: str | None, count: int) -> VideoFrame:
    with open_video(path, member) as (container, stream):
        frame = next(container.decode(stream), None)
    if frame is None:
        raise VIDEO_UNREADABLE.error(place(path, member), f"none of its {count} frames can be decoded")
    return frame


def right_angle(degrees: float) -> int:
    """The nearest of 0, 90, 180, 270 degrees counter-clockwise."""
    return round(degrees / 90) * 90 % 360


def fps_disagreement(meta: VideoMeta, claimed_fps: float | None, where: object) -> Problem | None:
    """A warning when an annotation's video_fps is not the file's (more than 1 % off)."""
    if claimed_fps is None or abs(claimed_fps - meta.source_fps) <= FPS_TOLERANCE * meta.source_fps:
        return None
    message = f"video_fps is {claimed_fps:g}, the file has {meta.source_fps:g} frames per second"
    return VIDEO_FPS_DISAGREES.at(where, message, severity="warning")
