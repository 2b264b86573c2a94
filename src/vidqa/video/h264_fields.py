"""H.264 recordings whose pictures are fields (PAFF): two packets make one frame, and the second gives no frame.

`SecondFieldDetector` finds these packets. It parses the sequence parameter set (SPS) and the beginning of slice
headers, by ITU-T H.264, sections 7.3.2.1.1 and 7.3.3; comments name the syntax elements there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

START_CODE = b"\0\0\1"
NAL_SLICE, NAL_IDR_SLICE, NAL_SPS = 1, 5, 7  # nal_unit_type
SLICE_HEADER_BYTES = 64  # more than the parsed elements take
HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)  # their SPS has chroma_format_idc
CHROMA_444 = 3


class SecondFieldDetector:
    """Detector of the packets of an H.264 stream that hold only the second field of a frame. `is_second_field` must
    see every packet, in decoding order.

    `extradata` is the decoder's: parameter sets after start codes, or an avcC record; with avcC each unit of a packet
    follows its length.
    """

    def __init__(self, extradata: bytes | None) -> None:
        extradata = extradata or b""
        self.length_bytes = (extradata[4] & 3) + 1 if len(extradata) > 6 and extradata[0] == 1 else 0
        self.sequence: _SequenceParameters | None = None
        self.unpaired_field: _Field | None = None  # a first field that still lacks its second
        for unit in _avcc_sps_units(extradata) if self.length_bytes else _nal_units(extradata, 0):
            self._read_unit(unit)

    def is_second_field(self, packet: memoryview) -> bool:
        """Whether the packet is the second field of the frame that the packet before it began."""
        was_unpaired, pictures = self.unpaired_field, 0
        for unit in _nal_units(packet if self.length_bytes else bytes(packet), self.length_bytes):
            pictures += self._read_unit(unit)
        return was_unpaired is not None and self.unpaired_field is None and pictures == 1

    def _read_unit(self, unit: bytes | memoryview) -> bool:
        """Parse a unit. Return whether a picture (frame or field) begins with it; False for a stream without fields."""
        unit_type = unit[0] & 31 if unit else 0
        try:
            if unit_type == NAL_SPS:
                self.sequence = _parse_sps(_BitReader(unit))
            if unit_type not in (NAL_SLICE, NAL_IDR_SLICE) or self.sequence is None or not self.sequence.has_fields:
                return False
            return self._read_slice_header(_BitReader(unit[:SLICE_HEADER_BYTES]), self.sequence)
        except IndexError:
            return False  # a truncated unit: the decoder reports the damage

    def _read_slice_header(self, bits: _BitReader, sequence: _SequenceParameters) -> bool:
        """Whether the slice is the first of its picture."""
        if bits.ue():  # first_mb_in_slice
            return False
        bits.ue(), bits.ue()  # slice_type, pic_parameter_set_id
        if sequence.separate_colour_planes:
            bits.u(2)  # colour_plane_id
        frame_num = bits.u(sequence.frame_num_bits)
        if not bits.u(1):  # field_pic_flag: 0 means a whole frame
            self.unpaired_field = None
            return True
        field = _Field(frame_num, is_bottom=bool(bits.u(1)))  # bottom_field_flag
        completes_frame = self.unpaired_field == _Field(frame_num, not field.is_bottom)
        self.unpaired_field = None if completes_frame else field
        return True


@dataclass(frozen=True)
class _SequenceParameters:
    """The fields of an SPS that slice headers depend on. `has_fields`: a picture may be a field."""

    frame_num_bits: int
    separate_colour_planes: bool
    has_fields: bool


@dataclass(frozen=True)
class _Field:
    frame_num: int
    is_bottom: bool


class _BitReader:
    """A bit reader of a NAL unit, behind its header and without emulation prevention bytes. Its methods have the names
    of the H.264 codes (section 9.1), and raise IndexError at the unit's end."""

    def __init__(self, unit: bytes | memoryview) -> None:
        self.data = bytes(unit).replace(b"\0\0\3", b"\0\0")
        self.position = 8  # in bits

    def u(self, bits: int) -> int:
        """Read an unsigned integer of `bits` bits."""
        value = 0
        for _ in range(bits):
            value = value << 1 | self.data[self.position >> 3] >> (7 - (self.position & 7)) & 1
            self.position += 1
        return value

    def ue(self) -> int:
        """Read an unsigned Exp-Golomb code."""
        zeros = 0
        while not self.u(1):
            zeros += 1
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """Read a signed Exp-Golomb code."""
        value = self.ue()
        return (value + 1) // 2 if value & 1 else -(value // 2)


def _parse_sps(bits: _BitReader) -> _SequenceParameters:
    profile, separate_colour_planes = bits.u(8), False
    bits.u(16)  # constraint flags, level_idc
    bits.ue()  # seq_parameter_set_id
    if profile in HIGH_PROFILES:
        chroma_format = bits.ue()
        separate_colour_planes = chroma_format == CHROMA_444 and bool(bits.u(1))
        bits.ue(), bits.ue(), bits.u(1)  # bit depths of luma and chroma, qpprime_y_zero_transform_bypass_flag
        if bits.u(1):  # seq_scaling_matrix_present_flag
            _skip_scaling_lists(bits, 12 if chroma_format == CHROMA_444 else 8)
    frame_num_bits = bits.ue() + 4
    order_type = bits.ue()  # pic_order_cnt_type
    if order_type == 0:
        bits.ue()  # log2_max_pic_order_cnt_lsb_minus4
    elif order_type == 1:
        bits.u(1), bits.se(), bits.se()  # a flag, and the offsets of pictures without references and of bottom fields
        for _ in range(bits.ue()):
            bits.se()  # offset_for_ref_frame
    bits.ue(), bits.u(1)  # max_num_ref_frames, gaps_in_frame_num_value_allowed_flag
    bits.ue(), bits.ue()  # width and height in macroblocks
    frames_only = bool(bits.u(1))  # frame_mbs_only_flag
    return _SequenceParameters(frame_num_bits, separate_colour_planes, has_fields=not frames_only)


def _skip_scaling_lists(bits: _BitReader, lists: int) -> None:
    for number in range(lists):
        if not bits.u(1):  # seq_scaling_list_present_flag
            continue
        last_scale = next_scale = 8
        for _ in range(16 if number < 6 else 64):  # 4x4 lists come before those of 8x8
            if next_scale:
                next_scale = (last_scale + bits.se()) % 256
            last_scale = next_scale or last_scale


def _nal_units(data: bytes | memoryview, length_bytes: int) -> Iterator[bytes | memoryview]:
    """The NAL units of a packet, each after its length (big-endian), or with `length_bytes` 0 after a start code."""
    if length_bytes:
        start = 0
        while start + length_bytes < len(data):
            size = int.from_bytes(data[start : start + length_bytes])
            start += length_bytes
            yield data[start : start + size]
            start += size
        return
    assert isinstance(data, bytes)
    start = data.find(START_CODE)
    while start >= 0:
        end = data.find(START_CODE, start + len(START_CODE))
        yield data[start + len(START_CODE) : end if end >= 0 else len(data)]
        start = end


def _avcc_sps_units(extradata: bytes) -> Iterator[bytes]:
    """The sequence parameter sets of an avcC record (ISO 14496-15)."""
    start = 6
    for _ in range(extradata[5] & 31):
        size = int.from_bytes(extradata[start : start + 2])
        yield extradata[start + 2 : start + 2 + size]
        start += 2 + size
