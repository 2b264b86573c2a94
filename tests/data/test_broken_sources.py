"""Sources that others made carelessly or by halves become problems, never tracebacks and never other rows."""

from __future__ import annotations

import json
import lzma
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_sources import captions, saved_to_disk, write_member

from tests.data.archives import make_tar
from vidqa.core.problem import ProblemError
from vidqa.data import check_records, load_records, open_source
from vidqa.data.archive import unpack_beside
from vidqa.data.hub_card import front_matter
from vidqa.data.load import fast_row
from vidqa.data.sources import absolute_source, read_by
from vidqa.data.storage.published_sets import write_annotations
from vidqa.data.tables import LONGEST_CELL
from vidqa.jobs.upload import spec_destinations

TURNS = [{"role": "user", "content": "Is it open?"}, {"role": "assistant", "content": "Yes"}]


def codes(path: str | Path) -> list[str]:
    return [problem.code for problem in check_records(path)[1]]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_card_is_read_however_its_lines_end(tmp_path: Path, line_end: str) -> None:
    folder = with_card(tmp_path, ":\n- data_files: train.jsonl\n  description: one --- two\n- config_name: --- three")
    card = (folder / "README.md").read_text().replace("\n", line_end).encode("utf-8-sig")
    (folder / "README.md").write_bytes(card)
    assert codes(f"{folder}#train") == ["DATA_SPLIT"]  # of two subsets neither is named
    assert [config.get("config_name") for config in front_matter(folder / "README.md")["configs"]] == [
        None,
        "--- three",
    ]


def with_card(folder: Path, header: str) -> Path:
    """A data set folder with one row in train.jsonl, and one in the folder beside it."""
    for name, place in (("own", folder / "set"), ("other", folder / "beside")):
        place.mkdir(exist_ok=True)
        (place / "a.mp4").write_bytes(b"x")
        (place / "train.jsonl").write_text(json.dumps({"id": name, "video": "a.mp4", "conversations": TURNS}))
    (folder / "set/README.md").write_text(f"---\nconfigs{header}\n---\n")
    return folder / "set"


@pytest.mark.parametrize(
    "header",
    [
        ": 5",
        ":\n- 5",
        ':\n- data_files: ""',
        ':\n- data_files: "**in.jsonl"',
        ':\n- data_files: "*.jsonl"\n  data_dir: ../beside',
        ':\n- data_files: "../beside/*.jsonl"',
        ':\n- data_files: "**"',
    ],
)
def test_a_card_leads_to_files_of_its_folder_alone(tmp_path: Path, header: str) -> None:
    folder = with_card(tmp_path, header)
    assert [record.id for record in load_records(f"{folder}#train")] == ["own"]
    assert codes(f"{folder}#sub:train") == ["DATA_SPLIT"]


@pytest.mark.parametrize("name", ["train.parquet", "train.arrow"])
@pytest.mark.parametrize("part", ["", "#train[-5:]", "#train[:50%]"])
def test_a_table_that_cannot_be_read_is_named_however_its_rows_are_chosen(tmp_path: Path, name: str, part: str) -> None:
    (tmp_path / name).write_bytes(b"no table")
    assert codes(f"{tmp_path}{part}") == ["DATA_SYNTAX"]


def test_a_saved_set_with_a_file_too_few_is_not_read(tmp_path: Path) -> None:
    folder = saved_to_disk(tmp_path, [{"id": "a", "video": "a.mp4", "conversations": TURNS}])
    files = [{"filename": "data-00000-of-00001.arrow"}, {"filename": "gone.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    assert codes(folder) == ["DATA_FILE_MISSING"]


def test_a_split_whose_files_are_not_all_there_says_so(tmp_path: Path) -> None:
    for number in (0, 2):
        rows = [{"id": f"{number}", "video": "a.mp4", "question": "Is it?", "answer": "Yes"}]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"train-{number:05}-of-00003.parquet")
    (tmp_path / "a.mp4").write_bytes(b"x")
    records, (problem,) = check_records(f"{tmp_path}#train")
    assert len(records) == 2 and (problem.code, problem.severity) == ("DATA_LEFT_OUT", "warning")
    assert problem.message == "only 2 of 3 files train-* exist"
    assert check_records(tmp_path / "train-00000-of-00003.parquet")[1] == []  # a file that is named alone


def test_captions_are_asked_for_by_the_file_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = captions(tmp_path, {"a": {"weather": "Rain"}}, ("a.mp4",))
    assert codes(f"{folder}#no_such.yaml") == ["DATA_FIELD"]
    (tmp_path / "here").mkdir()
    (tmp_path / "here/asks.yaml").write_text("user_prompt: How is it?\nkeys: [weather]")
    monkeypatch.chdir(tmp_path / "here")
    written = f"{folder}#asks.yaml"
    assert absolute_source(written) == f"{folder}#{tmp_path}/here/asks.yaml"
    assert read_by(written) == [str(folder), "asks.yaml"]
    assert load_records(absolute_source(written))[0].question == "How is it?"


def test_shards_of_several_folders_keep_their_own_media(tmp_path: Path) -> None:
    for number, place in enumerate(("a", "b")):
        (tmp_path / place).mkdir()
        with tarfile.open(tmp_path / place / "s.tar", "w") as tar:
            write_member(tar, f"{number}.json", json.dumps({"question": "Is it?", "answer": place}).encode())
            write_member(tar, f"{number}.mp4", place.encode())
    records = load_records(f"{tmp_path}/*/s.tar")
    assert {record.answer: record.media[0].file for record in records} == {
        "a": f"{tmp_path}/a/s.tar!0.mp4",
        "b": f"{tmp_path}/b/s.tar!1.mp4",
    }


def test_a_folder_may_hold_its_rows_behind_tabs(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    (tmp_path / "train.tsv").write_text("video\tquestion\tanswer\na.mp4\tIs it?\tYes\n")
    assert load_records(f"{tmp_path}#train")[0].answer == "Yes"


def test_two_columns_of_one_name_are_refused_where_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    (tmp_path / "a.csv").write_text("video,question,answer,note,note\na.mp4,Is it?,Yes,x,y\n")
    assert load_records(tmp_path / "a.csv")[0].answer == "Yes"
    (tmp_path / "a.csv").write_text("video,question,answer,answer\na.mp4,Is it?,Yes,No\n")
    assert codes(tmp_path / "a.csv") == ["DATA_FIELD"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"file_name,weather\n\xff.mp4,Rain\n", "DATA_SYNTAX"),
        (b"file_name,weather\n" + b"a" * (LONGEST_CELL + 9) + b",Rain\n", "DATA_SYNTAX"),
        (b"file_name,weather\n/etc/hostname,Rain\n", "DATA_EMPTY"),
        (b"file_name,weather\n../../../outside.mp4,Rain\n", "DATA_EMPTY"),
    ],
)
def test_a_table_of_nexar_that_names_no_file_of_the_set(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "outside.mp4").write_bytes(b"x")
    folder = tmp_path / "set/train/positive"
    folder.mkdir(parents=True)
    (folder / "metadata.csv").write_bytes(content)
    with pytest.raises(ProblemError, match=code):
        write_annotations(tmp_path / "set")


def changed(path: Path, at: int, content: bytes) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:at] + content + data[at + len(content) :])


def test_a_zip_that_is_encrypted_or_damaged_is_named(tmp_path: Path) -> None:
    for name, method in (("encrypted.zip", zipfile.ZIP_STORED), ("damaged.zip", zipfile.ZIP_LZMA)):
        with zipfile.ZipFile(tmp_path / name, "w", method) as packed:
            packed.writestr("a.txt", b"x" * 9000)
    encrypted = (tmp_path / "encrypted.zip").read_bytes()
    for at in (6, encrypted.index(b"PK\1\2") + 8):  # the flags of the member, and those of its entry
        changed(tmp_path / "encrypted.zip", at, b"\1")
    changed(tmp_path / "damaged.zip", 50, b"\xff" * 9)
    with pytest.raises(lzma.LZMAError), zipfile.ZipFile(tmp_path / "damaged.zip") as packed:
        packed.read("a.txt")
    for name in ("encrypted.zip", "damaged.zip"):
        with pytest.raises(ProblemError, match="DATA_TAR_BROKEN"):
            unpack_beside(tmp_path / name)
    assert not (tmp_path / "a.txt").exists()


def test_a_medium_of_a_table_that_the_disk_refuses_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"video": {"bytes": b"x", "path": "a.mp4"}, "question": "Is it?", "answer": "Yes"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet")
    folder = Path(source.media.root).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_bytes(b"a file is in the way")
    assert codes(tmp_path / "a.parquet") == ["ENV_DISK_SPACE"]
    folder.unlink()


def test_an_archive_is_never_looked_for_in_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here.tar", "media.tar"):
        make_tar(tmp_path / name, {"a.mp4": b"x"})
    row = {"id": "a", "video": "here.tar!a.mp4", "conversations": TURNS}
    (tmp_path / "a.json").write_text(json.dumps([row]))
    monkeypatch.chdir(tmp_path)
    assert [problem.code for problem in check_records("a.json", "media.tar")[1]] == ["DATA_MEDIA_MISSING"]
    assert load_records("a.json")[0].media[0].path == f"{tmp_path}/here.tar"


def test_turns_are_those_that_hold_something() -> None:
    row = {"conversations": None, "messages": TURNS}
    assert fast_row(row)[:2] == ("Is it open?", "Yes")


@pytest.mark.parametrize("content", [b"\xff", b"train = 5", b"[train]\nckpt = []", b"["])
def test_a_spec_that_names_no_destination_of_an_upload(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spec.toml").write_bytes(content)
    with pytest.raises(ProblemError, match="USAGE"):
        spec_destinations(tmp_path)
