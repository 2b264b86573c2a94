"""Leaks: copies are found whatever was done to them; other clips of the same camera are not taken for copies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from vidqa.data.record import MediaRef, Record
from vidqa.gaps.curation.clip_fingerprint import fingerprints, small
from vidqa.gaps.curation.clip_matching import candidate_pairs
from vidqa.gaps.curation.leaks import Leak, Sets, find_leaks, recording_of

HEIGHT, WIDTH = 96, 128


def view_of(view: int) -> np.ndarray:
    """float [H, W, 3]: what stands still."""
    coarse = np.random.default_rng(view).uniform(30, 200, (6, 8, 3))
    return np.kron(coarse, np.ones((HEIGHT // 6, WIDTH // 8, 1)))


def scene(seed: int, view: int = 0, frames: int = 40) -> np.ndarray:
    """uint8 [N, H, W, 3]: a view with one thing that moves through it."""
    found = np.repeat(view_of(view)[None], frames, axis=0)
    draw = np.random.default_rng(100 + seed)
    start, end = draw.uniform(0, 1, (2, 2)) * (HEIGHT, WIDTH)
    color = draw.uniform(0, 255, 3)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    for at in range(frames):
        y, x = start + (end - start) * at / (frames - 1)
        found[at][(abs(rows - y) < 16) & (abs(columns - x) < 14)] = color
    return np.asarray(found.astype(np.uint8))


def write(path: Path, frames: np.ndarray, crf: int = 20, size: tuple[int, int] | None = None) -> Record:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height = size or (frames.shape[2], frames.shape[1])
        stream.pix_fmt, stream.options = "yuv420p", {"crf": str(crf), "preset": "ultrafast"}
        stream.codec_context.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24")))
        container.mux(stream.encode())
    return record(path)


def record(path: Path, name: str = "") -> Record:
    ref = MediaRef("video", path.name, str(path), size=path.stat().st_size)
    return Record(name or f"id of {path}", (), (ref,))


COPIES: dict[str, Callable[[Path], Record]] = {
    "encoded again": lambda folder: write(folder / "a.mp4", scene(1), crf=34, size=(96, 72)),
    "trimmed": lambda folder: write(folder / "a.mp4", scene(1)[12:30]),
    "longer": lambda folder: write(folder / "a.mp4", np.concatenate([scene(5, view=3), scene(1), scene(6, view=4)])),
    "cropped": lambda folder: write(folder / "a.mp4", scene(1)[:, 6:90, 8:120]),
    "cropped to 62 %": lambda folder: write(folder / "a.mp4", scene(1)[:, 34:94, 6:86]),
    "cropped, encoded again": lambda folder: write(folder / "a.mp4", scene(1)[:, 16:86, 33:125], crf=32, size=(76, 58)),
    "cropped to a square": lambda folder: write(folder / "a.mp4", scene(1)[:, 6:90, 40:124]),
    "overlapping": lambda folder: write(folder / "a.mp4", np.concatenate([scene(1)[22:], scene(7, view=5)])),
}


@pytest.fixture(scope="module")
def kpi(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    folder = tmp_path_factory.mktemp("kpi")
    return {"kpi": [write(folder / "film.mp4", scene(1)), write(folder / "other.mp4", scene(2, view=9))]}


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    return {name: write_copy(tmp_path_factory.mktemp("copy")) for name, write_copy in COPIES.items()}


@pytest.fixture(scope="module")
def leaks(copies: dict[str, Record], kpi: Sets) -> list[Leak]:
    """Those of all copies."""
    return find_leaks(list(copies.values()), kpi)


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_found(kpi: Sets, copies: dict[str, Record], leaks: list[Leak], how: str) -> None:
    (leak,) = [leak for leak in leaks if leak.new == copies[how].id]
    assert leak.protected == kpi["kpi"][0].id and leak.set == "kpi"
    assert leak.sure and leak.reason == ("cropped" if how.startswith("cropped") else "same moments")


def test_other_clips_of_the_same_camera_are_none(kpi: Sets, tmp_path: Path) -> None:
    others = [write(tmp_path / f"{seed}.mp4", scene(seed)) for seed in range(10, 18)]
    others.append(write(tmp_path / "upright.mp4", scene(18)[:, :, 42:86]))  # too narrow for a crop of the whole
    assert find_leaks(others, kpi) == []


def test_quiet_moments_of_one_camera_are_no_copies(kpi: Sets, tmp_path: Path) -> None:
    empty = view_of(0)[None].astype(np.uint8)
    one, other = (np.concatenate([scene(seed)[:15], np.repeat(empty, 60, axis=0)]) for seed in (50, 51))
    kept, new = write(tmp_path / "kept.mp4", one), write(tmp_path / "new.mp4", other)
    assert find_leaks([new], {"kpi": [kept]}) == []


def plain(place: int, lit: tuple[int, ...]) -> np.ndarray:
    """uint8 [40, H, W, 3]: a lamp before a dark wall, lit in these fifths of the clip."""
    found = np.full((40, HEIGHT, WIDTH, 3), 30, np.uint8)
    for fifth in lit:
        found[8 * fifth : 8 * fifth + 8, 20:70, place : place + 50] = (255, 75, 75)
    return found


def test_plain_clips_are_called_too_plain_unless_they_agree_in_step(tmp_path: Path) -> None:
    protected = {"kpi": [write(tmp_path / "kpi.mp4", plain(40, (0, 2, 4)))]}
    (unsure,) = find_leaks([write(tmp_path / "a.mp4", plain(40, (0, 1, 3)))], protected)
    assert not unsure.sure and unsure.reason == "possible duplicate (low-detail frames)"
    (copy,) = find_leaks([write(tmp_path / "b.mp4", plain(40, (0, 2, 4)), crf=32, size=(96, 72))], protected)
    assert copy.sure
    assert find_leaks([write(tmp_path / "c.mp4", plain(60, (0, 2, 4)))], protected) == []


def test_unlikely_pairs_are_not_looked_at_and_no_copy_is_among_them(
    kpi: Sets, copies: dict[str, Record], tmp_path: Path
) -> None:
    others = [write(tmp_path / f"other{seed}.mp4", scene(seed, view=seed)) for seed in range(60, 72)]
    block = [look for _, look in fingerprints(each.media[0] for each in [*copies.values(), *others]) if look]
    held = [look for _, look in fingerprints(each.media[0] for each in kpi["kpi"]) if look]
    pairs = {(number, of) for number, of, _ in candidate_pairs(block, held)}
    assert {(number, 0) for number in range(len(copies))} <= pairs
    assert len([pair for pair in pairs if pair[0] >= len(copies)]) <= 4  # of 24


def test_cells_of_a_small_picture_are_exact() -> None:
    ramp = np.repeat(np.arange(90, dtype=np.uint8)[None, None, :, None], 90, axis=1).repeat(3, axis=3)
    cells = small(ramp, 0, 0).reshape(64, 64, 3)[0, :, 0]
    assert np.abs(cells - ((np.arange(64) + 0.5) * 90 / 64 - 0.5)).max() <= 0.51


def test_files_bytes_and_ids_are_found(kpi: Sets, tmp_path: Path) -> None:
    of = kpi["kpi"][0].media[0]
    (tmp_path / "link.mp4").symlink_to(of.path)
    shutil.copy(of.path, tmp_path / "copy.mp4")
    other = write(tmp_path / "film.mp4", scene(20, view=7))
    named = Record(kpi["kpi"][0].id, (), other.media)
    link, copy = record(tmp_path / "link.mp4"), record(tmp_path / "copy.mp4")
    reasons = {leak.new: leak.reason for leak in find_leaks([link, copy, named], kpi)}
    assert reasons == {link.id: "the same file", copy.id: "the same bytes", named.id: "the same id"}
    renamed = Record(kpi["kpi"][0].id, (), write(tmp_path / "new.mp4", scene(21, view=6)).media)
    numbered = {"numbered": [Record("7", (), kpi["kpi"][1].media)]}
    assert find_leaks([renamed, Record("7", (), other.media)], kpi | numbered) == []


def test_parts_of_one_recording_are_told_by_name(tmp_path: Path) -> None:
    first, second = write(tmp_path / "tour_part1.mp4", scene(30)), write(tmp_path / "tour_part2.mp4", scene(31, view=8))
    (leak,) = find_leaks([second], {"test": [first]})
    assert leak.reason == "parts of one recording, by name" and leak.set == "test"
    (leak,) = find_leaks([second], {"test": [record(tmp_path / "tour_part1.mp4")]}, group_by="^([a-z]+)_")
    assert leak.reason == "parts of one recording, by name"


@pytest.mark.parametrize(
    ("name", "recording"),
    [
        ("cam3_part2", "cam3"),
        ("visit-seg004", "visit"),
        ("lobby_10s_20s", "lobby"),
        ("lobby_0.5-to-3.0", "lobby"),
        ("train_00001", ""),
        ("cam_20240101_120000", ""),
        ("clip-7", ""),
        ("apart1", ""),
    ],
)
def test_names_of_recordings(name: str, recording: str) -> None:
    assert recording_of(MediaRef("video", f"{name}.mp4", f"/data/{name}.mp4")) == recording


def test_a_clip_that_cannot_be_decoded_has_no_look(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    broken = MediaRef("video", "broken.mp4", str(tmp_path / "broken.mp4"), size=8)
    assert list(fingerprints([broken])) == [(broken.key, None)]
