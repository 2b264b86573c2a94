"""Pictures at the beginning of a stream that refer to pictures before it: a recording that was cut has them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.video.source import open_video

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

PACKETS_DECODED = 33  # a keyframe and the longest group of pictures that are decoded after it and shown before it
# Decoders that give such pictures all the same, with whatever they had in memory where the missing ones would be.
CONCEALING = ("h264",)


def lost_leading(path: str | Path, member: str | None, first: int) -> int:
    """How many pictures are shown before keyframe packet `first` and cannot be decoded without what came before it.

    0 where the decoder gives them all. Where it leaves out one, none of them counts: which one depends on the others.
    """
    with open_video(path, member) as (container, stream):
        shown = [frame.pts for frame in _numbered(container, stream, first)]
    if 0 not in shown:
        return 0  # the keyframe itself is broken, or its decoder does not say which packet a picture is of
    before = shown.index(0)
    missing = sum(1 for _ in takewhile(lambda number: number not in shown, range(1, PACKETS_DECODED)))
    if len(shown) == 1:
        return 0
    return before + missing if missing or stream.codec_context.name in CONCEALING else 0


def _numbered(container: InputContainer, stream: VideoStream, first: int) -> Iterator[VideoFrame]:
    """The first pictures from packet `first` on, their `pts` the numbers of their packets."""
    packets = (packet for packet in container.demux(stream) if packet.size and not packet.is_discard)
    for number, packet in enumerate(islice(packets, first, first + PACKETS_DECODED)):
        packet.pts = packet.dts = number
        yield from stream.codec_context.decode(packet)
    yield from stream.codec_context.decode(None)
