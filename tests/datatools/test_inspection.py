"""Inspection: what is counted is what is in the files, duplicates are found by content, the page holds all of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
from clips import write_clip
from tiny_world import tiny_data, tiny_model
from transformers import AutoProcessor

from tests.programs import run_here
from vidqa.core.cli import SKILL_ROOT
from vidqa.data.record_groups import same_bytes
from vidqa.datatools.duplicates import duplicate_problems, find_duplicates
from vidqa.datatools.inspection import Inspection, facts_text, histogram, inspect_dataset, inspection_page, summary


def rows_of(root: Path) -> list[dict]:
    return json.loads((root / "annotations.json").read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clips (one of them a copy), one of them broken, an image, a contradiction, a repetition, a wrong rate."""
    root = tiny_data(tmp_path_factory.mktemp("set"), clips=3)
    rows = rows_of(root)
    for number, row in enumerate(rows):
        row["kind"] = ("a", "b")[number % 2]
    shutil.copy(root / "videos/1.mp4", root / "videos/copy.mp4")
    (root / "videos/broken.mp4").write_bytes(b"no video")
    turns = [{"from": "human", "value": "Is the  FIRST bit set?"}, {"from": "gpt", "value": "no"}]
    rows += [
        {**rows[0], "id": "again"},
        {"id": "contra", "kind": "a", "video": "videos/0.mp4", "conversations": turns},
        {"id": "copy", "video": "videos/copy.mp4", "video_fps": 30, "conversations": turns},
        {"id": "broken", "video": "videos/broken.mp4", "conversations": turns},
        {"id": "copy", "video": "videos/2.mp4", "conversations": turns},
    ]
    (root / "annotations.json").write_text(json.dumps(rows))
    return root


@pytest.fixture(scope="module")
def found(root: Path, model: Path) -> Inspection:
    return inspect_dataset(root, model=model, nframes=4)


def test_counts(found: Inspection) -> None:
    facts = found.facts
    names = ("records", "videos", "images", "text_only", "questions", "rotated", "variable_rate")
    assert [facts[name] for name in names] == [12, 5, 1, 1, 12, 0, 0]
    assert facts["duration_s"]["sum"] == pytest.approx(8 / 4 + 2 * 11 / 5 + 14 / 6, abs=1e-3)
    assert facts["sizes"] == {"96x64": 3, "64x64": 2} and facts["rates"] == {"5": 2, "4": 1, "6": 1}
    assert facts["codecs"] == {"h264": 4}


def test_what_is_there_twice_is_named_apart(tmp_path: Path) -> None:
    """Questions, bytes, and what files look like are three things; and media that nobody asks about are named."""
    first = {"frames": 12, "first_number": 321}
    write_clip(tmp_path / "a.mp4", width=128, height=96, **first)
    write_clip(tmp_path / "again.avi", codec="mpeg4", **first)
    write_clip(tmp_path / "more/left over.mp4", frames=12, first_number=40000)
    (tmp_path / "notes.txt").write_text("no medium")
    (tmp_path / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    turns = [{"from": "human", "value": "Is it open?"}, {"from": "gpt", "value": "Yes"}]
    rows = [{"id": name, "video": name, "conversations": turns} for name in ("a.mp4", "again.avi")]
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    found = inspect_dataset(tmp_path)
    assert found.facts["repeated"] == found.facts["contradicting"] == found.facts["same_content"] == []
    assert [[Path(key).name for key in group] for group in found.facts["look_alike"]] == [["a.mp4", "again.avi"]]
    assert found.facts["unused_media"] == ["more/left over.mp4"] and found.facts["unused_media_count"] == 1
    text, html = facts_text(found.facts), inspection_page(found)
    assert "1 groups of files that look alike" in text and "0 groups of equal questions with one answer" in text
    assert "left over.mp4" in text and "left over.mp4" in html and "Files that look alike" in html
    assert ">Duplicates<" not in html and "Repeated questions" in html and "near duplicates: 1" in html
    with tarfile.open(tmp_path / "videos.tar", "w") as tar:
        tar.add(tmp_path / "a.mp4", "packed.mp4")
        tar.add(tmp_path / "a.mp4", "unasked.mp4")
    rows.append({"id": "p", "video": "packed.mp4", "conversations": turns})
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    facts = inspect_dataset(tmp_path, skip_near_duplicates=True).facts
    assert facts["look_alike"] is None and facts["unused_media"] == ["more/left over.mp4"]
    assert facts["unnamed_members"] == {"videos.tar": 1}  # the archive is in use
    assert "1 more media in videos.tar" in facts_text(facts)
    (tmp_path / "annotations.json").write_text(json.dumps(rows[:2]))
    facts = inspect_dataset(tmp_path, skip_near_duplicates=True).facts
    assert facts["unused_media"] == ["more/left over.mp4", "videos.tar!packed.mp4", "videos.tar!unasked.mp4"]


def test_an_archive_beside_what_was_unpacked_of_it_holds_no_unused_media(tmp_path: Path) -> None:
    folder = tmp_path / "robovqa"
    for number, name in enumerate(("a.mp4", "b.mp4")):
        write_clip(folder / "clips" / name, frames=4, first_number=number)
    with tarfile.open(folder / "clips.tar.gz", "w:gz") as tar:
        tar.add(folder / "clips", "clips")
    turns = [{"from": "human", "value": "Is it open?"}, {"from": "gpt", "value": "Yes"}]
    rows = [{"id": name, "video": f"clips/{name}", "conversations": turns} for name in ("a.mp4", "b.mp4")]
    (folder / "train.json").write_text(json.dumps(rows))
    facts = inspect_dataset(f"{tmp_path}#robovqa:train", skip_near_duplicates=True).facts
    assert (facts["records"], facts["unused_media"], facts["unnamed_members"]) == (2, [], {})


def test_answers_are_counted_as_evaluations_read_them(found: Inspection) -> None:
    assert found.facts["kinds"]["a"]["answers"] == {"yes": 3, "B": 1, "(text)": 1, "no": 1}
    assert found.facts["kinds"]["a"]["most_common_share"] == 0.5
    assert found.facts["kinds"]["a"]["most_common"] == "yes"


def test_tokens_are_those_of_the_processor(found: Inspection, model: Path, root: Path) -> None:
    sample = next(sample for sample in found.samples if not sample.record.media)
    processor = AutoProcessor.from_pretrained(model)
    messages = [{"role": turn.role, "content": turn.text} for turn in sample.record.turns]
    text = processor.apply_chat_template(messages, tokenize=False)
    assert sample.length == len(processor.tokenizer(text, add_special_tokens=False)["input_ids"])
    tokens = found.facts["tokens"]
    assert tokens["per_sample"]["sum"] == sum(s.length for s in found.samples) and len(found.samples) == 11
    assert tokens["longest"][0]["tokens"] == tokens["per_sample"]["max"]


def test_problems_are_all_there(found: Inspection) -> None:
    assert found.facts["problems"] == {
        "DATA_FIELD": 2,
        "MEDIA_UNREADABLE": 1,
        "MEDIA_READ_DIFFERENTLY": 1,
        "DATATOOLS_DUPLICATES": 2,
    }
    assert found.facts["contradicting"] == [["r0", "again", "contra"]]
    assert [Path(key).name for key in found.facts["same_content"][0]] == ["1.mp4", "copy.mp4"]


def test_repetitions_are_no_contradictions(found: Inspection) -> None:
    r0, again = (record for record in found.records if record.id in ("r0", "again"))
    twice = find_duplicates([r0, again])
    assert (twice["repeated"], twice["contradicting"]) == ([["r0", "again"]], [])
    assert [p.code for p in duplicate_problems(twice["repeated"], "repeated")] == ["DATATOOLS_DUPLICATES"]


def test_members_of_a_tar_are_compared_by_content(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4", frames=4)
    with tarfile.open(tmp_path / "videos.tar", "w") as tar:
        tar.add(clip, arcname="one.mp4")
        tar.add(clip, arcname="two.mp4")
        other = tmp_path / "b.mp4"
        other.write_bytes(clip.read_bytes()[:-1] + b"x")
        tar.add(other, arcname="three.mp4")
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "no"}]
    rows = [{"id": name, "video": f"{name}.mp4", "conversations": turns} for name in ("one", "two", "three")]
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    clip.unlink()
    records = inspect_dataset(tmp_path).records
    groups = same_bytes([record.media[0] for record in records])
    assert [[key.rsplit("!", 1)[1] for key in group] for group in groups] == [["one.mp4", "two.mp4"]]


def test_the_page_is_one_file_without_scripts(found: Inspection) -> None:
    html = inspection_page(found)
    assert not re.search(r"<script|<link|https?://(?!www\.w3)", html)
    assert html.count('class="bars"') == 3 and html.count('<img src="data:image/jpeg;base64,/9j/') == 4 * 4 + 1
    assert "r0, again, contra" in html and "DATA_FIELD" in html and "the file cannot be read" in html


def test_text_of_the_user_is_escaped(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", frames=4)
    turns = [{"from": "human", "value": "<script>alert(1)</script>?"}, {"from": "gpt", "value": "<b>no"}]
    rows = [{"id": "x", "video": "a.mp4", "kind": "<i>", "conversations": turns}]
    (tmp_path / "annotations.json").write_text(json.dumps(rows))
    html = inspection_page(inspect_dataset(tmp_path))
    assert "<script>" not in html and "<b>no" not in html and "<i>" not in html.replace("<i>0", "")


def test_histograms_count_every_value() -> None:
    bars = histogram([0, 0, 1, 2, 10], bins=10)["bars"]
    shown = [bar["title"].rsplit(": ")[1] for bar in bars if bar["height"]]
    assert len(bars) == 10 and shown == ["2", "1", "1", "1"]
    assert bars[0]["height"] == 2 * bars[1]["height"]
    assert len(histogram([3.0, 3.0])["bars"]) == 1
    assert summary([]) is None and summary([4, 1, 3]) == {"min": 1, "median": 3, "p95": 4, "max": 4, "sum": 8}


def test_the_script(root: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        str(SKILL_ROOT / "scripts/inspect_dataset.py"),
        "--annotations",
        str(root),
        "--html",
        "i.html",
    ]
    done = run_here([*words, "--json"], cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 3 and said["data"]["records"] == 12 and said["data"]["tokens"] is None
    assert (tmp_path / "i.html").read_text().startswith("<!doctype html>")
    shown = run_here(words, cwd=tmp_path)
    assert "records              12" in shown.stdout and "Traceback" not in shown.stderr
    useless = run_here([*words, "--fps", "2"], cwd=tmp_path)  # no model, no tokens
    assert useless.returncode == 2 and "--model" in useless.stderr


def test_the_script_leads_from_a_whole_set_to_a_split_and_from_a_part_to_a_spec(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Is it open?"}, {"from": "gpt", "value": "Yes"}]
    for folder in ("DATA/train", "DATA/kpi", "whole"):
        write_clip(tmp_path / folder / "a.mp4", frames=4)
        rows = [{"id": "a", "video": "a.mp4", "conversations": turns}]
        (tmp_path / folder / "annotations.json").write_text(json.dumps(rows))
    script = [sys.executable, str(SKILL_ROOT / "scripts/inspect_dataset.py"), "--skip-near-duplicates", "--json"]
    expected = {
        "whole": "split_dataset.py --annotations whole",
        "DATA/train": "build_spec.py train --train-root DATA/train",
        "DATA/kpi": "build_spec.py evaluate --eval-root DATA/kpi",
        "DATA/kpi/annotations.json": "--set dataset.annotation_path=DATA/kpi/annotations.json",
        "whole#train[:1]": "build_spec.py train --set 'custom.train_dataset.annotation_path=whole#train[:1]'",
    }
    for place, words in expected.items():
        done = run_here([*script, "--annotations", place], cwd=tmp_path)
        assert words in json.loads(done.stdout)["next"][0], done.stdout
