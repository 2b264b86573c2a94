"""What a video file is: rate, length, size as shown; read from its header, its packets and its first picture's head."""

from __future__ import annotations

from pathlib import Path

from vidqa.core.problem import Problem
from vidqa.video.problems import VIDEO_FPS_DISAGREES
from vidqa.video.source import open_video
from vidqa.video.stream_info import read_stream_info
from vidqa.video.timeline import read_timeline
from vidqa.video.types import VideoMeta

FPS_TOLERANCE = 0.01  # 30 for 29.97 is how people write it


def probe(path: str | Path, member: str | None = None) -> VideoMeta:
    """What is known of the video `path`, or of `member` of the uncompressed tar `path`.

    Size and rotation are those that the decoder gives its pictures, asked for with the head of the first one; whether
    pictures are damaged only decoding tells. The frame count is the number of frames that are in the file, not what the
    container claims. A few milliseconds for MP4 and MOV; other containers are read through once.
    Raises VIDEO_UNREADABLE, VIDEO_EMPTY, VIDEO_NO_STREAM, VIDEO_FRAME_MISSING (the file was cut off).
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


def fps_disagreement(meta: VideoMeta, claimed_fps: float | None, where: object) -> Problem | None:
    """A warning when an annotation's video_fps is not the file's (more than 1 % off)."""
    if claimed_fps is None or abs(claimed_fps - meta.source_fps) <= FPS_TOLERANCE * meta.source_fps:
        return None
    message = f"video_fps is {claimed_fps:g}, the file has {meta.source_fps:g} frames per second"
    return VIDEO_FPS_DISAGREES.at(where, message, severity="warning")
