"""What is written names media that stay, also when the cache is emptied: media of tables, members of archives."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from vidqa.core.environment import cache_folder
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.datatools.convert import convert
from vidqa.datatools.outputs import llava_row
from vidqa.datatools.split import split_dataset
from vidqa.gaps.curation.rows import read_rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [
        {
            "id": f"r{n}",
            "video": {"bytes": f"clip {n}".encode(), "path": f"c/{n}.mp4"},
            "question": "Why?",
            "answer": "So",
        }
        for n in (0, 1, 2, 0)
    ]
    path = tmp_path / "set.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{**row, "id": f"r{n}"} for n, row in enumerate(rows)]), path)
    return path


def contents(place: Path) -> dict[str, str]:
    """What the media of the records hold, after the cache was emptied."""
    for members in (cache_folder() / "archives").glob("*/members"):
        shutil.rmtree(members)
    return {record.id: Path(record.media[0].path).read_text() for record in load_records(place)}


HELD = {"r0": "clip 0", "r1": "clip 1", "r2": "clip 2", "r3": "clip 0"}


def test_converting_writes_them_beside_the_output(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    converted = convert(table, out, "llava")
    assert (converted.media_path, converted.facts["media_files"]) == (str(out), 3)
    assert contents(out) == HELD and len(list((out / "media").iterdir())) == 3
    assert convert(table, out, "llava").facts["written"] is False
    row = json.loads((out / "annotations.json").read_text())[0]
    assert row["video"].startswith("media/") and row["video"].endswith(".mp4")
    convert(table, tmp_path / "hf", "hf")
    assert contents(tmp_path / "hf") == HELD
    convert([table, out], tmp_path / "both.json", "llava")
    assert set(contents(tmp_path / "both.json").values()) == set(HELD.values())
    other = tmp_path / row["video"]
    other.write_text("of somebody else")
    with pytest.raises(ProblemError, match="OUTPUT_EXISTS"):
        convert(table, tmp_path / "again.json", "llava")
    assert not (tmp_path / "again.json").exists()


def test_a_column_of_bytes_alone_holds_media(table: Path, tmp_path: Path) -> None:
    rows = pyarrow.parquet.read_table(table).to_pylist()
    plain = pyarrow.Table.from_pylist([{**row, "video": row["video"]["bytes"]} for row in rows])
    pyarrow.parquet.write_table(plain, table)
    convert(table, tmp_path / "out", "llava")
    assert contents(tmp_path / "out") == HELD


def test_a_renamed_column_holds_media_and_an_empty_one_none(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a cache at a path relative to the working folder."""
    rows = pyarrow.parquet.read_table(table).to_pylist()
    rows = [{**row, "recording": row.pop("video"), "image": {"bytes": None, "path": None}} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIDQA_CACHE_DIR", "cache")
    convert(table, tmp_path / "out", "llava", columns={"video": "recording"})
    assert contents(tmp_path / "out") == HELD


def test_the_parts_of_a_split_hold_them(table: Path, tmp_path: Path) -> None:
    split = split_dataset(table, "", tmp_path / "parts", 0.4, 0, "kind", skip_near_duplicates=True)
    assert split.is_rooted and split.written
    for members in (cache_folder() / "archives").glob("*/members"):
        shutil.rmtree(members)
    assert split_dataset(table, "", tmp_path / "parts", 0.4, 0, "kind", skip_near_duplicates=True).written is False
    train = {record.id for record in load_records(tmp_path / "parts/train")}
    assert contents(tmp_path / "parts/train").keys() == train and len(train) < 4


def test_members_of_compressed_archives_are_named_in_them(tmp_path: Path) -> None:
    root = tmp_path / "set"
    (root / "v").mkdir(parents=True)
    (root / "v/a.mp4").write_text("clip a")
    with tarfile.open(root / "videos.tar.gz", "w:gz") as tar:
        tar.add(root / "v/a.mp4", "videos/a.mp4")
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So"}]
    (root / "annotations.json").write_text(json.dumps([{"id": "a", "video": "videos/a.mp4", "conversations": turns}]))
    ((_, record),) = read_rows(root)
    assert record.media[0].written == record.media[0].file == f"{root}/videos.tar.gz!videos/a.mp4"
    (tmp_path / "next.json").write_text(json.dumps([llava_row(record)]))
    assert contents(tmp_path / "next.json") == {"a": "clip a"}


def test_sets_that_name_whole_paths_are_not_made_of_them(table: Path) -> None:
    with pytest.raises(ProblemError, match=r"(?s)DATATOOLS_FORMAT.*convert_dataset.py --in .*set.parquet"):
        read_rows(table)
