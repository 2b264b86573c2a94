"""H.264 whose pictures are fields (PAFF), as broadcasts have them, written bit by bit: no encoder here writes it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.packet import Packet
from clips import decode_frames

from vidqa.video.probe import probe

FRAMES, FPS, GROUP = 30, 10, 5
WIDE, HIGH = 2, 1  # macroblocks of a field: a frame has 32 x 32 pixels


class Bits:
    def __init__(self) -> None:
        self.bits: list[int] = []

    def u(self, value: int, width: int) -> Bits:
        self.bits += [value >> place & 1 for place in reversed(range(width))]
        return self

    def ue(self, *values: int) -> Bits:
        for value in values:
            width = (value + 1).bit_length()
            self.u(0, width - 1).u(value + 1, width)
        return self

    def align(self) -> Bits:
        return self.u(0, -len(self.bits) % 8)

    def raw(self, luma: int) -> Bits:
        """A macroblock of one grey, as it is (I_PCM)."""
        for sample in [luma] * 256 + [128] * 128:
            self.align().u(sample, 8)
        return self

    def unit(self, kind: int) -> bytes:
        self.u(1, 1).align()
        body = bytes(int("".join(map(str, self.bits[at : at + 8])), 2) for at in range(0, len(self.bits), 8))
        whole, zeros = bytearray([3 << 5 | kind]), 0
        for byte in body:
            if zeros >= 2 and byte <= 3:
                whole.append(3)
                zeros = 0
            whole.append(byte)
            zeros = 0 if byte else zeros + 1
        return b"\0\0\0\1" + bytes(whole)


def parameter_sets() -> bytes:
    sequence = Bits().u(77, 8).u(0, 8).u(20, 8).ue(0, 4, 2, 2).u(0, 1).ue(WIDE - 1, HIGH - 1)
    sequence.u(0b0010, 4).u(1, 1)  # fields may be pictures; not by macroblocks; 8x8; no crop; then what is shown how
    sequence.u(0, 4).u(1, 1).u(1, 32).u(2 * FPS, 32).u(1, 1).u(0, 4)
    picture = Bits().ue(0, 0).u(0, 2).ue(0, 0, 0).u(0, 3).ue(0, 0, 0).u(0, 3)
    return sequence.unit(7) + picture.unit(8)


def slice_of(number: int, is_bottom: int | None) -> bytes:
    """A field, or a whole frame. One macroblock spells its number; in other pictures than the first of a group the
    rest is as in the picture before."""
    at, group = number % GROUP, number // GROUP
    is_key, is_idr, luma = at == 0, at == 0 and not is_bottom, 20 + 7 * number % 200 + 8 * (is_bottom or 0)
    bits = Bits().ue(0, 7 if is_key else 5, 0).u(at, 8).u(is_bottom is not None, 1)
    bits.u(is_bottom or 0, int(is_bottom is not None)).ue(*([group % 2] if is_idr else []))
    bits.u(0, 2 * (not is_key)).u(0, 1 + is_idr).ue(0)
    blocks = WIDE * HIGH * (2 if is_bottom is None else 1)
    if is_key:
        for block in range(blocks):
            bits.ue(25).raw(40 + number if block else luma)
    else:
        bits.ue(0, 5 + 25).raw(luma).ue(blocks - 1)
    return bits.unit(5 if is_idr else 1)


def pictures(number: int, every: int) -> list[bytes]:
    """The packets of a frame: two fields, or one where the frame is one of `every`."""
    start = b"\0\0\0\1\x09\x30"
    head = start + (parameter_sets() if number % GROUP == 0 else b"")
    if every and number % GROUP and number % every == 0:
        return [head + slice_of(number, None)]
    return [head + slice_of(number, 0), start + slice_of(number, 1)]


def write(path: Path, every: int, joined: bool) -> None:
    frames = [pictures(number, every) for number in range(FRAMES)]
    if path.suffix == ".h264":
        path.write_bytes(b"".join(b"".join(frame) for frame in frames))
        return
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width = stream.height = 32
        for number, fields in enumerate(frames):
            for at, data in enumerate([b"".join(fields)] if joined else fields):
                packet = Packet(data)
                packet.stream, packet.time_base = stream, Fraction(1, 2 * FPS)
                packet.pts = packet.dts = 2 * number + at
                packet.is_keyframe = number % GROUP == 0 and at == 0
                container.mux(packet)


@pytest.mark.parametrize("every", [0, 3], ids=["fields", "fields and frames"])
@pytest.mark.parametrize(
    ("name", "joined"),
    [("a.h264", True), ("a.ts", True), ("a.ts", False), ("a.mkv", False), ("a.mkv", True), ("a.mp4", True)],
)
def test_two_fields_are_one_frame(tmp_path: Path, name: str, joined: bool, every: int) -> None:
    path = tmp_path / name
    write(path, every, joined)
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(expected) == FRAMES and len({frame[0, 0, 0] for frame in expected}) > FRAMES // 2
    meta = probe(path)
    assert (meta.frame_count, meta.frames_lost) == (FRAMES, 0) and meta.source_fps == pytest.approx(FPS)
    for numbers in (range(FRAMES), range(0, FRAMES, 7), *([number] for number in range(FRAMES))):
        frames = decode_frames(path, None, list(numbers))
        assert all(np.array_equal(frame, expected[n]) for n, frame in zip(numbers, frames, strict=True))
