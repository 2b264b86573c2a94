"""The demo set: real H.264, the same for the same seed, nothing shared between its halves, and true annotations."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest

from demo.clips import Clip, eval_clips, train_clips, write_demo_set
from demo.scenes import COLORS, DIAGONAL, SIDE, SLOTS, STRAIGHT, what_is_shown
from demo.summary import WEAK_KIND

TRAIN = 40
STEPS = STRAIGHT | DIAGONAL


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_demo_set(folder, TRAIN, seed=3)
    return folder


@pytest.fixture(scope="module")
def frames_of(demo: Path) -> Iterator[dict[Path, np.ndarray]]:
    """The frames of every clip of the set, decoded once."""
    frames = {path: decode(path) for path in sorted(demo.rglob("*.mp4"))}
    yield frames
    frames.clear()


def videos(demo: Path, split: str) -> list[Path]:
    return sorted((demo / split / "videos").glob("*.mp4"))


def decode(path: Path) -> np.ndarray:
    """uint8 RGB [frames, height, width, 3]."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def records(folder: Path, split: str) -> list[dict]:
    return json.loads((folder / split / "annotations.json").read_text(encoding="utf-8"))


def answers(folder: Path, split: str) -> dict[str, dict[str, str]]:
    """Per video: question -> answer, read from the file as a stranger would."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for record in records(folder, split):
        human, gpt = record["conversations"]
        tag, question = human["value"].split("\n", 1)
        assert (human["from"], gpt["from"], tag) == ("human", "gpt", "<video>")
        found[record["video"]][question] = gpt["value"]
    return found


def shape_pixels(frames: np.ndarray) -> np.ndarray:
    """Where something coloured is: bool [frames, height, width]. The background is dark and grey."""
    return frames.max(-1).astype(int) > 120


def seen_answers(frames: np.ndarray) -> dict[str, str]:
    """Every question answered from the decoded pixels alone."""
    mask = shape_pixels(frames)
    areas = mask.sum((1, 2))
    shown = [i for i, area in enumerate(areas) if area > 60]
    first, last = shown[0], shown[-1]
    moved = centroid(mask[last]) - centroid(mask[first])
    lit = areas > 60
    flashes = int((lit[1:] & ~lit[:-1]).sum())
    ways = [name for name, step in STEPS.items() if tuple(np.sign(np.where(np.abs(moved) < 8, 0, moved))) == step]
    return {
        "Which way does it move?": ways[0] if ways else "",
        "Does it get bigger?": "yes" if areas[last] > areas[first] else "no",
        "How often does it flash? A. once B. twice C. three times": "ABC"[flashes - 1] if 0 < flashes < 4 else "",
        "What color is it?": color_of(frames[last][mask[last]]),
        "Which color comes first?": color_of(frames[first][mask[first]]),
        "Which color comes last?": color_of(frames[last][mask[last]]),
    }


def centroid(mask: np.ndarray) -> np.ndarray:
    rows, columns = np.nonzero(mask)
    return np.array([columns.mean(), rows.mean()])


def color_of(pixels: np.ndarray) -> str:
    middle = np.median(pixels, axis=0)
    return min(COLORS, key=lambda name: float(np.abs(middle - COLORS[name]).sum()))


def test_clips_are_small_real_h264(demo: Path, frames_of: dict[Path, np.ndarray]) -> None:
    lengths, rates = set(), set()
    for path in videos(demo, "train"):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
            assert (stream.width, stream.height) == (SIDE, SIDE)
            count = stream.frames
            rates.add(stream.average_rate)
        assert len(frames_of[path]) == count
        lengths.add(count)
    assert len(lengths) > 3 and rates == {8, 9, 10, 11, 12}


def test_annotations_are_true_of_the_pixels(demo: Path, frames_of: dict[Path, np.ndarray]) -> None:
    checked = Counter()
    for split in ("train", "eval"):
        for video, pairs in answers(demo, split).items():
            seen = seen_answers(frames_of[demo / split / video])
            for question, answer in pairs.items():
                assert seen[question] == answer, (split, video, question)
                checked[question] += 1
    assert set(checked) == set(seen) and min(checked.values()) >= 24


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        write_demo_set(tmp_path / name, 8, seed=seed, per_event=2)
    one, again, other = (digests(tmp_path / name) for name in ("one", "again", "other"))
    assert again == one and len(one) == 8 + 5 * 2 + 2
    assert not set(other.values()) & set(one.values())


def digests(folder: Path) -> dict[str, str]:
    paths = [*folder.rglob("*.mp4"), *folder.rglob("*.json")]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def test_no_training_clip_is_an_evaluation_clip(demo: Path, frames_of: dict[Path, np.ndarray]) -> None:
    train, held_out = (
        {hashlib.sha256(frames_of[path]).hexdigest() for path in videos(demo, split)} for split in ("train", "eval")
    )
    assert len(train) == TRAIN and not train & held_out


def test_the_weakness_is_in_the_evaluation_set_only(demo: Path) -> None:
    kinds = {split: {record["kind"] for record in records(demo, split)} for split in ("train", "eval")}
    assert kinds["eval"] - kinds["train"] == {WEAK_KIND}
    assert not any(clip.scene.direction in DIAGONAL for clip in train_clips(400, 0))


def test_no_question_is_answered_by_its_most_frequent_answer() -> None:
    for clips in (train_clips(2000, 0), eval_clips(0)):
        given: dict[str, Counter[str]] = defaultdict(Counter)
        for clip in clips:
            for question in clip.questions:
                given[question.text][question.answer] += 1
        for question, counts in given.items():
            assert max(counts.values()) <= 0.6 * counts.total(), (question, counts)


def moment_alone(clip: Clip, slot: int) -> tuple[object, ...]:
    """What one frame shows, coarsely: color, size and place in thirds of the picture."""
    shown = what_is_shown(clip.scene, slot / (SLOTS - 1))
    inside = shown and -shown.radius < min(shown.x, shown.y) and max(shown.x, shown.y) < SIDE + shown.radius
    return (shown.color, shown.x // 32, shown.y // 32) if shown and inside else ()


def test_first_and_last_frames_show_nothing(demo: Path, frames_of: dict[Path, np.ndarray]) -> None:
    for path in videos(demo, "eval"):
        assert not shape_pixels(frames_of[path][[0, -1]]).any()


def test_the_middle_frame_alone_does_not_tell_the_direction() -> None:
    """The best guess from one frame's color and place stays near chance (1 of 4)."""
    clips = [clip for clip in train_clips(4000, 1) if clip.scene.event == "cross"]
    seen: dict[tuple[object, ...], Counter[str]] = defaultdict(Counter)
    for clip in clips[::2]:
        seen[moment_alone(clip, 4)][clip.scene.direction] += 1
    right = [clip.scene.direction == guess(seen[moment_alone(clip, 4)]) for clip in clips[1::2]]
    assert np.mean(right) < 0.6


def guess(counts: Counter[str]) -> str:
    return counts.most_common(1)[0][0] if counts else ""
