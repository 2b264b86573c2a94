"""Clips are cut out of raw sets in the formats that they have, frame by frame the right ones."""

from __future__ import annotations

import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from clips import decode_frames, frame_numbers, write_clip, write_image

from vidqa.benchmark import cutting
from vidqa.benchmark.problems import BENCHMARK_CUT
from vidqa.benchmark.tfrecord import examples, masked_crc
from vidqa.core.problem import ProblemError
from vidqa.video.encode import write_h264
from vidqa.video.probe import probe


def benchmark(folder: Path, name: str, clips: list[str]) -> Path:
    (folder / name).mkdir(parents=True)
    pairs = {"question": "What?", "answer": "a"}
    rows = [{"video": f"clips/{clip}", "qa_pairs": pairs} for clip in clips]
    (folder / name / f"{name}_benchmark_qa_pairs.json").write_text(json.dumps(rows))
    return folder


def numbers(path: Path) -> list[int]:
    """The numbers of all frames of a clip."""
    return frame_numbers(decode_frames(path, None, range(probe(path).frame_count)))


def holoassist(raw: Path) -> None:
    events = [
        {"label": "Fine grained action", "id": 7, "start": 1.0, "end": 2.5},
        {"label": "Coarse grained action", "id": 8, "start": 0.0, "end": 3.0},
        {"label": "Fine grained action", "id": 9, "start": 90.0, "end": 99.0},
    ]
    entries = [{"video_name": "R1-chair", "events": events}, {"video_name": "R2-lamp", "events": events}]
    (raw / "data-annotation-trainval-v1_1.json").write_text(json.dumps(entries))
    for name in ("R1-chair", "R2-lamp"):
        write_clip(
            raw / f"videos/{name}/Export_py/Video_pitchshift.mp4", frames=32, fps=8, keyframe_every=5, b_frames=2
        )


HOLO = ["R1-chair_coarse_0_fine_7.mp4", "R1-chair_coarse_0_fine_8.mp4", "R1-chair_coarse_0_fine_9.mp4", "strange.mp4"]


@pytest.mark.parametrize("in_tar", [False, True])
def test_a_fine_grained_action_is_cut_by_its_seconds(tmp_path: Path, in_tar: bool) -> None:
    raw, data = tmp_path / "raw", benchmark(tmp_path / "data", "holoassist", [*HOLO, "R3-gone_coarse_1_fine_7.mp4"])
    raw.mkdir()
    holoassist(raw)
    if in_tar:
        with tarfile.open(raw / "video_pitch_shifted.tar", "w") as tar:
            for path in sorted((raw / "videos").rglob("*.mp4")):
                tar.add(path, str(path.relative_to(raw / "videos")))
                path.unlink()
    found = cutting.cut("holoassist", raw, data)
    assert found.written == [HOLO[0]]
    assert numbers(found.folder / HOLO[0]) == list(range(8, 20))
    assert probe(found.folder / HOLO[0]).source_fps == 8
    said = {problem.where: problem.message for problem in found.problems}
    assert set(said) == {*HOLO[1:], "R3-gone_coarse_1_fine_7.mp4"}
    assert {problem.code for problem in found.problems} == {BENCHMARK_CUT.name}
    assert "seconds 90 to 99" in said[HOLO[2]] and "its name" in said["strange.mp4"]


@pytest.mark.parametrize("codec", ["libsvtav1", "libx264"])
def test_frames_of_a_camera_are_cut_from_av1_too(tmp_path: Path, codec: str) -> None:
    raw = tmp_path / "raw"
    place = raw / "agibot/observations/327/648642/videos/head_color.mp4"
    write_clip(place, frames=40, fps=30, width=64, height=64, codec=codec)
    clips = ["327-648642-head_color-10-25.mp4", "327-648642-head_color-50-60.mp4", "327-648642-hand_left-0-5.mp4"]
    found = cutting.cut("agibot", raw, benchmark(tmp_path / "data", "agibot", clips))
    assert found.written == clips[:1] and numbers(found.folder / clips[0]) == list(range(10, 25))
    assert [problem.where for problem in found.problems] == clips[1:]


def test_a_stopped_run_goes_on_and_a_clip_is_whole_or_not_there(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    camera = raw / "observations/1/2/videos/head_color.mp4"
    write_clip(camera, frames=30, fps=30)
    write_clip(raw / "observations/1/3/videos/head_color.mp4", frames=30, fps=30)
    broken = raw / "observations/1/3/videos/head_color.mp4"
    broken.write_bytes(broken.read_bytes()[:2000])
    clips = ["1-2-head_color-0-10.mp4", "1-3-head_color-0-10.mp4"]
    data = benchmark(tmp_path / "data", "agibot", clips)
    first = cutting.cut("agibot", raw, data)
    assert (first.written, [problem.where for problem in first.problems]) == (clips[:1], clips[1:])
    assert [path.name for path in first.folder.iterdir()] == clips[:1]
    before = (first.folder / clips[0]).stat().st_mtime_ns
    write_clip(broken, frames=30, fps=30, first_number=5)
    second = cutting.cut("agibot", raw, data)
    assert (second.existing, second.written, second.problems) == (clips[:1], clips[1:], [])
    assert (second.folder / clips[0]).stat().st_mtime_ns == before
    assert numbers(second.folder / clips[1]) == list(range(5, 15))


def message(number: int, *values: bytes) -> bytes:
    """Fields of a protocol buffer, each with the same number."""
    found = b""
    for value in values:
        size, length = len(value), b""
        while size > 0x7F:
            length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
        found += bytes([number << 3 | 2]) + length + bytes([size]) + value
    return found


def record(features: dict[str, bytes]) -> bytes:
    """One TFRecord of an Example."""
    entries = [message(1, name.encode()) + message(2, feature) for name, feature in features.items()]
    data = message(1, message(1, *entries))
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def episode(path: str, number: int, images: list[bytes]) -> bytes:
    return record(
        {
            "steps/observation/image_0": message(1, message(1, *images)),
            "episode_metadata/file_path": message(1, message(1, path.encode())),
            "episode_metadata/episode_id": message(3, message(1, bytes([number]))),
            "steps/reward": message(2, message(1, b"\0\0\0\0")),
        }
    )


@pytest.mark.parametrize("kind", [".jpg", ".png"])
def test_an_episode_is_found_by_its_path_and_number_and_cut_at_its_last_frame(tmp_path: Path, kind: str) -> None:
    raw = tmp_path / "raw/1.0.0"
    raw.mkdir(parents=True)
    images = [write_image(tmp_path / f"{n}{kind}", width=64, height=64, number=n).read_bytes() for n in range(25)]
    root = "/data/bridge_data_all"
    episodes = [
        episode(f"{root}/numpy_256/rss/kitchen/val/out.npy", 2, images[:5]),
        episode(f"{root}/numpy_256/rss/kitchen/val/out.npy", 1, images),
    ]
    (raw / "bridge_dataset-val.tfrecord-00000-of-00001").write_bytes(b"".join(episodes))
    clips = [
        "numpy_256-rss-kitchen-val.1.totalframe025.clipframe019.mp4",
        "numpy_256-rss-kitchen-val.2.totalframe005.clipframe019.mp4",
        "numpy_256-rss-kitchen-val.3.totalframe025.clipframe019.mp4",
    ]
    found = cutting.cut("bridgev2", raw, benchmark(tmp_path / "data", "bridgev2", clips))
    assert found.written == clips[:1] and numbers(found.folder / clips[0]) == list(range(20))
    assert probe(found.folder / clips[0]).source_fps == 30
    said = {problem.where: problem.message for problem in found.problems}
    assert "its episode has 5" in said[clips[1]] and "no episode 3" in said[clips[2]]


def test_check_sums_are_those_of_the_format() -> None:
    """A known CRC-32C (RFC 3720: 32 bytes of zeros have 0x8A9136AA), masked as TFRecord files hold it."""
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


Break = Callable[[bytes], bytes]


@pytest.mark.parametrize("change", [lambda data: data[:-3], lambda data: b"x" + data, lambda data: data[:7]])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, change: Break) -> None:
    file = tmp_path / "raw/a.tfrecord-00000-of-00001"
    file.parent.mkdir()
    file.write_bytes(change(episode("p/q/out.npy", 1, [b"x"])))
    with pytest.raises(ValueError):
        list(examples(file))
    clips = ["p-q.1.t.clipframe001.mp4"]
    (problem,) = cutting.cut("bridgev2", file.parent, benchmark(tmp_path / "data", "bridgev2", clips)).problems
    assert problem.where == clips[0] and f"{file.name} cannot be read" in problem.message


def test_a_picture_that_does_not_decode_is_named(tmp_path: Path) -> None:
    file = tmp_path / "raw/a.tfrecord"
    file.parent.mkdir()
    file.write_bytes(episode("p/q/out.npy", 1, [b"\xff\xd8 no picture", b"GIF89a"]))
    clips = ["p-q.1.t.clipframe000.mp4"]
    found = cutting.cut("bridgev2", file.parent, benchmark(tmp_path / "data", "bridgev2", clips))
    assert found.written == [] and [problem.where for problem in found.problems] == clips
    assert not (found.folder / clips[0]).exists()


@pytest.mark.parametrize(("name", "clip"), [("holoassist", HOLO[0]), ("bridgev2", "p-q.1.t.clipframe000.mp4")])
def test_a_raw_set_that_is_not_there_is_named(tmp_path: Path, name: str, clip: str) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(ProblemError, match=BENCHMARK_CUT.name):
        cutting.cut(name, tmp_path / "raw", benchmark(tmp_path / "data", name, [clip]))


def test_odd_sides_lose_a_row_and_a_column(tmp_path: Path) -> None:
    frames = np.zeros((3, 33, 51, 3), np.uint8)
    write_h264(tmp_path / "odd.mp4", iter(frames), cutting.BRIDGE_FPS, "fast")
    meta = probe(tmp_path / "odd.mp4")
    assert (meta.width, meta.height, meta.frame_count) == (50, 32, 3)
