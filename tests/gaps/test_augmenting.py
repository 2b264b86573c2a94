"""Making data: variants are real clips whose answers stay true, words change alone, generators are named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from clips import write_clip

from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.gaps.curation.augmentation import Augmentation, augment
from vidqa.gaps.curation.variants import VARIANTS, Clip, countered, depends_on_time, mirrored, open_clip, reworded


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    write_clip(tmp_path / "a.mp4", frames=20)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    rows = [
        ("a", "Is the door open?", "Yes."),
        ("a", "Does it move left or to the right?", "Left."),
        ("broken", "What?", "x"),
    ]
    found = [
        {
            "id": f"q{at}",
            "video": f"{name}.mp4",
            "conversations": [{"from": "human", "value": f"<video>\n{asked}"}, {"from": "gpt", "value": answer}],
        }
        for at, (name, asked, answer) in enumerate(rows)
    ]
    (tmp_path / "rows.json").write_text(json.dumps(found))
    return tmp_path / "rows.json"


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_is_a_clip_with_its_provenance(annotated: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    rows, problems = augment(Augmentation(annotations=annotated, out=out, only=(name,)))
    assert [problem.code for problem in problems] == ["MEDIA_UNREADABLE"] and "broken.mp4" in problems[0].where
    records = load_records(out / "augmented.json")
    assert len(records) == len(rows) == 3 and len({record.id for record in records}) == 3
    assert {record.provenance.origin for record in records if record.provenance} == {"augmented"}
    assert 19 <= open_clip(records[0].media[0].path).count <= 20
    assert rows[0]["curation"]["variant"] == name and rows[0]["curation"]["of"] == "q0"
    assert [record.answer for record in records] == ["Yes.", "no", "Right." if name == "flip" else "Left."]
    assert records[0].question != "Is the door open?" and "Is the door open?" in records[0].question
    assert records[1].question == "Is the door closed?"
    swapped = "Does it move right or to the left?" if name == "flip" else "Does it move left or to the right?"
    page = (out / "preview.html").read_text()
    assert records[2].question == swapped and "data:image/jpeg" in page and f'class="truth">{records[2].answer}' in page
    assert f"of q0 · {name} · " in page and ("× as fast" in page) is (name == "speed")


def test_the_same_seed_makes_the_same(annotated: Path, tmp_path: Path) -> None:
    made = [augment(Augmentation(annotations=annotated, out=tmp_path / name, seed=3))[0] for name in ("one", "two")]
    assert [row["curation"] for row in made[0]] == [row["curation"] for row in made[1]]


@pytest.mark.parametrize("part", [{"video_start": 0.5}, {}])
def test_what_moves_moments_is_left_out_where_times_matter(annotated: Path, tmp_path: Path, part: dict) -> None:
    """Of a part of a clip, or where a question is about time, nothing moves the moments that it is about."""
    rows = json.loads(annotated.read_text())[:1]
    asked = "Is the door open?" if part else "When does it open?"
    content = [{"type": "video", "video": "a.mp4", **part}, {"type": "text", "text": asked}]
    rows[0] = {"id": "q", "messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "x"}]}
    annotated.write_text(json.dumps(rows))
    request = Augmentation(annotations=annotated, out=tmp_path / "out", only=("shift", "speed"), variants=4)
    assert {row["curation"]["variant"] for row in augment(request)[0]} == {"encode"}


def test_the_preview_has_frames_of_every_clip_of_a_question(annotated: Path, tmp_path: Path) -> None:
    rows = json.loads(annotated.read_text())[:1]
    turns = [{"from": "human", "value": "<video>\n<video>\nIs the door open?"}, {"from": "gpt", "value": "Yes."}]
    annotated.write_text(json.dumps([{**rows[0], "video": ["a.mp4", "broken.mp4"], "conversations": turns}]))
    augment(Augmentation(annotations=annotated, out=tmp_path / "out"))
    page = (tmp_path / "out/preview.html").read_text()
    assert "Is the door closed?" in page and page.count("data:image/jpeg") == 6 and page.count("No frames: ") == 1


def test_a_flip_turns_pictures_around() -> None:
    frames = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    flipped, _ = VARIANTS["flip"](Clip(frames, 2, 8.0), np.random.default_rng(0))
    assert (np.stack([*flipped.frames]) == frames[:, :, ::-1]).all() and flipped.fps == 8.0


@pytest.mark.parametrize("name", VARIANTS)
def test_no_variant_holds_more_than_a_frame_or_leaves_none(name: str) -> None:
    """A long clip does not fit into memory."""
    unread = iter(np.arange(3 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 3))
    clip, _ = VARIANTS[name](Clip(unread, 3, 8.0), np.random.default_rng(0))
    assert next(iter(clip.frames)).dtype == np.uint8 and len(list(unread)) in (1, 2)
    only = np.zeros((1, 2, 2, 3), np.uint8)
    for seed in range(9):
        clip, _ = VARIANTS[name](Clip(only, 1, 8.0), np.random.default_rng(seed))
        assert clip.count == len(list(clip.frames)) == 1


def test_a_question_that_asks_for_yes_or_no_is_not_told_so_twice() -> None:
    said = {reworded("Is it open? Answer with yes or no.", number) for number in range(6)}
    assert said and all(text.casefold().count("yes or no") == 1 for text in said)
    assert len({reworded("Is it open?", number) for number in range(6)}) == 3


def test_words_are_swapped_only_where_it_is_sure() -> None:
    assert mirrored("LEFT of the right-hand door, leftmost") == "RIGHT of the left-hand door, rightmost"
    assert countered("Is it open?", "no") is None  # what is not open may be half open
    assert countered("Is it open or closed?", "yes") is None
    assert countered("Does it get bigger?", "Yes.") == ("Does it get smaller?", "no")
    assert countered("Isn't it open?", "yes") is None
    assert depends_on_time("How fast is it?") and not depends_on_time("Is it red?")


PROGRAM = """
import json, sys
asked = json.load(sys.stdin)
rows = json.load(open(asked["annotations"]))[:1]
rows[0]["video"] = asked["annotations"].replace("rows.json", "a.mp4")
json.dump(rows, open(asked["write_annotations"], "w"))
"""


def test_the_folder_of_a_mining_is_read_with_its_answers(annotated: Path, tmp_path: Path) -> None:
    rows = [{**row, "video": str(tmp_path / row["video"])} for row in json.loads(annotated.read_text())]
    mined = tmp_path / "mined"
    mined.mkdir()
    (mined / "mined.json").write_text("[]")
    pyarrow.parquet.write_table(pyarrow.table({"id": ["a"], "question": ["What?"]}), mined / "mined.parquet")
    with pytest.raises(ProblemError, match="DATA_EMPTY"):
        augment(Augmentation(annotations=mined, out=tmp_path / "out"))
    (mined / "mined.json").write_text(json.dumps(rows[:1]))
    (mined / "labelled.json").write_text(json.dumps(rows[1:2]))
    made, _ = augment(Augmentation(annotations=mined, out=tmp_path / "out", counter=False))
    assert [row["curation"]["of"] for row in made] == ["q0", "q1"]


def test_a_generators_rows_name_it_with_licence_and_source(annotated: Path, tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(PROGRAM)
    command = f"{sys.executable} {tmp_path / 'make.py'}"
    request = Augmentation(annotations=annotated, out=tmp_path / "out", generator=command, licence="CC0", source="here")
    with pytest.raises(ProblemError, match=r"(?s)CURATION_GENERATOR.*licence"):
        augment(replace(request, licence=""))
    ((row,), _) = augment(request)
    assert row["curation"] == {"generator": command, "licence": "CC0", "source": "here"}
    assert row["provenance"] == {"origin": "generated", "round": 1}
    with pytest.raises(ProblemError, match=r"(?s)CURATION_GENERATOR.*exit code 2"):
        augment(replace(request, generator=f"{sys.executable} absent.py", out=tmp_path / "none"))
