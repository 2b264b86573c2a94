"""Size and rotation of a stream's pictures, from the first bytes of the first one.

Decoding the whole picture would take most of a probe's time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.video.problems import VIDEO_UNREADABLE
from vidqa.video.source import open_video, place

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

# Decoders that give a picture, as far as they got, for a packet that ends too early.
PARTIAL_DECODERS = ("h264", "hevc", "mpeg2video", "mpeg4")
HEAD_BYTES = 4096  # parameter sets, messages, and the beginning of the picture itself
NO_CONCEALMENT = {"ec": "0"}  # nobody looks at what is missing
# Where the packets of these decoders are in pieces, each with its length before it, the byte of the extradata whose two
# lowest bits say how many bytes a length has, less one (ISO 14496-15); such extradata begins with a 1.
LENGTH_BYTES_AT = {"h264": 4, "hevc": 21}
# A whole VP9 picture of 1 x 1 pixel. VP9 gives no picture for a head, but any that it gives is turned as the container
# says.
VP9_PICTURE = bytes.fromhex("8249834200000000060038241c197000002020003b00")


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a stream's pictures look like: `width` and `height` as shown, after `rotation` (0, 90, 180 or 270 degrees
    counter-clockwise) is applied."""

    width: int
    height: int
    rotation: int


def read_stream_info(
    path: str | Path, member: str | None, container: InputContainer, stream: VideoStream
) -> StreamInfo:
    """The look of an opened stream, which must stand before its first packet. Raises VIDEO_UNREADABLE."""
    look = _by_first_packet(container, stream)
    if look is not None:
        return look
    with open_video(path, member) as (again, again_stream):
        frame = next(again.decode(again_stream), None)
    if frame is None:
        raise VIDEO_UNREADABLE.error(place(path, member), "none of its frames can be decoded")
    return _stream_info(frame.width, frame.height, frame.rotation)


def _stream_info(width: int, height: int, degrees: float) -> StreamInfo:
    rotation = round(degrees / 90) * 90 % 360  # the nearest right angle
    return StreamInfo(height, width, rotation) if rotation % 180 else StreamInfo(width, height, rotation)


def _by_first_packet(container: InputContainer, stream: VideoStream) -> StreamInfo | None:
    """What the first packet alone says; None where its decoder wants more than that, or finds it broken."""
    from av.error import FFmpegError

    packet = next((packet for packet in container.demux(stream) if packet.size), None)
    if packet is None:
        return None
    decoder = stream.codec_context
    try:
        if decoder.name == "vp9":
            return _of_vp9(packet, decoder)
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
    """The packet cut off; a piece that is cut has the length of what is left of it."""
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
    """A packet with memory of its own: decoders read beyond the end of what they are given."""
    from av import Packet

    packet = Packet(len(data))
    packet.update(data)
    return packet


def _of_vp9(packet: Packet, decoder: VideoCodecContext) -> StreamInfo | None:
    from av.error import FFmpegError

    decoder.width = decoder.height = 0
    with suppress(FFmpegError):  # for a picture that is not whole, once its size is known
        # A last byte of 0, since others might say that the packet is several pictures with an index at its end.
        decoder.decode(_packet(bytes(memoryview(packet)[:HEAD_BYTES]) + b"\0"))
    width, height = decoder.width, decoder.height
    turned = _picture(decoder, _packet(VP9_PICTURE)) if width and height else None
    return _stream_info(width, height, turned.rotation) if turned else None
