"""When every frame of a file is shown: from its header where that is enough, from its packets where it is not."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vidqa.video.problems import VIDEO_EMPTY, VIDEO_FRAME_MISSING, VIDEO_UNREADABLE
from vidqa.video.source import extent, open_video, place

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

# A frame further than this part of a frame's time from its even place makes the rate variable. Below one half, so
# that rounding a frame's time always gives its own number.
TOLERANCE = 0.25
AVI_CHUNK = struct.Struct("<4sI")  # its kind and how many bytes follow


@dataclass(frozen=True)
class Timeline:
    """The frames of one stream in presentation order.

    `fps` is the even rate, or the mean rate where `even` is false. `pts` [count] in units of `tick_s` seconds is None
    where it is start_pts + i / fps / tick_s. `keyframes` are frame numbers, approximate where pts is None.
    `timed` is false where the container keeps no presentation times (AVI): frames can then only be counted. There a
    frame may have no data, which means that the picture before it stays: `pictures` then has the numbers of the frames
    that are pictures of their own.
    """

    count: int
    fps: float
    even: bool
    tick_s: float
    start_pts: int
    pts: np.ndarray | None
    keyframes: np.ndarray
    timed: bool = True
    pictures: np.ndarray | None = None

    def picture_at(self, number: int) -> int:
        """Which picture of the stream is shown as frame `number`."""
        return number if self.pictures is None else int(np.searchsorted(self.pictures, number, "right")) - 1

    def pts_of(self, number: int) -> int:
        if self.pts is not None:
            return int(self.pts[number])
        return self.start_pts + round(number / self.fps / self.tick_s)

    def number_at(self, pts: int) -> int:
        """The frame whose presentation time is `pts`."""
        if self.pts is None:
            return round((pts - self.start_pts) * self.tick_s * self.fps)
        return int(np.searchsorted(self.pts, pts))

    def times_s(self) -> np.ndarray:
        """float64 [count]: the time of every frame, from 0."""
        if self.pts is None:
            return np.arange(self.count) / self.fps
        return (self.pts - self.pts[0]) * self.tick_s


def read_timeline(path: str | Path, member: str | None, container: InputContainer, stream: VideoStream) -> Timeline:
    """The timeline of an opened stream, which is left where it was. Raises VIDEO_EMPTY, VIDEO_FRAME_MISSING.

    MP4 and MOV hold a table of all frames, which is read with the header. Other containers, and tables that are
    uneven, edited or incomplete, are read packet by packet, without decoding.
    """
    if container.format.name.startswith("mov") and stream.start_time is not None:
        timeline = _from_table(path, member, stream)
        if timeline is not None:
            return timeline
    with open_video(path, member, header_alone=True) as (again, again_stream):
        return _from_packets(path, member, again, again_stream)


def _from_table(path: str | Path, member: str | None, stream: VideoStream) -> Timeline | None:
    entries = list(stream.index_entries)
    if not entries or len(entries) != stream.frames or any(entry.is_discard or not entry.size for entry in entries):
        return None
    _, length = extent(path, member, VIDEO_UNREADABLE, VIDEO_EMPTY)
    whole = sum(entry.pos + entry.size <= length for entry in entries)
    if whole < len(entries):
        message = f"the container lists {len(entries)} frames, the file ends after {whole}"
        raise VIDEO_FRAME_MISSING.error(place(path, member), message)
    tick_s = float(stream.time_base or 1)
    # Decoding times: as evenly spaced as presentation times, in another order.
    fps = _even_rate(np.array([entry.timestamp for entry in entries]) * tick_s, stream)
    if fps is None:
        return None
    keyframes = np.flatnonzero([entry.is_keyframe for entry in entries])
    return Timeline(len(entries), fps, True, tick_s, int(stream.start_time or 0), None, keyframes)


def _from_packets(path: str | Path, member: str | None, container: InputContainer, stream: VideoStream) -> Timeline:
    packets, slots, last = [], [], 0
    for packet in container.demux(stream):
        if packet.size and not packet.is_discard:
            packets.append((packet.pts, packet.is_keyframe))
            slots.append(packet.dts)
            last = max(last, packet.pos or 0)
    if not packets:
        raise VIDEO_EMPTY.error(place(path, member), "the video stream has no frames")
    tick_s = float(stream.time_base or 1)
    is_avi = container.format.name.startswith("avi")
    if is_avi or any(pts is None for pts, _ in packets):
        fps = float(stream.average_rate or stream.guessed_rate or 0) or 25.0  # FFmpeg's own assumption for raw streams
        count, pictures = len(packets), None
        if is_avi and None not in slots:
            pictures = np.sort(np.array(slots, np.int64))
            pictures -= pictures[0]
            count = int(pictures[-1]) + 1 + _empty_after(path, member, stream.index, last)
        return Timeline(count, fps, True, tick_s, 0, None, np.zeros(1, int), timed=False, pictures=pictures)
    shown = np.array([pts for pts, _ in packets], np.int64)
    pts = np.unique(shown)
    keyframes = np.searchsorted(pts, np.sort(shown[[is_key for _, is_key in packets]]))
    even_fps = _even_rate((pts - pts[0]) * tick_s, stream)
    fps = even_fps or _mean_rate(pts * tick_s)
    return Timeline(len(pts), fps, even_fps is not None, tick_s, int(pts[0]), pts, keyframes)


def _empty_after(path: str | Path, member: str | None, stream: int, last: int) -> int:
    """How many frames without data follow the data at byte `last` of an AVI, which FFmpeg leaves out.

    Counted in the file: what the header says may be wrong, above all of a file that was cut off.
    """
    offset, length = extent(path, member, VIDEO_UNREADABLE, VIDEO_EMPTY)
    found, at = 0, last - AVI_CHUNK.size
    with open(path, "rb") as file:
        while 0 <= at <= length - AVI_CHUNK.size:
            file.seek(offset + at)
            kind, size = AVI_CHUNK.unpack(file.read(AVI_CHUNK.size))
            if kind == b"LIST":  # chunks that belong together; they follow
                size = 4
            elif kind != b"JUNK" and not (kind[:2].isdigit() or kind[:2] == b"ix"):
                break
            found += size == 0 and kind in (b"%02ddc" % stream, b"%02ddb" % stream)
            at += AVI_CHUNK.size + size + size % 2
    return found


def _even_rate(times_s: np.ndarray, stream: VideoStream) -> float | None:
    """The frame rate at which frames shown at `times_s` are evenly spaced; None where they are not."""
    claimed = float(stream.average_rate or 0)
    if len(times_s) == 1:
        return claimed or 1.0
    spread = times_s[-1] - times_s[0]
    for fps in (claimed, (len(times_s) - 1) / spread if spread > 0 else 0.0):
        if fps and np.abs(times_s - times_s[0] - np.arange(len(times_s)) / fps).max() * fps <= TOLERANCE:
            return float(fps)
    return None


def _mean_rate(times_s: np.ndarray) -> float:
    """Frames per second of uneven frames, the last one shown as long as the middle one of them."""
    return len(times_s) / float(times_s[-1] - times_s[0] + np.median(np.diff(times_s)))
