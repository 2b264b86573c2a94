"""Real images: size as shown, pixels, orientation, and what a broken one gives."""

import tarfile

import numpy as np
import pytest
from clips import draw, frame_numbers, write_image
from PIL import Image, ImageOps

from vidqa.core.problem import ProblemError
from vidqa.video.image import decode_image, probe_image


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "ä 日, b.png"])
def test_each_kind_is_read(tmp_path, name):
    path = write_image(tmp_path / name, width=70, height=50, number=1234)
    assert (probe_image(path).width, probe_image(path).height) == (70, 50)
    pixels = decode_image(path)
    assert pixels.shape == (1, 50, 70, 3) and pixels.dtype == np.uint8
    assert frame_numbers(pixels) == [1234]


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P"])
def test_other_modes_become_rgb(tmp_path, mode):
    Image.fromarray(draw(77, 48, 64)).convert(mode).save(tmp_path / "a.png")
    assert frame_numbers(decode_image(tmp_path / "a.png")) == [77]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_as_pillow_applies_it(tmp_path, suffix, orientation):
    path = tmp_path / f"a.{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"lossless": True} if suffix == "webp" else {}
    Image.fromarray(draw(1234, 40, 72)).save(path, exif=exif, **lossless)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
    meta = probe_image(path)
    assert (meta.height, meta.width) == expected.shape[:2] and meta.orientation == orientation
    pixels = decode_image(path)[0]
    assert pixels.shape == expected.shape
    assert (pixels == expected).all()


def test_an_orientation_behind_the_pixels_of_a_png_is_found(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(draw(1234, 40, 72)).save(tmp_path / "a.png", exif=exif)
    whole = (tmp_path / "a.png").read_bytes()
    at = whole.index(b"eXIf") - 4
    chunk = whole[at : at + 12 + int.from_bytes(whole[at : at + 4])]
    (tmp_path / "a.png").write_bytes(whole.replace(chunk, b"")[:-12] + chunk + whole[-12:])
    expected = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "a.png")))
    meta = probe_image(tmp_path / "a.png")
    assert (meta.height, meta.width) == expected.shape[:2] == (72, 40)
    assert (decode_image(tmp_path / "a.png")[0] == expected).all()


def test_probing_a_png_does_not_decode_it(tmp_path, monkeypatch):
    Image.fromarray(draw(1234, 40, 72)).save(tmp_path / "a.png")
    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", None)
    assert probe_image(tmp_path / "a.png").width == 72


def test_png_pixels_are_exact(tmp_path):
    random = np.random.default_rng(0).integers(0, 256, (33, 47, 3), dtype=np.uint8)
    Image.fromarray(random).save(tmp_path / "a.png")
    assert (decode_image(tmp_path / "a.png")[0] == random).all()


def test_a_tar_member(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(write_image(tmp_path / "x.jpg", number=9), "in/x.jpg")
    assert probe_image(tmp_path / "a.tar", "in/x.jpg").width == 64
    assert frame_numbers(decode_image(tmp_path / "a.tar", "in/x.jpg")) == [9]


def test_broken_images_are_named(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("hello" * 100)
    whole = write_image(tmp_path / "whole.png", width=300, height=300).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "drawing.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    )
    for name in ("empty.png", "text.jpg", "cut.png", "missing.png", "drawing.png"):
        with pytest.raises(ProblemError) as caught:
            decode_image(tmp_path / name)
        assert caught.value.problems[0].code == "MEDIA_UNREADABLE", name
        assert name in caught.value.problems[0].where


def test_a_bomb_is_refused_by_its_header(tmp_path):
    """A small file that says it has 400 million pixels."""
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    for function in (probe_image, decode_image):
        with pytest.raises(ProblemError) as caught:
            function(tmp_path / "bomb.png")
        problem = caught.value.problems[0]
        assert problem.code == "MEDIA_UNREADABLE" and "400000000 pixels" in problem.message
