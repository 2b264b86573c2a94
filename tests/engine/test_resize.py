"""Resized pixels and patches against transformers' own processors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import decode_frames, write_clip
from PIL import Image
from transformers import Qwen2VLImageProcessor, Qwen3VLVideoProcessor
from transformers.image_utils import load_image

from vidqa.engine.data.pixels import patchify, resize_frames
from vidqa.video.image import decode_image, probe_image
from vidqa.video.plan import plan_frames, plan_image
from vidqa.video.probe import probe
from vidqa.video.types import PixelRules, VideoMeta, VisionSpec

UNEVEN = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def rules_of(normal: dict, shortest: int = 4096, longest: int = 262144) -> PixelRules:
    mean, std = ((np.asarray(v, np.float32) * np.float32(255)).tolist() for v in normal.values())
    return PixelRules(16, 2, 2, shortest, longest, 4, 768, mean=tuple(mean), std=tuple(std))


def of_videos(frames: np.ndarray, rules: PixelRules, normal: dict) -> torch.Tensor:
    size = {"shortest_edge": rules.min_pixels, "longest_edge": rules.max_pixels}
    processor = Qwen3VLVideoProcessor(size=size, cap_pixels_per_frame=False, **normal)
    return processor([frames], do_sample_frames=False, return_tensors="pt")["pixel_values_videos"]


@pytest.mark.parametrize("normal", [HALF, UNEVEN])
@pytest.mark.parametrize(("count", "height", "width"), [(4, 240, 320), (5, 77, 131), (6, 31, 900), (7, 20, 18)])
def test_a_video_becomes_the_processors_patches(count, height, width, normal):
    frames = np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    rules = rules_of(normal)
    plan = plan_frames(VideoMeta(1.0, count, count, width, height), VisionSpec(rules, rules, nframes=count))
    ours = patchify(torch.from_numpy(resize_frames(frames, plan.height, plan.width)), rules, rules.mean, rules.std)
    theirs = of_videos(frames, rules, normal)
    assert ours.dtype == torch.float32 and ours.shape == theirs.shape == (plan.patches, 3 * 2 * 16 * 16)
    assert torch.equal(ours, theirs)


def test_pixels_of_a_real_file_are_the_processors(tmp_path):
    path = write_clip(tmp_path / "a.mp4", width=161, height=90, pix_fmt="yuv444p")
    rules = rules_of(HALF)
    plan = plan_frames(probe(path), VisionSpec(rules, rules, fps=3))
    frames = decode_frames(path, None, plan.indices)
    resized = resize_frames(frames, plan.height, plan.width)
    ours = patchify(torch.from_numpy(resized), rules, rules.mean, rules.std)
    theirs = of_videos(frames, rules, HALF)
    # Back to pixels: what the processor resized, before it normalised.
    t, h, w = plan.grid
    blocks = (theirs * 127.5 + 127.5).reshape(t, h // 2, w // 2, 2, 2, 3, 2, 16, 16)
    pixels = blocks.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(-1, 3, plan.height, plan.width)
    assert (pixels[: len(resized)] - torch.from_numpy(resized)).abs().max() < 0.01
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(("height", "width"), [(240, 320), (77, 131), (20, 18), (900, 31)])
def test_an_image_becomes_the_processors_patches(height, width):
    image = np.random.default_rng(0).integers(0, 256, (1, height, width, 3), dtype=np.uint8)
    rules = rules_of(UNEVEN, 65536, 262144)
    plan = plan_image(width, height, VisionSpec(rules, rules, fps=1))
    ours = patchify(torch.from_numpy(resize_frames(image, plan.height, plan.width)), rules, rules.mean, rules.std)
    size = {"shortest_edge": 65536, "longest_edge": 262144}
    processor = Qwen2VLImageProcessor(patch_size=16, merge_size=2, size=size, **UNEVEN)
    theirs = processor(torch.from_numpy(image[0]).permute(2, 0, 1), return_tensors="pt")["pixel_values"]
    assert ours.shape == (plan.patches, 1536) and torch.equal(ours, theirs)


def kinds_of_image(folder: Path) -> Iterator[Path]:
    """Files of every kind whose pixels depend on the decoder, or on what is made of modes that are not RGB."""
    noise = np.random.default_rng(3).integers(0, 256, (60, 90, 4), dtype=np.uint8)
    smooth = Image.fromarray(noise, "RGBA").resize((130, 87), Image.Resampling.BICUBIC)
    picture, turned = smooth.convert("RGB"), Image.Exif()
    turned[0x0112] = 6

    def saved(name: str, image: Image.Image = picture, **options: Any) -> Path:
        image.save(folder / name, **options)
        return folder / name

    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        yield saved(f"{subsampling.replace(':', '')}.jpg", subsampling=subsampling, quality=80)
    yield saved("progressive.jpg", progressive=True, quality=60)
    yield saved("turned.jpg", exif=turned)
    yield saved("cmyk.jpg", picture.convert("CMYK"))
    yield saved("grey.jpg", picture.convert("L"))
    yield saved("lossy.webp", quality=70)
    yield saved("lossless.webp", lossless=True)
    yield saved("alpha.webp", smooth, quality=70)
    yield saved("turned.png", exif=turned)
    yield saved("palette.png", picture.quantize(32))
    yield saved("clear.png", picture.quantize(32), transparency=3)
    yield saved("alpha.png", smooth)
    yield saved("deep.png", Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 2))
    yield saved("bits.png", picture.convert("1"))
    yield saved("a.gif")
    yield saved("a.bmp")
    yield saved("deep.tiff", Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257))


def test_image_files_of_every_kind_become_what_the_processor_makes_of_them(tmp_path):
    rules = rules_of(UNEVEN, 4096, 262144)
    size = {"shortest_edge": rules.min_pixels, "longest_edge": rules.max_pixels}
    processor = Qwen2VLImageProcessor(patch_size=16, merge_size=2, size=size, **UNEVEN)
    for path in kinds_of_image(tmp_path):
        meta = probe_image(path)
        plan = plan_image(meta.width, meta.height, VisionSpec(rules, rules, fps=1))
        pixels = resize_frames(decode_image(path), plan.height, plan.width)
        ours = patchify(torch.from_numpy(pixels), rules, rules.mean, rules.std)
        theirs = processor(load_image(str(path)), return_tensors="pt")["pixel_values"]
        assert torch.equal(ours, theirs), path.name


def test_any_split_of_a_video_gives_the_same_pixels():
    frames = np.random.default_rng(1).integers(0, 256, (9, 100, 130, 3), dtype=np.uint8)
    whole = resize_frames(frames, 64, 96)
    assert (whole == np.concatenate([resize_frames(frames[i : i + 4], 64, 96) for i in (0, 4, 8)])).all()
    assert whole.shape == (9, 3, 64, 96) and whole.dtype == np.uint8


def test_the_input_of_patchify_is_left_as_it_was():
    frames = torch.full((2, 3, 32, 32), 9, dtype=torch.uint8)
    rules = rules_of(HALF)
    patchify(frames, rules, rules.mean, rules.std)
    assert (frames == 9).all()
