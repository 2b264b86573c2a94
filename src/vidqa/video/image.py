"""Displayed size and pixels of images, identical to those of transformers' `load_image` and a model's processor.

Both use Pillow: its decoders, EXIF orientation applied, then RGB. Other decoders turn the same JPEG or WebP into other
pixels.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vidqa.video.problems import MEDIA_UNREADABLE
from vidqa.video.source import extent, place
from vidqa.video.types import ImageMeta

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

# The formats that Pillow decodes by itself: it would start Ghostscript for an EPS.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
# Exceptions of Pillow for malformed files, beside its own errors.
BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, ArithmeticError, TypeError, AttributeError),
    *(AssertionError, RuntimeError, struct.error, zlib.error),
)
PIXELS_AND_END = (b"IDAT", b"IEND")


def probe_image(path: str | Path, member: str | None = None) -> ImageMeta:
    """Read the displayed size of an image from its header. Raises MEDIA_UNREADABLE."""
    with _opened(path, member) as image:
        orientation = _orientation(image)
        (width, height), mode = image.size, image.mode
    turned = orientation >= 5
    return ImageMeta(height if turned else width, width if turned else height, orientation, mode)


def decode_image(path: str | Path, member: str | None = None) -> np.ndarray:
    """Decode to RGB, uint8 [1, H, W, 3]; an alpha channel is dropped, and the first of several pictures is used. Grey
    values of more than 8 bits and floats are clipped to 0 to 255, not scaled. Raises MEDIA_UNREADABLE."""
    from PIL import Image, ImageOps

    with _opened(path, member) as image:
        picture = ImageOps.exif_transpose(image).convert("RGB")
        if picture.info.get("transparency") is not None:  # one transparent colour: processors use a white background
            white = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
        return np.array(picture)[None]


@contextmanager
def _opened(path: str | Path, member: str | None) -> Iterator[ImageFile]:
    """Open an image and read its header; errors of Pillow, here or in the block, become MEDIA_UNREADABLE."""
    from PIL import ContainerIO, Image

    where = place(path, member)
    offset, length = extent(path, member)
    _prepare()
    try:
        with open(path, "rb") as file:
            source = file if member is None else ContainerIO.ContainerIO(file, offset, length)
            with Image.open(source, formats=FORMATS) as image:
                yield image
    except Image.UnidentifiedImageError as unknown:
        kinds = ", ".join(FORMATS)
        raise MEDIA_UNREADABLE.error(where, f"its format is not one of {kinds}") from unknown
    except (Image.DecompressionBombError, *BROKEN) as broken:
        raise MEDIA_UNREADABLE.error(where, f"Pillow cannot decode it: {broken or type(broken).__name__}") from broken


@cache
def _prepare() -> None:
    """Load Pillow's decoders once, and silence its warnings (a size below its limit, odd EXIF)."""
    from PIL import Image

    Image.init()
    warnings.filterwarnings("ignore", module=r"PIL\.")


def _orientation(image: ImageFile) -> int:
    """EXIF orientation 1 to 8; 1 where the image has none.

    A PNG may store it after its pixels, for which Pillow decodes them all; most PNGs store nothing there.
    """
    from PIL import ExifTags, Image

    # The base class's method reads only the header.
    plain = image.format == "PNG" and not _has_late_chunks(image)
    exif = Image.Image.getexif(image) if plain else image.getexif()
    value = exif.get(ExifTags.Base.Orientation, 1)
    return value if value in range(1, 9) else 1


def _has_late_chunks(image: ImageFile) -> bool:
    """Whether a PNG has other chunks after the start of its pixels. The read position of the file is unchanged."""
    file = image.fp
    assert file is not None
    here = file.tell()
    try:
        file.seek(8)
        seen_pixels = False
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            seen_pixels = seen_pixels or kind == b"IDAT"
            if seen_pixels and kind not in PIXELS_AND_END:
                return True
            file.seek(length + 4, 1)
        return False
    finally:
        file.seek(here)
