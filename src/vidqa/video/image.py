"""Images: size as shown, and pixels, with the EXIF orientation applied."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from vidqa.video.problems import IMAGE_UNREADABLE
from vidqa.video.source import extent, open_container, place
from vidqa.video.types import ImageMeta

HEAD_BYTES = 256 * 1024  # JPEG and PNG have EXIF at the front of the file; WebP at its end
EXIF_MARKS = (b"Exif\0\0", b"eXIf", b"EXIF")  # JPEG, PNG, WebP
ORIENTATION_TAG = 0x112


def probe_image(path: str | Path, member: str | None = None) -> ImageMeta:
    """Size of an image as shown, from its header. Raises IMAGE_UNREADABLE."""
    orientation = _orientation(path, member)
    with open_container(path, member, IMAGE_UNREADABLE, IMAGE_UNREADABLE) as container:
        if not container.streams.video or not container.streams.video[0].width:
            raise IMAGE_UNREADABLE.error(place(path, member), "the file has no picture in it")
        width, height = container.streams.video[0].width, container.streams.video[0].height
    turned = orientation >= 5
    return ImageMeta(height if turned else width, width if turned else height, orientation)


def decode_image(path: str | Path, member: str | None = None) -> np.ndarray:
    """uint8 [1, H, W, 3], RGB; transparency is dropped. Raises IMAGE_UNREADABLE."""
    orientation = _orientation(path, member)
    with open_container(path, member, IMAGE_UNREADABLE, IMAGE_UNREADABLE) as container:
        frame = next(container.decode(video=0), None) if container.streams.video else None
        if frame is None or frame.is_corrupt:
            raise IMAGE_UNREADABLE.error(place(path, member), "the file has no whole picture in it")
        return np.ascontiguousarray(_oriented(frame.to_ndarray(format="rgb24"), orientation))[None]


def _oriented(picture: np.ndarray, orientation: int) -> np.ndarray:
    """EXIF orientations: 5 to 8 swap rows and columns, then rows or columns may run backwards."""
    upright = picture.transpose(1, 0, 2) if orientation >= 5 else picture
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return upright[::rows, ::columns]


def _orientation(path: str | Path, member: str | None) -> int:
    """EXIF orientation 1 to 8 of an image file; 1 where it has none."""
    offset, length = extent(path, member, IMAGE_UNREADABLE, IMAGE_UNREADABLE)
    with open(path, "rb") as file:
        file.seek(offset)
        head = file.read(min(length, HEAD_BYTES))
        if head.startswith(b"RIFF"):
            head += file.read(length - len(head))
    for mark in EXIF_MARKS:
        at = head.find(mark)
        if at >= 0:
            return _orientation_of(head[at : at + 64 * 1024])
    return 1


def _orientation_of(exif: bytes) -> int:
    """The orientation entry of the first directory of a TIFF block that starts soon after the EXIF mark."""
    starts = [at for at in (exif.find(b"II*\0", 0, 24), exif.find(b"MM\0*", 0, 24)) if at >= 0]
    if not starts:
        return 1
    tiff = exif[starts[0] :]
    order = "<" if tiff[:2] == b"II" else ">"
    try:
        (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
        (entries,) = struct.unpack_from(f"{order}H", tiff, directory)
        for at in range(directory + 2, directory + 2 + 12 * entries, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, at)
            if tag == ORIENTATION_TAG:
                return value if 1 <= value <= 8 else 1
    except struct.error:  # a directory that points outside the block: no orientation to be had
        return 1
    return 1
