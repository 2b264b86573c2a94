"""H.264 recordings whose pictures are fields (PAFF): two packets make one frame, and the second gives no frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

START = b"\0\0\1"
SLICE, IDR_SLICE, SPS = 1, 5, 7
HEADER_BYTES = 64  # of a slice: more than the fields that are read of it
WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)  # profiles whose SPS says how they sample


class _Bits:
    """Reads a unit bit by bit, without the bytes that keep start codes out of it. Raises IndexError at its end."""

    def __init__(self, unit: bytes | memoryview) -> None:
        self.data = bytes(unit).replace(b"\0\0\3", b"\0\0")
        self.at = 8  # behind the unit's own header

    def u(self, width: int) -> int:
        value = 0
        for _ in range(width):
            value = value << 1 | self.data[self.at >> 3] >> (7 - (self.at & 7)) & 1
            self.at += 1
        return value

    def ue(self) -> int:
        zeros = next(number for number in count() if self.u(1))
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        value = self.ue()
        return (value + 1) // 2 if value & 1 else -(value // 2)


@dataclass(frozen=True)
class _Sequence:
    """Of a sequence parameter set: bits of a frame's number, whether slices name a plane of color first, and whether
    pictures may be fields."""

    number_bits: int
    has_planes: bool
    has_fields: bool


@dataclass(frozen=True)
class _Field:
    frame_number: int
    is_bottom: bool


class FieldReader:
    """Tells of the packets of an H.264 stream, in decoding order, which hold nothing but the second field of a frame.

    `extradata` is the decoder's: parameter sets behind start codes, or an avcC record, where packets have the length of
    each unit before it.
    """

    def __init__(self, extradata: bytes | None) -> None:
        extradata = extradata or b""
        self.length_bytes = (extradata[4] & 3) + 1 if len(extradata) > 6 and extradata[0] == 1 else 0
        self.sequence: _Sequence | None = None
        self.waiting: _Field | None = None  # a first field whose second one has not come
        for unit in _avcc_sets(extradata) if self.length_bytes else _units(extradata, 0):
            self._see(unit)

    def is_second(self, packet: memoryview) -> bool:
        """Whether the packet is the second field of the frame that the packet before it began."""
        was_waiting, pictures = self.waiting, 0
        for unit in _units(packet if self.length_bytes else bytes(packet), self.length_bytes):
            pictures += self._see(unit)
        return was_waiting is not None and self.waiting is None and pictures == 1

    def _see(self, unit: bytes | memoryview) -> bool:
        """Whether a picture, a frame or a field, begins with this unit; of streams without fields nothing is read."""
        kind = unit[0] & 31 if unit else 0
        try:
            if kind == SPS:
                self.sequence = _sequence(_Bits(unit))
            if kind not in (SLICE, IDR_SLICE) or self.sequence is None or not self.sequence.has_fields:
                return False
            return self._begins(_Bits(unit[:HEADER_BYTES]), self.sequence)
        except (IndexError, StopIteration):
            return False  # of a unit that is cut off, the decoder says what is wrong

    def _begins(self, bits: _Bits, sequence: _Sequence) -> bool:
        if bits.ue():  # its first macroblock: a further slice of the same picture
            return False
        bits.ue(), bits.ue()
        bits.u(2 * sequence.has_planes)
        number = bits.u(sequence.number_bits)
        if not bits.u(1):
            self.waiting = None
            return True
        field = _Field(number, bool(bits.u(1)))
        pairs = self.waiting == _Field(number, not field.is_bottom)
        self.waiting = None if pairs else field
        return True


def _sequence(bits: _Bits) -> _Sequence:
    profile, has_planes = bits.u(8), False
    bits.u(16)
    bits.ue()
    if profile in WITH_CHROMA:
        chroma = bits.ue()
        has_planes = chroma == 3 and bool(bits.u(1))
        bits.ue(), bits.ue(), bits.u(1)
        if bits.u(1):
            _skip_scaling(bits, 12 if chroma == 3 else 8)
    number_bits = bits.ue() + 4
    order = bits.ue()
    if order == 0:
        bits.ue()
    elif order == 1:
        bits.u(1), bits.se(), bits.se()
        for _ in range(bits.ue()):
            bits.se()
    bits.ue(), bits.u(1), bits.ue(), bits.ue()
    return _Sequence(number_bits, has_planes, not bits.u(1))


def _skip_scaling(bits: _Bits, lists: int) -> None:
    for number in range(lists):
        if not bits.u(1):
            continue
        last = following = 8
        for _ in range(16 if number < 6 else 64):
            if following:
                following = (last + bits.se()) % 256
            last = following or last


def _units(data: bytes | memoryview, length_bytes: int) -> Iterator[bytes | memoryview]:
    if length_bytes:
        at = 0
        while at + length_bytes < len(data):
            size = int.from_bytes(data[at : at + length_bytes])
            at += length_bytes
            yield data[at : at + size]
            at += size
        return
    assert isinstance(data, bytes)
    at = data.find(START)
    while at >= 0:
        end = data.find(START, at + len(START))
        yield data[at + len(START) : end if end >= 0 else len(data)]
        at = end


def _avcc_sets(extradata: bytes) -> Iterator[bytes]:
    """The sequence parameter sets of an avcC record (ISO 14496-15)."""
    at = 6
    for _ in range(extradata[5] & 31):
        size = int.from_bytes(extradata[at : at + 2])
        yield extradata[at + 2 : at + 2 + size]
        at += 2 + size
