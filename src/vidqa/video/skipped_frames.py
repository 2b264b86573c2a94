"""Packets that give no picture: of a recording that was cut, and of frames that an encoder left out."""

from __future__ import annotations

from collections.abc import Set
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from vidqa.video.source import open_video

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

PACKETS_DECODED = 33  # a keyframe and the longest group of pictures that are decoded after it and shown before it
# Decoders that give such pictures all the same, with whatever they had in memory where the missing ones would be.
CONCEALING = ("h264",)


def lost_leading(path: str | Path, member: str | None, first: int, seconds: Set[int] = frozenset()) -> int:
    """How many pictures are shown before keyframe packet `first` and cannot be decoded without what came before it.

    0 where the decoder gives them all, or finds a packet damaged, which decoding reports. Where it leaves out one, none
    of them counts: which one depends on the others. `seconds` are packets that give no picture of their own.
    """
    with open_video(path, member) as (container, stream):
        shown = _shown(container, stream, range(first, first + PACKETS_DECODED))
        reorders = bool(stream.codec_context.has_b_frames)
    if not reorders or first not in shown:
        return 0
    before = shown.index(first)
    behind = (number for number in range(first + 1, first + PACKETS_DECODED) if number not in seconds)
    missing = sum(1 for _ in takewhile(lambda number: number not in shown, behind))
    return before + missing if missing or stream.codec_context.name in CONCEALING else 0


def not_coded(path: str | Path, member: str | None, first: int, small: list[int]) -> list[int]:
    """Which of the `small` packets say that the picture before them stays, as MPEG-4 encoders do for frames that they
    leave out. None for a decoder that reorders pictures: there such packets hold the place of one packed before."""
    with open_video(path, member) as (container, stream):
        shown = set(_shown(container, stream, {first, *small}))
        if stream.codec_context.has_b_frames or first not in shown:
            return []
    return [number for number in small if number not in shown]


def _shown(container: InputContainer, stream: VideoStream, numbers: range | set[int]) -> list[int | None]:
    """Of which of these packets the decoder gives a picture, in its order. Nothing where it finds one damaged."""
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
