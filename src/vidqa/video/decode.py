"""Decode chosen frames of a video, rotated as they are displayed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vidqa.video.probe import read_stream_info
from vidqa.video.problems import MEDIA_UNREADABLE, VIDEO_DECODE_TIMEOUT
from vidqa.video.source import open_video, place
from vidqa.video.timeline import MAX_REORDERED, Stamp, Timeline, read_timeline

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

PACKETS_COMPARED = 64  # enough to find reordered frames in a stream that has any


def read_frames(
    path: str | Path, member: str | None, numbers: Sequence[int], *, deadline: float | None = None
) -> Iterator[np.ndarray]:
    """Yield uint8 [H, W, 3] for each frame number in `numbers`, which must ascend. Raises MEDIA_UNREADABLE, and
    VIDEO_DECODE_TIMEOUT once the clock `time.monotonic` is past `deadline`."""
    from av.video.reformatter import VideoReformatter

    where = place(path, member)
    with open_video(path, member, header_alone=True) as (container, stream):
        timeline = read_timeline(path, member, container, stream)
        # Rotation may be stored with single pictures, and not with all of them: that of the first picture applies.
        rotation = read_stream_info(path, member, container, stream).rotation
    if numbers and not 0 <= numbers[0] <= numbers[-1] < timeline.count:
        message = f"frames {numbers[0]} to {numbers[-1]} are requested, the file has {timeline.count}"
        raise MEDIA_UNREADABLE.error(where, message)
    with ExitStack() as opened:
        walk, shown, pixels = _Walk(path, member, timeline, opened, deadline), -1, None
        converter = VideoReformatter()  # created once: that takes longer than converting a small frame, and has threads
        for number in numbers:
            picture = timeline.picture_at(number)
            if pixels is None or picture != shown:
                frame, shown = walk.to(picture), picture
                if frame is None:
                    message = f"frame {number} is missing, although the container states {timeline.count} frames"
                    raise MEDIA_UNREADABLE.error(where, message)
                if walk.damaged:
                    raise MEDIA_UNREADABLE.error(where, f"frame {number}, or one that it is predicted from, is damaged")
                stored = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                pixels = np.ascontiguousarray(np.rot90(stored, rotation // 90))
            yield pixels


def _times_are_of_packets(path: str | Path, member: str | None, timeline: Timeline) -> bool:
    """Whether the timestamps of a stream whose decoder reorders frames ascend in packet order: the muxer wrote decoding
    timestamps in place of presentation timestamps."""
    if timeline.packets is not None:
        times = [stamp.pts for stamp in timeline.packets.stamps]
    else:
        with open_video(path, member, header_alone=True) as (container, stream):
            times = [packet.pts for packet in islice(container.demux(stream), PACKETS_COMPARED) if packet.size]
    return all(one is not None and two is not None and one <= two for one, two in pairwise(times))


class _Unproved(Exception):
    """The packets after a seek differ from those of the whole file."""


class _Walk:
    """A forward reader of a stream's frames, which seeks to a keyframe where that saves decoding.

    A seek is verified: the packets after it must equal, in timestamps and bytes, those that follow the keyframe in the
    whole file. Where they do not, or the container cannot seek, or a picture after a seek is damaged, everything is
    decoded from the beginning.

    `timed`: frames are identified by their timestamps. Otherwise, and where timestamps turn out to go back, frames are
    counted from the first one in the decoder's output order, which is the presentation order.
    """

    def __init__(
        self, path: str | Path, member: str | None, timeline: Timeline, opened: ExitStack, deadline: float | None
    ) -> None:
        self.path, self.member, self.timeline, self.opened = path, member, timeline, opened
        self.deadline = deadline
        self.container: InputContainer
        self.stream: VideoStream
        self.frames: Iterator[VideoFrame]
        self.next_number = 0  # number of the decoder's next frame
        self.damaged = False  # whether a frame since the last keyframe is damaged
        self.sought = False  # whether the frames follow a seek
        self._begin()
        reorders = bool(self.stream.codec_context.has_b_frames)
        self.timed = timeline.timed and not (reorders and _times_are_of_packets(path, member, timeline))
        self.seeks = self.timed
        packets = timeline.packets
        self.keyframe_packets = {
            stamp: number for number, stamp in enumerate(packets.stamps if packets else ()) if stamp.is_keyframe
        }

    def to(self, number: int) -> VideoFrame | None:
        """Return frame `number`, not before the last one returned; None where the file has no such frame."""
        from av.error import FFmpegError

        starts = self.timeline.keyframes[self.timeline.keyframes <= number]
        try:
            if self.seeks and len(starts) and starts[-1] > self.next_number:
                # The last keyframe may open a group whose first frames refer to the group before: then start there.
                for start in starts[:-3:-1]:
                    frame = self._from_keyframe(int(start), number)
                    if frame is not None and not self.damaged:
                        return frame
            elif not self.sought:
                return self._forward(number)
            elif (frame := self._forward(number)) is not None and not self.damaged:
                return frame
        except (FFmpegError, _Unproved):
            if not self.sought:
                raise
            self.seeks = False
        self._begin()
        return self._forward(number)

    def _begin(self) -> None:
        """Decode from the beginning, in a container that is opened again: not every container can seek back to it."""
        self.opened.close()
        self.container, self.stream = self.opened.enter_context(open_video(self.path, self.member))
        self.frames = self._from_beginning()
        self.next_number, self.damaged, self.sought = 0, False, False

    def _from_beginning(self) -> Iterator[VideoFrame]:
        packets = self.timeline.packets
        left_out, begun = (packets.first, not packets.lost) if packets else (0, True)
        for packet in self.container.demux(self.stream):
            if left_out and Stamp.from_packet(packet):
                left_out -= 1
            elif not left_out:
                for frame in packet.decode():
                    begun = begun or frame.key_frame
                    if begun:
                        yield frame

    def _from_keyframe(self, start: int, number: int) -> VideoFrame | None:
        self.sought = True
        self.container.seek(self.timeline.pts_of(start), stream=self.stream, backward=True, any_frame=False)
        self.frames = (frame for packet in self._proved() for frame in packet.decode())
        self.next_number, self.damaged = start, False
        earlier = []
        for frame in self.frames:
            # Frames displayed before the keyframe refer to skipped pictures: they are never returned.
            if not frame.key_frame:
                earlier.append(self._number(frame))
            else:
                landed = self._pass(frame)
                if any(number > landed for number in earlier):  # timestamps are in another order
                    raise _Unproved
                return frame if landed == number else self._forward(number) if landed < number else None
        return None

    def _proved(self) -> Iterator[Packet]:
        """Yield the packets after a seek, from the first known keyframe on. Raises _Unproved where one differs."""
        packets, expected = self.timeline.packets, None
        for packet in self.container.demux(self.stream):
            stamp = Stamp.from_packet(packet) if packets else None
            if packets and stamp:
                if expected is None:
                    expected = self.keyframe_packets.get(stamp)
                if expected is None:
                    continue
                if expected >= len(packets.stamps) or stamp != packets.stamps[expected]:
                    raise _Unproved
                expected += 1
            if not packets or expected is not None:
                yield packet

    def _forward(self, number: int) -> VideoFrame | None:
        while (frame := next(self.frames, None)) is not None:
            expected = self.next_number
            shown = self._pass(frame)
            if self.timed and shown > expected and self._is_reordered(frame):
                self.timed = self.seeks = False
                self._begin()
                return self._forward(number)
            if shown >= number:
                return frame if shown == number else None
        return None

    def _is_reordered(self, frame: VideoFrame) -> bool:
        """Whether the frames skipped before `frame` come after it: the timestamps are in another order. Otherwise
        they are missing."""
        ahead = list(islice(self.frames, MAX_REORDERED))
        self.frames = chain(ahead, self.frames)
        return any(self._number(later) < self._number(frame) for later in ahead)

    def _pass(self, frame: VideoFrame) -> int:
        """Number of the frame that the decoder has just returned."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise VIDEO_DECODE_TIMEOUT.error(place(self.path, self.member), "decoding exceeded its time limit")
        self.damaged = frame.is_corrupt or (self.damaged and not frame.key_frame)
        number = self._number(frame)
        self.next_number = number + 1
        return number

    def _number(self, frame: VideoFrame) -> int:
        if not self.timed or frame.pts is None:
            return self.next_number
        return self.timeline.number_at(frame.pts)
