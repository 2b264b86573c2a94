"""Every registered kind of source passes the conformance suite; provenance goes through the data tools."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from source_conformance import *  # noqa: F403
from source_conformance import Made, row

from vidqa.contract.problem import ProblemError
from vidqa.dataset import check_records, load_records
from vidqa.dataset.record import Provenance
from vidqa.dataset.sources import SOURCE_KINDS, open_source
from vidqa.dataset.sources.media_files import MEDIA_FILES
from vidqa.datatools.convert import convert
from vidqa.datatools.split import split_dataset

MINED = {"origin": "mined", "round": 1, "gap": "q7"}


def annotation_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "annotations.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


MAKERS: dict[str, Made] = {"annotation file": annotation_file}


@pytest.fixture(params=[kind for kind in SOURCE_KINDS if kind is not MEDIA_FILES], ids=lambda kind: kind.name)
def made(request: pytest.FixtureRequest) -> Made:
    maker = MAKERS[request.param.name]

    def make(folder: Path, rows: list[dict[str, Any]]) -> Path:
        path = maker(folder, rows)
        assert next(kind for kind in SOURCE_KINDS if kind.recognises(str(path))) is request.param
        return path

    return make


def test_media_alone_are_records_without_an_answer(tmp_path: Path) -> None:
    for name in ("b.mp4", "in/a.PNG", "notes.txt", "._b.mp4", ".Trash/c.mp4"):  # the last two are hidden
        (tmp_path / "clips" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clips" / name).write_bytes(b"x")
    with tarfile.open(tmp_path / "clips.tar", "w") as tar:
        tar.add(tmp_path / "clips", "clips")
    for place in (tmp_path / "clips", tmp_path / "clips.tar"):
        found = load_records(place, need_answers=False, prompt="Is the door open?")
        assert [(each.media[0].kind, each.question) for each in found] == [
            ("video", "Is the door open?"),
            ("image", "Is the door open?"),
        ]
        assert [each.id.removeprefix("clips/") for each in found] == ["b.mp4", "in/a.PNG"]
    (one,) = load_records(tmp_path / "clips/b.mp4", need_answers=False, prompt="Why?")
    assert one.media[0].path == str(tmp_path / "clips/b.mp4")
    before = open_source(tmp_path / "clips").fingerprint()
    (tmp_path / "clips/c.mp4").write_bytes(b"x")
    assert open_source(tmp_path / "clips").fingerprint() != before
    with pytest.raises(ProblemError) as refused:
        load_records(tmp_path / "clips")  # to learn from
    assert "DATA_FILE_MISSING" in str(refused.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProblemError) as refused:
        load_records(tmp_path / "empty", need_answers=False)
    assert "no video and no image" in str(refused.value)


def test_a_record_may_be_a_question_alone_where_no_answer_is_needed(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    rows = [{"video": "a.mp4", "question": "First <video> and then?"}, {"video": "a.mp4"}]
    first, second = load_records(annotation_file(tmp_path, rows), need_answers=False, prompt="Why?")
    assert first.turns[0].parts == ("First ", 0, " and then?") and second.turns[0].parts == (0, "Why?")


def test_an_annotation_file_may_be_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    path = annotation_file(tmp_path, [row("a")])
    assert open_source(tmp_path).fingerprint() == open_source(path).fingerprint()
    assert open_source(tmp_path).media.closed and not open_source(path).media.closed


@pytest.mark.parametrize(
    "value", ["found", 3, {"origin": "mind"}, {"origin": "mined", "round": "1"}, {"origin": "base", "other": 1}]
)
def test_provenance_of_another_shape_is_a_warning_and_the_record_stays(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    (record,), (problem,) = check_records(annotation_file(tmp_path, [row("a", provenance=value)]))
    assert record.provenance is None
    assert (problem.code, problem.severity) == ("DATA_FIELD_TYPE", "warning") and "provenance" in problem.where


@pytest.mark.parametrize("to", ["llava", "messages", "jsonl", "parquet"])
def test_provenance_is_written_out_again(tmp_path: Path, to: str) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    rows = [row("a", provenance=MINED), row("b"), row("c", provenance="base"), row("d", provenance="mine own")]
    first = convert(annotation_file(tmp_path, rows), tmp_path / "out", to, media_path=str(tmp_path)).files[0]
    again = convert(first, tmp_path / "again.jsonl", "jsonl", media_path=str(tmp_path)).files[0]
    records = load_records(again, tmp_path)
    assert [record.provenance for record in records] == [Provenance("mined", 1, "q7"), None, Provenance("base"), None]
    written = [json.loads(line).get("provenance") for line in again.read_text().splitlines()]
    assert written == [MINED, None, {"origin": "base"}, None if to == "parquet" else "mine own"]


def test_a_table_without_provenance_has_no_column_for_it(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "a.mp4").write_bytes(b"x")
    path = annotation_file(tmp_path, [row("a")])
    table = convert(path, tmp_path / "out.parquet", "parquet", media_path=str(tmp_path)).files[0]
    assert pq.read_schema(table).names == ["id", "kind", "video_fps", "messages"]


def test_provenance_stays_in_both_parts_of_a_split_and_in_a_merged_set(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.mp4"):
        write_clip(tmp_path / name, frames=4, first_number=ord(name[0]))
    rows = [row("a", provenance=MINED), row("b", video="b.mp4", provenance={"origin": "generated"})]
    path = annotation_file(tmp_path, rows)
    split_dataset(path, "", tmp_path / "out", 0.5, 1, "kind", ignore_looks=True)
    parts = [tmp_path / "out" / name / "annotations.json" for name in ("train", "val")]
    records = [record for part in parts for record in load_records(part, tmp_path)]
    wanted = {"a": Provenance("mined", 1, "q7"), "b": Provenance("generated")}
    assert {record.id: record.provenance for record in records} == wanted
    merged = convert(parts, tmp_path / "all.json", "llava", media_path=str(tmp_path)).files[0]
    assert {record.id: record.provenance for record in load_records(merged, tmp_path)} == wanted
