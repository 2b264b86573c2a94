"""Gaps of a set whose videos lie in an archive: what the table names can be opened, by us and by who reads it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from clips import write_clip, write_image

from vidqa.data import load_records
from vidqa.datatools.convert import convert
from vidqa.evaluation.results import make_item
from vidqa.evaluation.thumbnails import poster_frames
from vidqa.gaps.analysis.analyze import analyze

MEDIA = ("a/0.mp4", "a/1.mp4", "b/1.mp4", "b/2.png")


@pytest.fixture(params=["videos.tar", "videos.tar.gz"])
def kpi(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A set in root mode; all members of its archive lie in a folder that the annotations leave out."""
    root = tmp_path / "kpi"
    for number, name in enumerate(MEDIA):
        path = tmp_path / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_image(path) if name.endswith("png") else write_clip(path, frames=8, first_number=20 * number)
    root.mkdir()
    with tarfile.open(root / request.param, "w:gz" if request.param.endswith("gz") else "w") as archive:
        archive.add(tmp_path / "made", "set")
    records = [note(number, name) for number, name in enumerate(MEDIA)]
    (root / "annotations.json").write_text(json.dumps(records))
    return root


def note(number: int, name: str) -> dict[str, Any]:
    kind = "image" if name.endswith("png") else "video"
    turns = [{"from": "human", "value": f"<{kind}>\nIs it {number}?"}, {"from": "gpt", "value": "yes"}]
    return {"id": f"q{number}", kind: name, "conversations": turns}


def evaluated(kpi: Path, folder: Path, **changes: Any) -> Path:
    """An evaluation whose every answer but the first is wrong; `changes` are other values of its items."""
    items = [make_item(record, "no" if number else "yes") for number, record in enumerate(load_records(kpi))]
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps([{**item, **changes} for item in items]))
    return folder


def gaps_of(results: Path, kpi: Path, media: Path, table: Path) -> list[dict[str, Any]]:
    lines = table.with_suffix(".jsonl")
    analyze(str(results), str(table), str(kpi / "annotations.json"), str(media), jsonl=str(lines))
    rows = pq.read_table(table).to_pylist()
    assert [json.loads(line) for line in lines.read_text().splitlines()] == rows
    return rows


@pytest.mark.parametrize("place", ["folder", "archive"])
def test_what_the_table_names_can_be_opened(kpi: Path, tmp_path: Path, place: str) -> None:
    """Whether the media path is the folder that holds the archive or the archive; the missing ones alike."""
    media = kpi if place == "folder" else next(kpi.glob("videos.tar*"))
    results = evaluated(kpi, tmp_path / "eval")
    kept = json.loads((results / "results.json").read_text())[:2]
    (results / "results.json").write_text(json.dumps(kept))
    rows = gaps_of(results, kpi, media, tmp_path / "gaps.parquet")
    assert [(row["sample_id"], row["error_type"]) for row in rows] == [
        ("q1", "wrong"),
        ("q2", "missing"),
        ("q3", "missing"),
    ]
    assert rows[0]["video_id"] == kept[1]["video_id"]  # one name for one video, in the results and in the table
    for row in rows:
        path, _, member = row["video_id"].partition("!")
        assert Path(path).is_file()
        assert len(poster_frames(path, member or None, [0])) == 1


def test_the_table_becomes_a_set_again(kpi: Path, tmp_path: Path) -> None:
    gaps_of(evaluated(kpi, tmp_path / "eval"), kpi, kpi, tmp_path / "gaps.parquet")
    columns = {"video": "video_id", "answer": "ground_truth", "id": "sample_id"}
    convert(tmp_path / "gaps.parquet", tmp_path / "again.json", "llava", columns=columns)
    again = load_records(tmp_path / "again.json", "")
    assert [(record.id, record.answer) for record in again] == [("q1", "yes"), ("q2", "yes"), ("q3", "yes")]
    before = {record.id: record.media[0] for record in load_records(kpi)}
    for record in again:
        (medium,) = record.media
        assert (medium.path, medium.member) == (before[record.id].path, before[record.id].member)


@pytest.mark.parametrize("found_as", ["/elsewhere/kpi/videos.tar!set/{}", "/cache/archives/0a1b/set/{}", "{}"])
def test_results_of_another_machine_find_their_annotation(kpi: Path, tmp_path: Path, found_as: str) -> None:
    """By the name of the video alone, wherever it lay and with whatever stood before it."""
    results = evaluated(kpi, tmp_path / "eval", sample_id="")
    items = json.loads((results / "results.json").read_text())
    for item, name in zip(items, MEDIA, strict=True):
        item["video_id"] = found_as.format(name)
    (results / "results.json").write_text(json.dumps(items))
    rows = gaps_of(results, kpi, kpi, tmp_path / "gaps.parquet")
    assert [row["sample_id"] for row in rows] == ["q1", "q2", "q3"]


def test_a_broken_archive_leaves_the_names_as_annotated(kpi: Path, tmp_path: Path) -> None:
    results = evaluated(kpi, tmp_path / "eval")
    (archive,) = kpi.glob("videos.tar*")
    archive.write_bytes(b"no archive" * 100)
    rows = gaps_of(results, kpi, kpi, tmp_path / "gaps.parquet")
    assert [row["video_id"] for row in rows] == [str(kpi / name) for name in MEDIA[1:]]
