"""Files whose first pictures cannot be decoded, streams without a container, and images that are clipped."""

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from clips import decode_frames, draw, frame_numbers, write_clip, write_image
from PIL import Image

from vidqa.datatools.inspection import inspect_dataset
from vidqa.video.image import decode_image, probe_image
from vidqa.video.probe import header_problems, probe

ANSWER = {"from": "gpt", "value": "yes"}
OPEN = "open-gop=1:keyint=8:min-keyint=8:bframes=3:b-adapt=0:scenecut=0"


def codes(path: Path) -> list[str]:
    header = probe_image(path) if path.suffix in (".png", ".tif") else probe(path)
    return [problem.code for problem in header_problems(header, path)]


def cut(source: Path, target: Path, packets: int, **options: str) -> None:
    """Leave out the first packets, as a recorder that begins whenever it is started does."""
    with av.open(str(source)) as whole, av.open(str(target), "w", options=options) as part:
        copy = part.add_stream_from_template(whole.streams.video[0])
        kept = [packet for packet in whole.demux(video=0) if packet.size][packets:]
        start = kept[0].dts or 0
        for packet in kept:
            packet.stream = copy
            if packet.dts is not None:
                packet.dts -= start
            if packet.pts is not None:
                packet.pts -= start
            part.mux(packet)


def write_open_groups(path: Path, codec: str) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.gop_size = 8
        stream.options = {codec.removeprefix("lib") + "-params": f"{OPEN}:log-level=none", "crf": "4"}
        for number in range(40):
            frame = av.VideoFrame.from_ndarray(draw(number, 64, 64), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 8)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("name", ["a.ts", "a.mkv", "a.flv", "a.avi", "a.h264"])
@pytest.mark.parametrize("left_out", [3, 12, 17])
def test_a_video_begins_with_its_first_whole_picture(tmp_path, name, left_out):
    whole = write_clip(tmp_path / f"whole{Path(name).suffix}", frames=60, b_frames=2, fps=10)
    cut(whole, tmp_path / name, left_out)
    first = -(-left_out // 12) * 12
    meta = probe(tmp_path / name)
    assert (meta.frame_count, meta.source_fps, meta.frame_times_s) == (60 - first, pytest.approx(10), None)
    assert meta.frames_lost == first - left_out
    assert codes(tmp_path / name) == (["MEDIA_READ_DIFFERENTLY"] if meta.frames_lost else [])
    numbers = range(meta.frame_count)
    assert frame_numbers(decode_frames(tmp_path / name, None, numbers)) == list(range(first, 60))
    for number in numbers:
        assert frame_numbers(decode_frames(tmp_path / name, None, [number])) == [first + number]


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("name", ["a.ts", "a.mkv", "a.mp4"])
def test_pictures_shown_before_the_first_keyframe_are_left_out(tmp_path, name, codec):
    """Cut at the keyframe of an open group, whose first pictures refer to the group before it."""
    whole = write_open_groups(tmp_path / f"whole{Path(name).suffix}", codec)
    with av.open(str(whole)) as container:
        keys = [
            number
            for number, packet in enumerate(packet for packet in container.demux(video=0) if packet.size)
            if packet.is_keyframe
        ]
    cut(whole, tmp_path / name, keys[1], **({"use_editlist": "0"} if name.endswith("mp4") else {}))
    meta = probe(tmp_path / name)
    assert meta.frame_count == 40 - 8 and meta.frames_lost > 0
    assert codes(tmp_path / name) == ["MEDIA_READ_DIFFERENTLY"]
    assert frame_numbers(decode_frames(tmp_path / name, None, range(32))) == list(range(8, 40))
    for number in range(32):
        assert frame_numbers(decode_frames(tmp_path / name, None, [number])) == [8 + number]


@pytest.mark.parametrize("name", ["a.h264", "a.hevc", "a.m2v", "a.m4v"])
@pytest.mark.parametrize("fps", [30, 50])
def test_a_raw_stream_has_the_rate_of_its_headers(tmp_path, name, fps):
    codec = {"hevc": "libx265", "m2v": "mpeg2video", "m4v": "mpeg4"}.get(name[2:], "libx264")
    path = write_clip(tmp_path / name, fps=fps, frames=20, codec=codec, width=64, height=64)
    meta = probe(path)
    assert (meta.source_fps, meta.frame_count, meta.duration_s) == (fps, 20, pytest.approx(20 / fps))
    assert codes(path) == [] and frame_numbers(decode_frames(path, None, [19, 0])) == [19, 0]


def test_a_raw_stream_without_a_rate_is_named(tmp_path):
    path = write_clip(tmp_path / "a.mjpeg", fps=10, frames=5, codec="mjpeg", pix_fmt="yuvj420p")
    assert probe(path).source_fps == 25 and codes(path) == ["MEDIA_READ_DIFFERENTLY"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a.png", np.linspace(400, 5000, 48 * 64).reshape(48, 64).astype(np.uint16)),
        ("a.tif", np.linspace(0, 1, 48 * 64).reshape(48, 64).astype(np.float32)),
        ("b.tif", np.linspace(-5, 70000, 48 * 64).reshape(48, 64).astype(np.int32)),
        ("c.tif", np.linspace(400, 5000, 48 * 64).reshape(48, 64).astype(np.uint16)),
    ],
)
def test_values_beyond_eight_bits_are_clipped_as_pillow_does_and_named(tmp_path, name, values):
    Image.fromarray(values).save(tmp_path / name)
    assert np.array_equal(decode_image(tmp_path / name)[0], np.asarray(Image.open(tmp_path / name).convert("RGB")))
    assert codes(tmp_path / name) == ["MEDIA_READ_DIFFERENTLY"]
    assert codes(write_image(tmp_path / "plain.png")) == []


def test_inspection_names_the_files(tmp_path):
    write_clip(tmp_path / "a.mjpeg", frames=5, codec="mjpeg", pix_fmt="yuvj420p")
    Image.fromarray(np.full((48, 64), 4000, np.uint16)).save(tmp_path / "b.png")
    rows = [
        {"id": file, kind: file, "conversations": [{"from": "human", "value": f"<{kind}>\nIs it?"}, ANSWER]}
        for kind, file in (("video", "a.mjpeg"), ("image", "b.png"))
    ]
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    problems = inspect_dataset(tmp_path, skip_near_duplicates=True).problems
    assert [(problem.code, Path(str(problem.where)).name) for problem in problems] == [
        ("MEDIA_READ_DIFFERENTLY", "a.mjpeg"),
        ("MEDIA_READ_DIFFERENTLY", "b.png"),
    ]
