"""Records are planned in bulk: what is counted is what `encode` builds, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clips import write_clip, write_image
from tiny_world import tiny_model

import vidqa.planning.samples
from vidqa.data import MediaRef, Record, Turn
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.video.probe import probe_many

VISION = SimpleNamespace(fps=None, nframes=5, total_pixels=None)
SAID = ("Is it open?", "  spaced\n\n", "門は開いて🏃‍♀️ é\u0301", "a" * 300, "<think>why</think>\n<answer>yes</answer>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, two clips of different length and size, and an image."""
    folder = tmp_path_factory.mktemp("samples")
    tiny_model(folder)
    write_clip(folder / "a.mp4", frames=16, fps=8)
    write_clip(folder / "b.mp4", frames=9, fps=3, width=96, height=64)
    write_image(folder / "c.png", width=96, height=64)
    return folder


def ref(folder: Path, name: str) -> MediaRef:
    return MediaRef("image" if name.endswith("png") else "video", name, str(folder / name))


def conversation(name: str, media: Iterable[MediaRef], *said: tuple[str | int, ...]) -> Record:
    """A record of alternating turns of the user and the assistant, with media by number."""
    turns = [Turn("assistant" if at % 2 else "user", parts) for at, parts in enumerate(said)]
    return Record(name, tuple(turns), tuple(media), source=f"set.json[{name}]")


def conversations(folder: Path) -> list[Record]:
    a, b, c = (ref(folder, name) for name in ("a.mp4", "b.mp4", "c.png"))
    found = []
    for at, text in enumerate(SAID):
        found += [
            conversation(f"{at} text", [], (text,), (text,)),
            conversation(f"{at} first", [a], (0, text), ("yes",)),
            conversation(f"{at} again", [a], (0, text), ("yes",)),
            conversation(f"{at} last", [b], (text, 0), ("no",)),
            conversation(f"{at} both", [b, a, c], (0, text, 1, 2), (text,)),
            conversation(f"{at} later", [a, b], (0, text), ("no",), ("and", 1), (text,)),
            replace(conversation(f"{at} more", [a], (0, "?"), ("no",), (text,), ("yes",)), video_fps=8.0),
        ]
    return found


class Counted:
    """A tokenizer that notes what it is asked for."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.together: list[str] = []
        self.alone: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def encode_batch(self, texts: list[str], **how: Any) -> Any:
        self.together += texts
        return self.core.encode_batch(texts, **how)

    def encode(self, text: str, **how: Any) -> Any:
        self.alone.append(text)
        return self.core.encode(text, **how)


def counting(planner: Planner) -> Counted:
    counted = Counted(planner.chat.tokens.core)
    planner.chat.tokens = replace(planner.chat.tokens, core=counted)
    return counted


def prefix_of(planner: Planner, sample: Sample) -> int:
    """The tokens up to the last one of a frame, where none of them is learned."""
    encoded = planner.encode(sample)
    slots = np.flatnonzero(np.isin(encoded.token_ids, list(planner.chat.slot_ids.values())))
    end = int(slots[-1]) + 1 if len(slots) else 0
    return 0 if encoded.supervised[:end].any() else end


@pytest.mark.parametrize("for_generation", [False, True])
@pytest.mark.parametrize("mode", ["answer", "hybrid"])
def test_what_is_counted_is_what_is_built(folder: Path, mode: str, for_generation: bool) -> None:
    planner = Planner(folder / "model", VISION, Prompting("Be brief.", mode, for_generation))
    records = conversations(folder)
    samples, problems = planner.plan(records)
    assert not problems and [sample.record for sample in samples] == records
    for sample in samples:
        encoded = planner.encode(sample)
        counted = (sample.length, sample.supervised, sample.prefix)
        expected = len(encoded.token_ids), encoded.supervised.sum(), prefix_of(planner, sample)
        assert counted == expected, sample.record.place
    assert any(sample.prefix for sample in samples)


def test_samples_with_one_prefix_are_those_that_begin_alike(folder: Path) -> None:
    planner = Planner(folder / "model", VISION, Prompting())
    samples, _ = planner.plan(conversations(folder))
    begins: dict[bytes, set[tuple[Any, ...]]] = {}
    for sample in samples:
        if sample.prefix:
            ids = planner.encode(sample).token_ids[: sample.prefix].tobytes()
            begins.setdefault(sample.prefix_key, set()).add((ids, *(medium.path for medium in sample.record.media)))
    assert all(len(each) == 1 for each in begins.values())
    assert len(set.union(*begins.values())) == len(begins) > 3


def test_a_conversation_is_tokenized_once_and_a_file_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of records: 3,000 of them, 4 conversations, 2 files."""
    read: list[str] = []

    def noted(media: Iterable[MediaRef]) -> Any:
        media = list(media)
        read.extend(medium.path for medium in media)
        return probe_many(media)

    monkeypatch.setattr(vidqa.planning.samples, "probe_many", noted)
    planner = Planner(folder / "model", VISION, Prompting())
    counted = counting(planner)
    files = [ref(folder, "a.mp4"), ref(folder, "b.mp4")]
    records = [
        conversation(str(n), [files[n % 2]], (0, f"Is it {n % 3}?"), ("yes",))
        if n % 4
        else conversation(str(n), [], ("Hello?",), ("no",))
        for n in range(3000)
    ]
    samples, problems = planner.plan(records)
    assert not problems and len(samples) == 3000
    # The conversations, and the text that stands for each file's frames.
    assert len(counted.together) == len(set(counted.together)) == 4 + 2
    assert not counted.alone
    assert sorted(read) == [files[0].path, files[1].path]


def test_every_record_that_cannot_be_used_is_named_though_many_are_alike(folder: Path) -> None:
    planner = Planner(folder / "model", VISION, Prompting())
    (folder / "broken.mp4").write_bytes(b"no video")
    good, bad = ref(folder, "a.mp4"), ref(folder, "broken.mp4")
    records = [
        conversation("0", [good], (0, "Why?"), ("yes<|im_end|>",)),
        conversation("1", [bad], (0, "Why?"), ("yes",)),
        conversation("2", [good], (0, "Why?"), ("yes",)),
        conversation("3", [good], (0, "Why?"), ("yes<|im_end|>",)),
        conversation("4", [bad], (0, "Why?"), ("yes<|im_end|>",)),
    ]
    samples, problems = planner.plan(records)
    assert [sample.record.id for sample in samples] == ["2"]
    assert [problem.where.split(":")[0] for problem in problems] == [f"set.json[{n}] (id {n})" for n in "0134"]
    assert [problem.code for problem in problems] == [
        *("CHAT_SPECIAL_TOKEN_IN_TEXT", "MEDIA_UNREADABLE", "CHAT_SPECIAL_TOKEN_IN_TEXT", "MEDIA_UNREADABLE"),
    ]
    assert all(f"set.json[{n}] turn 1" in problem.where for n, problem in zip("03", problems[::2], strict=True))


def test_a_file_that_is_a_video_here_and_an_image_there_is_a_problem(folder: Path) -> None:
    """FFmpeg and Pillow both read it, and it has one plan."""
    picture = ref(folder, "c.png")
    records = [
        conversation("0", [picture], (0, "Why?"), ("yes",)),
        conversation("1", [replace(picture, kind="video")], (0, "Why?"), ("yes",)),
    ]
    samples, problems = Planner(folder / "model", VISION, Prompting()).plan(records)
    assert [sample.record.id for sample in samples] == ["0"]
    assert [problem.code for problem in problems] == ["DATA_FIELD"] and "(id 1)" in problems[0].where
    assert "as video here, and as image elsewhere" in problems[0].message
