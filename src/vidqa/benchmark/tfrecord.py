"""Read TFRecord files of tf.train.Example without TensorFlow: the features of each record, by name. (The package
`tfrecord` has no wheels and needs protobuf and a compiled checksum.)

A record is its length (8 bytes, and 4 of checksum), its data, and 4 bytes of checksum. An Example is a map of names to
lists of bytes, floats or integers, in the wire format of protocol buffers; floats are skipped here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BYTES, INTEGERS = 1, 3  # field numbers of bytes_list and int64_list in a Feature
MOST_BYTES = 1 << 30  # of one record
POLYNOMIAL = 0x82F63B78  # of CRC-32C
MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """Masked CRC-32C of TFRecord files; computed bit by bit, which is fast enough for the eight bytes of a length."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def examples(path: Path) -> Iterator[dict[str, list[Any]]]:
    """Yield the features of every record: bytes or integers by name. Raises OSError, and ValueError for a truncated
    file or one that is no TFRecord. Checksums of data are not verified: damaged data fails to decode."""
    with path.open("rb") as file:
        while head := file.read(12):
            if len(head) < 12 or masked_crc(head[:8]) != struct.unpack("<I", head[8:])[0]:
                raise ValueError(f"no record begins at byte {file.tell() - len(head)}")
            (length,) = struct.unpack("<Q", head[:8])
            data = file.read(length) if length <= MOST_BYTES else b""
            if len(data) < length or len(file.read(4)) < 4:
                raise ValueError("the last record is truncated")
            yield dict(_features(data))


def _features(example: bytes) -> Iterator[tuple[str, list[Any]]]:
    for _, features in _fields(example):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            if isinstance(parts.get(1), bytes) and isinstance(parts.get(2), bytes):
                yield parts[1].decode("utf-8", "replace"), _values(parts[2])


def _values(feature: bytes) -> list[Any]:
    result: list[Any] = []
    for kind, values in _fields(feature):
        for _, value in _fields(values) if kind in (BYTES, INTEGERS) else ():
            result += _packed(value) if kind == INTEGERS and isinstance(value, bytes) else [value]
    return result


def _packed(data: bytes) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _varint(data, place)
        yield value


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a message: bytes for fields with a length or fixed size, else an integer."""
    if not isinstance(message, bytes):
        raise ValueError("a message is expected, not a number")
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(message, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field has the unknown wire type {wire}")
        if place + size > len(message):
            raise ValueError("a field is truncated")
        yield number, message[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number is truncated")
