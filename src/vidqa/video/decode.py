"""Decodes chosen frames of a video, exactly those asked for, turned as they are shown."""

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

PACKETS_COMPARED = 64  # some frames of a stream that reorders any are in another order among so many


def read_frames(
    path: str | Path, member: str | None, numbers: Sequence[int], *, deadline: float | None = None
) -> Iterator[np.ndarray]:
    """Yields uint8 [H, W, 3] for each number of `numbers`, which must ascend. Raises MEDIA_UNREADABLE,
    and VIDEO_DECODE_TIMEOUT once the clock `time.monotonic` is past `deadline`."""
    from av.video.reformatter import VideoReformatter

    where = place(path, member)
    with open_video(path, member, header_alone=True) as (container, stream):
        timeline = read_timeline(path, member, container, stream)
        # Pictures that say themselves how they are turned need not all say it: the first one speaks for all.
        rotation = read_stream_info(path, member, container, stream).rotation
    if numbers and not 0 <= numbers[0] <= numbers[-1] < timeline.count:
        message = f"frames {numbers[0]} to {numbers[-1]} are wanted, the file has {timeline.count}"
        raise MEDIA_UNREADABLE.error(where, message)
    with ExitStack() as opened:
        walk, shown, pixels = _Walk(path, member, timeline, opened, deadline), -1, None
        converter = VideoReformatter()  # one for all: making one takes longer than a small frame, and starts threads
        for number in numbers:
            picture = timeline.picture_at(number)
            if pixels is None or picture != shown:
                frame, shown = walk.to(picture), picture
                if frame is None:
                    message = f"frame {number} is not there, though the container counts {timeline.count} frames"
                    raise MEDIA_UNREADABLE.error(where, message)
                if walk.damaged:
                    raise MEDIA_UNREADABLE.error(where, f"frame {number}, or one that it is predicted from, is damaged")
                stored = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                pixels = np.ascontiguousarray(np.rot90(stored, rotation // 90))
            yield pixels


def _times_are_of_packets(path: str | Path, member: str | None, timeline: Timeline) -> bool:
    """Whether the times of a stream whose decoder reorders frames ascend in the order of its packets: a muxer wrote
    when they are decoded, and not when they are shown."""
    if timeline.packets is not None:
        times = [stamp.pts for stamp in timeline.packets.stamps]
    else:
        with open_video(path, member, header_alone=True) as (container, stream):
            times = [packet.pts for packet in islice(container.demux(stream), PACKETS_COMPARED) if packet.size]
    return all(one is not None and two is not None and one <= two for one, two in pairwise(times))


class _Unproved(Exception):
    """What comes after a seek is not what is there in the whole file."""


class _Walk:
    """Goes forward through a stream's frames, jumping to a keyframe where that saves decoding.

    A jump is proved: the packets that follow it are those that follow the keyframe in the whole file, their times and
    bytes. Where they are not, or the container cannot seek, or a picture after a jump is damaged, everything is decoded
    from the beginning.

    `timed`: frames are known by their times. Otherwise, and where their times turn out to go back, they are counted
    from the first one in the order in which the decoder gives them, which is the order in which they are shown.
    """

    def __init__(
        self, path: str | Path, member: str | None, timeline: Timeline, opened: ExitStack, deadline: float | None
    ) -> None:
        self.path, self.member, self.timeline, self.opened = path, member, timeline, opened
        self.deadline = deadline
        self.container: InputContainer
        self.stream: VideoStream
        self.frames: Iterator[VideoFrame]
        self.next_number = 0  # of the frame that the decoder gives next
        self.damaged = False  # whether a frame since the last keyframe came out damaged
        self.sought = False  # whether the frames follow a jump
        self._begin()
        reorders = bool(self.stream.codec_context.has_b_frames)
        self.timed = timeline.timed and not (reorders and _times_are_of_packets(path, member, timeline))
        self.seeks = self.timed
        packets = timeline.packets
        self.keyframe_packets = {
            stamp: number for number, stamp in enumerate(packets.stamps if packets else ()) if stamp.is_keyframe
        }

    def to(self, number: int) -> VideoFrame | None:
        """Frame `number`, not before the last one asked for; None where the file has no such frame."""
        from av.error import FFmpegError

        starts = self.timeline.keyframes[self.timeline.keyframes <= number]
        try:
            if self.seeks and len(starts) and starts[-1] > self.next_number:
                # The last keyframe may belong to a group whose first frames need the group before: then start there.
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
        """Decode from the beginning, in a container that is opened anew: not every one can seek back to it."""
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
            # Frames shown before the keyframe refer to what was jumped over: they are never taken.
            if not frame.key_frame:
                earlier.append(self._number(frame))
            else:
                landed = self._pass(frame)
                if any(number > landed for number in earlier):  # the times are of another order
                    raise _Unproved
                return frame if landed == number else self._forward(number) if landed < number else None
        return None

    def _proved(self) -> Iterator[Packet]:
        """The packets after a jump, from the first keyframe that is known on. Raises _Unproved for another one."""
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
            if self.timed and shown > expected and self._goes_back_after(frame):
                self.timed = self.seeks = False
                self._begin()
                return self._forward(number)
            if shown >= number:
                return frame if shown == number else None
        return None

    def _goes_back_after(self, frame: VideoFrame) -> bool:
        """Whether a frame that has left some out is followed by those: the times are of another order. Otherwise they
        are missing."""
        ahead = list(islice(self.frames, MAX_REORDERED))
        self.frames = chain(ahead, self.frames)
        return any(self._number(later) < self._number(frame) for later in ahead)

    def _pass(self, frame: VideoFrame) -> int:
        """The number of the frame that the decoder has just given."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise VIDEO_DECODE_TIMEOUT.error(place(self.path, self.member), "decoding takes longer than its limit")
        self.damaged = frame.is_corrupt or (self.damaged and not frame.key_frame)
        number = self._number(frame)
        self.next_number = number + 1
        return number

    def _number(self, frame: VideoFrame) -> int:
        if not self.timed or frame.pts is None:
            return self.next_number
        return self.timeline.number_at(frame.pts)
