"""Merging: two sets with media in different places become one that reaches all of them, with ids that differ."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest
from programs import run_here, run_next

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.datatools.convert import convert


def a_set(folder: Path, *ids: str | None, media: Path | None = None) -> Path:
    media = media or folder
    rows = []
    for number, name in enumerate(ids):
        (media / "v").mkdir(parents=True, exist_ok=True)
        (media / f"v/{number}.mp4").write_bytes(f"{folder}{number}".encode())
        turns = [{"from": "human", "value": f"<video>\nq{number}"}, {"from": "gpt", "value": "Yes"}]
        rows.append({**({"id": name} if name else {}), "video": f"v/{number}.mp4", "note": 7, "conversations": turns})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "annotations.json").write_text(json.dumps(rows))
    return folder


def contents(path: Path) -> dict[str, str]:
    return {record.id: Path(record.media[0].path).read_text() for record in load_records(path)}


def test_sets_below_the_new_file_keep_relative_names(tmp_path: Path) -> None:
    old, new = a_set(tmp_path / "all/old", "a", "b"), a_set(tmp_path / "all/new", "b", "b-2")
    made = convert([old, new], tmp_path / "all/annotations.json", "llava")
    assert contents(tmp_path / "all") == {"a": f"{old}0", "b": f"{old}1", "b-2-2": f"{new}0", "b-2": f"{new}1"}
    assert made.facts["records"] == 4 and made.facts["new_ids"] == ["b-2-2"]
    assert {row["video"] for row in json.loads(made.files[0].read_text())} >= {"old/v/0.mp4", "new/v/0.mp4"}
    assert all(row["note"] == 7 for row in json.loads(made.files[0].read_text()))


def test_sets_elsewhere_are_named_absolutely(tmp_path: Path) -> None:
    old = a_set(tmp_path / "old", None, None)
    new = a_set(tmp_path / "new", None, media=tmp_path / "clips")
    made = convert([old, new], tmp_path / "all/merged.json", "llava", media_path=[str(old), str(tmp_path / "clips")])
    assert contents(tmp_path / "all/merged.json") == {"0": f"{old}0", "1": f"{old}1", "0-2": f"{new}0"}
    assert made.media_path == ""


def test_sets_over_the_same_media_keep_their_names(tmp_path: Path) -> None:
    media = tmp_path / "media"
    a_set(tmp_path / "one", "a", media=media), a_set(tmp_path / "two", "b", media=media)
    paths = [tmp_path / name / "annotations.json" for name in ("one", "two")]
    made = convert(paths, tmp_path / "all.jsonl", "jsonl", media_path=str(media))
    assert [r.media[0].written for r in load_records(tmp_path / "all.jsonl", media)] == ["v/0.mp4", "v/0.mp4"]
    assert made.media_path == str(media)


def test_media_in_an_archive_cannot_be_named_from_elsewhere(tmp_path: Path) -> None:
    old, new = a_set(tmp_path / "old", "a"), a_set(tmp_path / "new", "b")
    with tarfile.open(new / "videos.tar", "w") as tar:
        tar.add(new / "v/0.mp4", "v/0.mp4")
    (new / "v/0.mp4").unlink()
    with pytest.raises(ProblemError, match="DATATOOLS_FORMAT"):
        convert([old, new], tmp_path / "all.json", "llava")
    with pytest.raises(ProblemError, match="USAGE"):
        convert([old, old, old], tmp_path / "all.json", "llava", media_path=["a", "b"])


def test_the_script_merges(tmp_path: Path) -> None:
    old, new = a_set(tmp_path / "old", "a"), a_set(tmp_path / "new", "a")
    script = [
        sys.executable,
        str(SKILL_ROOT / "scripts/convert_dataset.py"),
        "--json",
        "--to",
        "llava",
        "--out",
        "all.json",
    ]
    done = run_here([*script, "--in", str(old), "--in", str(new)], cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["data"]["records"] == 2 and said["data"]["new_ids_count"] == 1, said
    assert contents(tmp_path / "all.json") == {"a": f"{old}0", "a-2": f"{new}0"}
    looked = run_next(said["next"][0], "--json", cwd=tmp_path)
    assert json.loads(looked.stdout)["data"]["records"] == 2
