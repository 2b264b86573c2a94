"""Metadata of video and image files: frame rate, length, displayed size. Read from headers; of a video also from its
packets and the first bytes of its first picture. Decoding that whole picture would take most of a probe's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vidqa.core.problem import Problem, ProblemError
from vidqa.video.image import probe_image
from vidqa.video.problems import MEDIA_READ_DIFFERENTLY, MEDIA_UNREADABLE
from vidqa.video.source import open_video, place
from vidqa.video.timeline import read_timeline
from vidqa.video.types import ImageMeta, VideoMeta

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

CLIPPED_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")  # Pillow's modes of values that exceed 8 bits
THREADS = 8  # a probe waits for the disk; FFmpeg releases the GIL meanwhile
Header = VideoMeta | ImageMeta | list[Problem]
# Decoders that return a partial picture for a truncated packet.
PARTIAL_DECODERS = ("h264", "hevc", "mpeg2video", "mpeg4")
HEAD_BYTES = 4096  # parameter sets, messages, and the beginning of the picture itself
NO_CONCEALMENT = {"ec": "0"}  # the pixels of the partial picture are not used
# Decoders whose packets may be pieces with a length prefix each: the index of the extradata byte whose two lowest bits
# are the number of bytes of a length, less one (ISO 14496-15); such extradata begins with a 1.
LENGTH_BYTES_AT = {"h264": 4, "hevc": 21}
# A whole VP9 picture of 1 x 1 pixel. The VP9 decoder returns no picture for a truncated packet, but rotates any picture
# that it returns as the container says.
VP9_PICTURE = bytes.fromhex("8249834200000000060038241c197000002020003b00")


class MediaFile(Protocol):
    """A record's medium, or a request for frames."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def member(self) -> str | None: ...


def probe(path: str | Path, member: str | None = None) -> VideoMeta:
    """Read the metadata of the video `path`, or of `member` of the uncompressed tar `path`.

    Size and rotation come from the decoder, for the head of the first picture; damaged pictures are found only by
    decoding. The frame count is the number of frames in the file, not the container's claim.
    Takes a few milliseconds for MP4 and MOV; other containers are read through once. Raises MEDIA_UNREADABLE.
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
    """Read the metadata of a video or image. Raises as `probe` and `probe_image` do."""
    return (probe_image if file.kind == "image" else probe)(file.path, file.member)


def probe_many(media: Iterable[MediaFile]) -> list[Header]:
    """Metadata of each medium, or its problems, in the order of `media`. A medium that occurs twice is read once."""
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


def header_problems(header: Header, where: object) -> list[Problem]:
    """The problems of a broken file, or warnings about one that is read differently from what its author may expect."""
    if isinstance(header, list):
        return header
    warnings = []
    if isinstance(header, ImageMeta):
        if header.mode in CLIPPED_MODES:
            message = f"its pixels have Pillow's mode {header.mode}; values above 255 become white, those below 1 black"
            warnings.append((message, "Scale its values to 0 to 255 and save it with 8 bits."))
    else:
        if header.frames_lost:
            lost = f"its first {header.frames_lost} pictures depend on missing ones and are skipped"
            remedy = "No action needed if times in the annotations count from the next picture; otherwise cut it again."
            warnings.append((lost, remedy))
        if header.rate_assumed:
            message = f"its headers state no frame rate; {header.source_fps:g} frames per second are assumed"
            warnings.append((message, "Put it into a container: `ffmpeg -r RATE -i FILE -c copy NEW.mp4`."))
    return [MEDIA_READ_DIFFERENTLY.at(where, *warning, severity="warning") for warning in warnings]


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """Geometry of a stream's pictures: `width` and `height` as displayed, after `rotation` (0, 90, 180 or 270 degrees
    counter-clockwise) is applied."""

    width: int
    height: int
    rotation: int


def read_stream_info(
    path: str | Path, member: str | None, container: InputContainer, stream: VideoStream
) -> StreamInfo:
    """The geometry of an opened stream, which must stand before its first packet. Raises MEDIA_UNREADABLE."""
    look = _by_first_packet(container, stream)
    if look is not None:
        return look
    with open_video(path, member) as (again, again_stream):
        frame = next(again.decode(again_stream), None)
    if frame is None:
        raise MEDIA_UNREADABLE.error(place(path, member), "none of its frames can be decoded")
    return _stream_info(frame.width, frame.height, frame.rotation)


def _stream_info(width: int, height: int, degrees: float) -> StreamInfo:
    rotation = round(degrees / 90) * 90 % 360  # the nearest right angle
    return StreamInfo(height, width, rotation) if rotation % 180 else StreamInfo(width, height, rotation)


def _by_first_packet(container: InputContainer, stream: VideoStream) -> StreamInfo | None:
    """The geometry by the first packet alone; None where its decoder needs more packets, or finds it broken."""
    from av.error import FFmpegError

    packet = next((packet for packet in container.demux(stream) if packet.size), None)
    if packet is None:
        return None
    decoder = stream.codec_context
    try:
        if decoder.name == "vp9":
            return _vp9_info(packet, decoder)
        if decoder.name in PARTIAL_DECODERS:
            packet = _head(packet, decoder)
            decoder.options = decoder.options | NO_CONCEALMENT
        frame = _picture(decoder, packet)
    except FFmpegError:
        return None
    return _stream_info(frame.width, frame.height, frame.rotation) if frame else None


def _picture(decoder: VideoCodecContext, packet: Packet) -> VideoFrame | None:
    return next(iter(decoder.decode(packet) or decoder.decode(None)), None)


def _head(packet: Packet, decoder: VideoCodecContext) -> Packet:
    """Truncate a packet to HEAD_BYTES; the length prefix of a truncated piece is set to what is left of it."""
    data = bytearray(memoryview(packet)[:HEAD_BYTES])
    extradata, at_byte = decoder.extradata or b"", LENGTH_BYTES_AT.get(decoder.name, 0)
    if at_byte and len(extradata) > at_byte and extradata[0] == 1:
        wide, at = (extradata[at_byte] & 3) + 1, 0
        while at + wide < len(data):
            inside = min(int.from_bytes(data[at : at + wide]), len(data) - at - wide)
            data[at : at + wide] = inside.to_bytes(wide)
            at += wide + inside
        del data[at:]
    head = _packet(bytes(data))
    for side_data in packet.iter_sidedata():
        head.set_sidedata(side_data)
    return head


def _packet(data: bytes) -> Packet:
    """A packet with memory of its own: decoders read beyond the end of the data."""
    from av import Packet

    packet = Packet(len(data))
    packet.update(data)
    return packet


def _vp9_info(packet: Packet, decoder: VideoCodecContext) -> StreamInfo | None:
    from av.error import FFmpegError

    decoder.width = decoder.height = 0
    with suppress(FFmpegError):  # raised for the truncated picture, once its size is known
        # The appended byte 0 is needed: other last bytes can mark an index of several pictures in one packet.
        decoder.decode(_packet(bytes(memoryview(packet)[:HEAD_BYTES]) + b"\0"))
    width, height = decoder.width, decoder.height
    turned = _picture(decoder, _packet(VP9_PICTURE)) if width and height else None
    return _stream_info(width, height, turned.rotation) if turned else None
