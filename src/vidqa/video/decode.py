"""Decodes chosen frames of a video, exactly those asked for, turned as they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vidqa.video.first_picture import first_look
from vidqa.video.problems import VIDEO_FRAME_MISSING, VIDEO_UNREADABLE
from vidqa.video.source import open_video, place
from vidqa.video.timeline import Timeline, read_timeline

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

MOST_REORDERED = 16  # frames that a decoder holds back; no standard allows more
PACKETS_COMPARED = 64  # some frames of a stream that reorders any are in another order among so many


def decode_frames(path: str | Path, member: str | None, indices: Sequence[int]) -> np.ndarray:
    """uint8 [N, H, W, 3], RGB: the frames with these numbers, in this order; a number may repeat.

    All N frames are in memory at once, at full size; `read_frames` gives them one by one.
    Raises VIDEO_UNREADABLE, VIDEO_EMPTY, VIDEO_NO_STREAM, VIDEO_FRAME_MISSING.
    """
    numbers, positions = np.unique(np.asarray(indices, int), return_inverse=True)
    return np.stack(list(read_frames(path, member, numbers.tolist())))[positions]


def read_frames(path: str | Path, member: str | None, numbers: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields uint8 [H, W, 3] for each number of `numbers`, which must ascend. Raises as `decode_frames` does."""
    from av.video.reformatter import VideoReformatter

    where = place(path, member)
    # Pictures that say themselves how they are turned need not all say it: the first one speaks for all.
    with open_video(path, member, header_alone=True) as (container, stream):
        rotation = first_look(path, member, container, stream).rotation
    with open_video(path, member) as (container, stream):
        timeline = read_timeline(path, member, container, stream)
        if numbers and not 0 <= numbers[0] <= numbers[-1] < timeline.count:
            message = f"frames {numbers[0]} to {numbers[-1]} are wanted, the file has {timeline.count}"
            raise VIDEO_FRAME_MISSING.error(where, message)
        timed = timeline.timed and not (stream.codec_context.has_b_frames and _times_are_of_packets(path, member))
        walk, shown, pixels = _Walk(container, stream, timeline, timed=timed), -1, None
        converter = VideoReformatter()  # one for all: making one takes longer than a small frame, and starts threads
        for number in numbers:
            picture = timeline.picture_at(number)
            if pixels is None or picture != shown:
                frame, shown = walk.to(picture), picture
                if frame is None:
                    message = f"frame {number} is not there, though the container counts {timeline.count} frames"
                    raise VIDEO_FRAME_MISSING.error(where, message)
                if walk.damaged:
                    raise VIDEO_UNREADABLE.error(where, f"frame {number}, or one that it is predicted from, is damaged")
                stored = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                pixels = np.ascontiguousarray(np.rot90(stored, rotation // 90))
            yield pixels


def _times_are_of_packets(path: str | Path, member: str | None) -> bool:
    """Whether the times of a stream whose decoder reorders frames ascend in the order of its packets: a muxer wrote
    when they are decoded, and not when they are shown."""
    with open_video(path, member, header_alone=True) as (container, stream):
        times = [packet.pts for packet in islice(container.demux(stream), PACKETS_COMPARED) if packet.size]
    return all(one is not None and two is not None and one < two for one, two in pairwise(times))


class _Walk:
    """Goes forward through a stream's frames, jumping to a keyframe where that saves decoding.

    `timed`: frames are known by their times. Otherwise, and where their times turn out to go back, they are counted
    from the first one in the order in which the decoder gives them, which is the order in which they are shown.
    """

    def __init__(self, container: InputContainer, stream: VideoStream, timeline: Timeline, *, timed: bool) -> None:
        self.container, self.stream, self.timeline, self.timed = container, stream, timeline, timed
        self.frames: Iterator[VideoFrame] = container.decode(stream)
        self.next_number = 0  # of the frame that the decoder gives next
        self.damaged = False  # whether a frame since the last keyframe came out damaged

    def to(self, number: int) -> VideoFrame | None:
        """Frame `number`, not before the last one asked for; None where the file has no such frame."""
        starts = self.timeline.keyframes[self.timeline.keyframes <= number]
        if self.timed and len(starts) and starts[-1] > self.next_number:
            # The last keyframe may belong to a group whose first frames need the group before: then start there.
            for start in starts[:-3:-1]:
                frame = self._from_keyframe(int(start), number)
                if frame is not None:
                    return frame
            self._seek(0)
        return self._forward(number)

    def _from_keyframe(self, start: int, number: int) -> VideoFrame | None:
        self._seek(start)
        for frame in self.frames:
            # Frames shown before the keyframe refer to what was jumped over: they are never taken.
            if frame.key_frame:
                landed = self._pass(frame)
                return frame if landed == number else self._forward(number) if landed < number else None
        return None

    def _seek(self, number: int) -> None:
        self.container.seek(self.timeline.pts_of(number), stream=self.stream, backward=True, any_frame=False)
        self.frames = self.container.decode(self.stream)
        self.next_number = number

    def _forward(self, number: int) -> VideoFrame | None:
        while (frame := next(self.frames, None)) is not None:
            expected = self.next_number
            found = self._pass(frame)
            if self.timed and found > expected and self._goes_back_after(frame):
                self.timed = False
                self._seek(0)
                return self._forward(number)
            if found >= number:
                return frame if found == number else None
        return None

    def _goes_back_after(self, frame: VideoFrame) -> bool:
        """Whether a frame that has left some out is followed by those: the times are of another order. Otherwise they
        are missing."""
        ahead = list(islice(self.frames, MOST_REORDERED))
        self.frames = chain(ahead, self.frames)
        return any(self._number(later) < self._number(frame) for later in ahead)

    def _pass(self, frame: VideoFrame) -> int:
        """The number of the frame that the decoder has just given."""
        self.damaged = frame.is_corrupt or (self.damaged and not frame.key_frame)
        number = self._number(frame)
        self.next_number = number + 1
        return number

    def _number(self, frame: VideoFrame) -> int:
        if not self.timed or frame.pts is None:
            return self.next_number
        return self.timeline.number_at(frame.pts)
