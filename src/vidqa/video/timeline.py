"""Presentation timestamps of every frame of a file: from its header where that is enough, else from its packets."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Set
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vidqa.video.h264_fields import SecondFieldDetector
from vidqa.video.problems import MEDIA_UNREADABLE
from vidqa.video.source import extent, open_video, place

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.video.stream import VideoStream

# A frame that is off its evenly spaced timestamp by more than this fraction of a frame makes the rate variable. Below
# one half, so that rounding a frame's timestamp always gives its own number.
TOLERANCE = 0.25
AVI_CHUNK = struct.Struct("<4sI")  # chunk type and how many bytes follow
# Raw streams without a container: FFmpeg invents their timestamps, at 25 frames a second whatever their headers say.
RAW = ("h264", "hevc", "vvc", "mpegvideo", "m4v", "h263", "h261", "mjpeg", "obu", "av1", "dirac", "vc1")
SMALL_BYTES = 32  # largest size of a packet that may say only "repeat the previous picture"
ASSUMED_FPS = 25.0  # FFmpeg's own, for a raw stream whose headers have no rate
MAX_REORDERED = 16  # frames that a decoder holds back; no standard allows more
PACKETS_DECODED = 33  # a keyframe and the longest group of pictures that are decoded after it and shown before it
# Decoders that return such pictures anyway, filling missing references with whatever is in memory.
CONCEALING = ("h264",)


class Stamp(NamedTuple):
    """Identity of a packet: presentation timestamp in ticks, keyframe flag, and CRC-32 of its bytes."""

    pts: int | None
    is_keyframe: bool
    crc: int

    @classmethod
    def from_packet(cls, packet: Packet) -> Stamp | None:
        """The stamp of a packet; None for a packet without a displayed picture."""
        if not packet.size or packet.is_discard:
            return None
        return cls(packet.pts, packet.is_keyframe, zlib.crc32(memoryview(packet)))


@dataclass(frozen=True)
class PacketList:
    """The packets of a stream in decoding order. Decoding begins with packet `first`, a keyframe if there is one.
    `lost` pictures are displayed before it but refer to others that the file lacks; they are not counted as frames.
    `seconds` are the packets that hold the second field of a frame, which the packet before began."""

    stamps: tuple[Stamp, ...]
    first: int
    lost: int
    seconds: frozenset[int] = frozenset()

    @property
    def without_frames(self) -> int:
        """Number of pictures at the beginning that are not counted as frames."""
        return self.first - sum(number < self.first for number in self.seconds) + self.lost

    @property
    def pictures(self) -> list[Stamp]:
        """The first, or only, packet of every picture."""
        return [stamp for number, stamp in enumerate(self.stamps) if number not in self.seconds]


@dataclass(frozen=True)
class Timeline:
    """The frames of one stream in presentation order.

    `fps` is the even rate, or the mean rate where `even` is false. `pts` [count] in units of `tick_s` seconds is None
    where it is start_pts + i / fps / tick_s. `keyframes` are frame numbers, approximate where pts is None.
    `timed` is false where the container stores no presentation timestamps (AVI): frames can only be counted. An AVI
    frame without data repeats the picture before it: `pictures` then holds the numbers of the frames that have a
    picture.

    `packets` is None where the container's index, by which it also seeks, was read instead of the packets.
    `rate_assumed`: no header states a frame rate.
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
    packets: PacketList | None = None
    rate_assumed: bool = False

    def picture_at(self, number: int) -> int:
        """The number of the stream's picture that is displayed as frame `number`."""
        return number if self.pictures is None else int(np.searchsorted(self.pictures, number, "right")) - 1

    def pts_of(self, number: int) -> int:
        if self.pts is not None:
            return int(self.pts[number])
        return self.start_pts + round(number / self.fps / self.tick_s)

    def number_at(self, pts: int) -> int:
        """The number of the frame whose presentation timestamp is `pts`."""
        if self.pts is None:
            return round((pts - self.start_pts) * self.tick_s * self.fps)
        return int(np.searchsorted(self.pts, pts))

    def times_s(self) -> np.ndarray:
        """The timestamp of every frame in seconds, from 0, as float64 [count]."""
        if self.pts is None:
            return np.arange(self.count) / self.fps
        return (self.pts - self.pts[0]) * self.tick_s


def read_timeline(path: str | Path, member: str | None, container: InputContainer, stream: VideoStream) -> Timeline:
    """Read the timeline of an opened stream, whose read position is unchanged. Raises MEDIA_UNREADABLE.

    MP4 and MOV hold an index of all frames, which is read with the header. Other containers, and indices that are
    uneven, edited or incomplete, are read packet by packet, without decoding.
    """
    if container.format.name.startswith("mov") and stream.start_time is not None:
        timeline = _from_table(path, member, stream)
        # A stream of keyframes only has no reordered frames, and its frames may be large.
        if timeline and (len(timeline.keyframes) == timeline.count or _begins_whole(container, stream)):
            return timeline
    with open_video(path, member, header_alone=True) as (again, again_stream):
        return _from_packets(path, member, again, again_stream)


def _begins_whole(container: InputContainer, stream: VideoStream) -> bool:
    """Whether a stream begins with a keyframe, and no frame is displayed before it."""
    packets = list(islice(container.demux(stream), MAX_REORDERED + 1))
    container.seek(stream.index_entries[0].timestamp, stream=stream, backward=True)
    shown = [packet.pts for packet in packets if packet.size and packet.pts is not None]
    return bool(shown) and packets[0].is_keyframe and min(shown) == packets[0].pts


def _from_table(path: str | Path, member: str | None, stream: VideoStream) -> Timeline | None:
    entries = list(stream.index_entries)
    if not entries or len(entries) != stream.frames or any(entry.is_discard or not entry.size for entry in entries):
        return None
    _, length = extent(path, member)
    whole = sum(entry.pos + entry.size <= length for entry in entries)
    if whole < len(entries):
        message = f"the container lists {len(entries)} frames, the file ends after {whole}"
        raise MEDIA_UNREADABLE.error(place(path, member), message)
    tick_s = float(stream.time_base or 1)
    # Decoding timestamps: as evenly spaced as presentation timestamps, in another order.
    fps = _even_rate(np.array([entry.timestamp for entry in entries]) * tick_s, stream)
    if fps is None:
        return None
    keyframes = np.flatnonzero([entry.is_keyframe for entry in entries])
    return Timeline(len(entries), fps, True, tick_s, int(stream.start_time or 0), None, keyframes)


def _from_packets(path: str | Path, member: str | None, container: InputContainer, stream: VideoStream) -> Timeline:
    stamps: list[Stamp] = []
    decoded_at: list[int | None] = []
    small: list[int] = []  # packet numbers
    seconds: set[int] = set()
    fields = SecondFieldDetector(stream.codec_context.extradata) if stream.codec_context.name == "h264" else None
    last = 0
    for packet in container.demux(stream):
        stamp = Stamp.from_packet(packet)
        if stamp is not None:
            if packet.size <= SMALL_BYTES and not packet.is_keyframe:
                small.append(len(stamps))
            if fields and fields.is_second_field(memoryview(packet)):
                seconds.add(len(stamps))
            stamps.append(stamp)
            decoded_at.append(packet.dts)
            last = max(last, packet.pos or 0)
    if not stamps:
        raise MEDIA_UNREADABLE.error(place(path, member), "the video stream has no frames")
    name = container.format.name
    first = next((number for number, stamp in enumerate(stamps) if stamp.is_keyframe), 0)
    packets = PacketList(tuple(stamps), first, 0, frozenset(seconds))
    pictures, begin = packets.pictures, packets.without_frames
    times = [stamp.pts for stamp in pictures if stamp.pts is not None]
    timed = name not in (*RAW, "avi") and len(times) == len(pictures)
    # Without timestamps only decoding shows whether pictures precede the first keyframe.
    leads = not timed or min(times[begin:]) < times[begin]
    intra = all(stamp.is_keyframe for stamp in pictures)
    if leads and not intra:
        packets = replace(packets, lost=_lost_leading(path, member, first, packets.seconds))
    if timed:
        return _timed(packets, begin, times, stream)
    stated = stream.codec_context.framerate if name in RAW else stream.average_rate or stream.guessed_rate
    slots = [slot for number, slot in enumerate(decoded_at) if number >= first and number not in seconds]
    shown_at = sorted(slot for slot in slots if slot is not None)[packets.lost :]
    if name != "avi" or len(shown_at) != len(pictures) - packets.without_frames:
        return _counted(packets, stated, None, len(pictures) - packets.without_frames)
    small = [number for number in small if number > first]
    held = {decoded_at[number] for number in _not_coded(path, member, first, small)} if small else set()
    own = np.array([slot for slot in shown_at if slot not in held], np.int64) - shown_at[0]
    empty = _empty_after(path, member, stream.index, last)
    return _counted(packets, stated, own, shown_at[-1] - shown_at[0] + 1 + empty)


def _timed(packets: PacketList, begin: int, times: list[int], stream: VideoStream) -> Timeline:
    """The timeline of packets with presentation timestamps `times`, in ticks, from picture `begin` on."""
    start = times[begin] if packets.lost else min(times[begin:])
    pts = np.unique(np.array([time for time in times[begin:] if time >= start], np.int64))
    tick_s = float(stream.time_base or 1)
    even_fps = _even_rate((pts - pts[0]) * tick_s, stream)
    fps = even_fps or _mean_rate(pts * tick_s)
    keyframes = sorted(time for time, stamp in zip(times, packets.pictures, strict=True) if stamp.is_keyframe)
    starts = np.searchsorted(pts, np.array(keyframes, np.int64))
    return Timeline(len(pts), fps, even_fps is not None, tick_s, int(pts[0]), pts, starts, packets=packets)


def _counted(packets: PacketList, stated: Fraction | None, pictures: np.ndarray | None, count: int) -> Timeline:
    """The timeline of frames without timestamps, which follow each other at the `stated` rate."""
    fps = float(stated or ASSUMED_FPS)
    start = np.zeros(1, int)
    return Timeline(count, fps, True, 1.0, 0, None, start, False, pictures, packets, rate_assumed=not stated)


def _empty_after(path: str | Path, member: str | None, stream: int, last: int) -> int:
    """Number of frames without data after the data at byte offset `last` of an AVI; FFmpeg leaves them out.

    They are counted in the file, because the header may be wrong, above all for a file that was cut off.
    """
    offset, length = extent(path, member)
    empty, at = 0, last - AVI_CHUNK.size
    with open(path, "rb") as file:
        while 0 <= at <= length - AVI_CHUNK.size:
            file.seek(offset + at)
            kind, size = AVI_CHUNK.unpack(file.read(AVI_CHUNK.size))
            if kind == b"LIST":  # a group of chunks, which follow
                size = 4
            elif kind != b"JUNK" and not (kind[:2].isdigit() or kind[:2] == b"ix"):
                break
            empty += size == 0 and kind in (b"%02ddc" % stream, b"%02ddb" % stream)
            at += AVI_CHUNK.size + size + size % 2
    return empty


def _even_rate(times_s: np.ndarray, stream: VideoStream) -> float | None:
    """The frame rate of evenly spaced timestamps `times_s`; None where they are uneven."""
    claimed = float(stream.average_rate or 0)
    if len(times_s) == 1:
        return claimed or 1.0
    spread = times_s[-1] - times_s[0]
    for fps in (claimed, (len(times_s) - 1) / spread if spread > 0 else 0.0):
        if fps and np.abs(times_s - times_s[0] - np.arange(len(times_s)) / fps).max() * fps <= TOLERANCE:
            return float(fps)
    return None


def _mean_rate(times_s: np.ndarray) -> float:
    """Mean frame rate of uneven frames, with the median frame duration as that of the last frame."""
    return len(times_s) / float(times_s[-1] - times_s[0] + np.median(np.diff(times_s)))


def _lost_leading(path: str | Path, member: str | None, first: int, seconds: Set[int]) -> int:
    """Number of pictures displayed before keyframe packet `first` that cannot be decoded without earlier packets.

    0 where the decoder returns them all, or finds a packet damaged, which decoding reports. Where it leaves out one,
    all of them are lost: the others may refer to it. `seconds` are packets that give no picture of their own.
    """
    with open_video(path, member) as (container, stream):
        shown = _decoded_pictures(container, stream, range(first, first + PACKETS_DECODED))
        reorders = bool(stream.codec_context.has_b_frames)
    if not reorders or first not in shown:
        return 0
    before = shown.index(first)
    behind = (number for number in range(first + 1, first + PACKETS_DECODED) if number not in seconds)
    missing = sum(1 for _ in takewhile(lambda number: number not in shown, behind))
    return before + missing if missing or stream.codec_context.name in CONCEALING else 0


def _not_coded(path: str | Path, member: str | None, first: int, small: list[int]) -> list[int]:
    """The numbers among `small` of packets that repeat the picture before them, as MPEG-4 encoders write for dropped
    frames. Empty for a decoder that reorders pictures: there such packets stand for a picture packed earlier."""
    with open_video(path, member) as (container, stream):
        shown = set(_decoded_pictures(container, stream, {first, *small}))
        if stream.codec_context.has_b_frames or first not in shown:
            return []
    return [number for number in small if number not in shown]


def _decoded_pictures(container: InputContainer, stream: VideoStream, numbers: range | set[int]) -> list[int | None]:
    """Numbers of those packets for which the decoder returns a picture, in its order; empty if a packet is damaged."""
    from av.error import FFmpegError

    shown: list[int | None] = []
    packets = (packet for packet in container.demux(stream) if packet.size and not packet.is_discard)
    try:
        for number, packet in enumerate(islice(packets, max(numbers) + 1)):
            if number in numbers:
                packet.pts = packet.dts = number
                shown += [frame.pts for frame in stream.codec_context.decode(packet)]
        return shown + [frame.pts for frame in stream.codec_context.decode(None)]
    except FFmpegError:
        return []
