"""Every registered kind of source passes the conformance suite; provenance goes through the data tools."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clips import write_clip
from source_conformance import *  # noqa: F403
from source_conformance import Made, row

from vidqa.core.problem import ProblemError
from vidqa.data import check_records, load_records
from vidqa.data.media import NotFound
from vidqa.data.problems import ProblemCollector
from vidqa.data.record import Provenance
from vidqa.data.sources import SOURCE_KINDS, absolute_source, file_of, open_source, read_by
from vidqa.data.sources.captions import CAPTIONS_FOLDER
from vidqa.data.sources.files import MEDIA_FILES
from vidqa.datatools.convert import convert
from vidqa.datatools.split import split_dataset

MINED = {"origin": "mined", "round": 1, "gap": "q7"}


def annotation_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "annotations.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def csv_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    columns = ["video", "question", "answer", *sorted({name for row in rows for name in row} - {"video"})]
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for each in rows:
            cells = [each.get(name, "") for name in columns]
            writer.writerow([cell if isinstance(cell, str | int) else json.dumps(cell) for cell in cells])
    return folder / "rows.csv"


def saved_to_disk(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """As `datasets.Dataset.save_to_disk` leaves it, the turns as text."""
    names = {"conversations": None, **dict.fromkeys(name for row in rows for name in row)}
    texts = [{**row, "conversations": json.dumps(row["conversations"])} for row in rows]
    table = pa.table({name: [text.get(name) for text in texts] for name in names})
    file = "data-00000-of-00001.arrow"
    with pa.OSFile(str(folder / file), "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": file}]}))
    return folder


def web_dataset(folder: Path, rows: list[dict[str, Any]]) -> Path:
    with tarfile.open(folder / "shard-00.tar", "w") as tar:
        for number, each in enumerate(rows):
            write_member(tar, f"{number:04}.json", json.dumps(each).encode())
    return folder / "shard-{00..00}.tar"


def write_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def user_function(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "mine.py").write_text(f"def records():\n    yield from {rows!r}\n")
    return folder / "mine.py:records"


MAKERS: dict[str, Made] = {
    "annotation file": annotation_file,
    "CSV file": csv_file,
    "data set folder": saved_to_disk,
    "WebDataset": web_dataset,
    "user's function": user_function,
}
WITHOUT = (MEDIA_FILES, CAPTIONS_FOLDER)  # they cannot hold whatever a row may say


@pytest.fixture(params=[kind for kind in SOURCE_KINDS if kind not in WITHOUT], ids=lambda kind: kind.name)
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
    assert "it contains no video" in str(refused.value)


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
    "value",
    [
        "found",
        3,
        {"origin": "mind"},
        {"origin": "mined", "round": "1"},
        {"origin": "mined", "round": 2**64},
        {"origin": "base", "other": 1},
    ],
)
def test_provenance_of_another_shape_is_a_warning_and_the_record_stays(tmp_path: Path, value: Any) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    (record,), (problem,) = check_records(annotation_file(tmp_path, [row("a", provenance=value)]))
    assert record.provenance is None
    assert (problem.code, problem.severity) == ("DATA_FIELD", "warning") and "provenance" in problem.where


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
    split_dataset(path, "", tmp_path / "out", 0.5, 1, "kind", skip_near_duplicates=True)
    parts = [tmp_path / "out" / name / "annotations.json" for name in ("train", "val")]
    records = [record for part in parts for record in load_records(part, tmp_path)]
    wanted = {"a": Provenance("mined", 1, "q7"), "b": Provenance("generated")}
    assert {record.id: record.provenance for record in records} == wanted
    merged = convert(parts, tmp_path / "all.json", "llava", media_path=str(tmp_path)).files[0]
    assert {record.id: record.provenance for record in load_records(merged, tmp_path)} == wanted


def turns(answer: str = "Yes") -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Is it open?"}, {"role": "assistant", "content": answer}]


def test_a_save_to_disk_folder_of_several_splits_is_cut_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    for name, count in (("train", 25), ("test", 3)):
        (tmp_path / name).mkdir()
        saved_to_disk(tmp_path / name, [row(f"{name}{number}") for number in range(count)])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')

    def ids(part: str) -> list[str]:
        return [record.id for record in load_records(f"{tmp_path}#{part}", tmp_path)]

    assert ids("train[:2]") == ["train0", "train1"] and ids("train[-2:]") == ["train23", "train24"]
    assert ids("train[:10%]") == ["train0", "train1"] and len(ids("train[10%:]")) == 23  # 2.5, to the even one
    assert ids("train[20:]+test[:1]") == [*(f"train{number}" for number in range(20, 25)), "test0"]
    assert open_source(f"{tmp_path}#train[:2]").fingerprint() != open_source(f"{tmp_path}#train[:3]").fingerprint()
    for part, code in (("dev", "DATA_SPLIT"), ("train[", "DATA_SPLIT"), ("", "DATA_SPLIT")):
        (problem,) = check_records(f"{tmp_path}#{part}" if part else tmp_path, tmp_path)[1]
        assert problem.code == code and ("test, train" in problem.message or part == "train[")


def test_media_that_a_column_holds_are_read(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.mp4", frames=4)
    content = (tmp_path / "a.mp4").read_bytes()
    videos = [{"bytes": content, "path": "x/one.mp4"}, {"bytes": content, "path": "two.mp4"}]
    videos.append({"bytes": None, "path": "a.mp4"})
    table = pa.table({"video": videos, "question": ["Is it?"] * 3, "answer": ["Yes", "No", "Yes"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    records = load_records(tmp_path / "rows.parquet")
    paths = [record.media[0].path for record in records]
    assert paths[0] == paths[1] != paths[2] == str(tmp_path / "a.mp4")  # the same bytes are one file
    assert [Path(path).read_bytes() == content for path in paths] == [True] * 3
    assert "cache" in paths[0] or "archives" in paths[0]
    made = convert(tmp_path / "rows.parquet", tmp_path / "out.json", "llava")
    converted = [Path(record.media[0].path) for record in load_records(tmp_path / "out.json", made.media_path)]
    assert [str(path.parent) for path in converted] == [*[str(tmp_path / "media")] * 2, str(tmp_path)]
    assert all(path.read_bytes() == content for path in converted)


KEEP = """import sys
from pathlib import Path
from vidqa.data import load_records
from vidqa.data.media_cache import _evict, _last_used
folder = Path(load_records(sys.argv[1])[0].media[0].path).parents[1]
print(_last_used(folder) > 0, _evict(folder))"""


def test_media_of_a_table_are_kept_while_a_process_reads_them(tmp_path: Path) -> None:
    """Whether it has written them, or they were there already."""
    rows = [{"video": {"bytes": b"x", "path": "a.mp4"}, "question": "Is it?", "answer": "Yes"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for _ in range(2):
        command = [sys.executable, "-c", KEEP, str(tmp_path / "rows.parquet")]
        assert subprocess.run(command, capture_output=True, text=True).stdout == "True False\n"


CARD = """---
configs:
- config_name: robovqa
  data_files:
  - split: understanding
    path: robovqa/robovqa_understanding.json
  - split: reasoning
    path: [robovqa/robovqa_reasoning.json]
- config_name: av
  data_files: av/*.json
---
"""


@pytest.mark.parametrize("card", [CARD, ""])
def test_a_snapshot_of_a_hub_dataset_has_subsets_and_splits(tmp_path: Path, card: str) -> None:
    """As Cosmos-Reason1-SFT-Dataset has them: clips in compressed archives, found by their last names."""
    write_clip(tmp_path / "one.mp4", frames=4)
    (tmp_path / "robovqa/clips").mkdir(parents=True)
    (tmp_path / "av").mkdir()
    with tarfile.open(tmp_path / "robovqa/clips/000.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "one.mp4", "some/where/one.mp4")
    for split in ("understanding", "reasoning"):
        rows = [{"video": "clips/elsewhere/one.mp4", "conversations": turns(split)}]
        (tmp_path / f"robovqa/robovqa_{split}.json").write_text(json.dumps(rows))
    (tmp_path / "av/av.json").write_text(json.dumps([{"video": "none.mp4", "conversations": turns()}]))
    (tmp_path / "README.md").write_text(card)
    (record,) = load_records(f"{tmp_path}#robovqa:understanding")
    assert record.answer == "understanding" and Path(record.media[0].path).stat().st_size > 0
    assert load_records(f"{tmp_path}#robovqa:reasoning")[0].answer == "reasoning"
    for place in ("train/good", "train/bad"):  # two files of one last name: the one whose path ends like the name
        (tmp_path / "robovqa/more" / place).mkdir(parents=True)
        write_clip(tmp_path / "robovqa/more" / place / "two.mp4", frames=4)
    source = open_source(f"{tmp_path}#robovqa:reasoning").media
    assert source.find("video", "bad/two.mp4") == replace(
        source.find("video", "robovqa/more/train/bad/two.mp4"), written="bad/two.mp4"
    )
    assert isinstance(source.find("video", "two.mp4"), NotFound)
    made = convert(f"{tmp_path}#robovqa:reasoning", tmp_path / "out.json", "llava", form="hf")
    assert load_records(tmp_path / "out.json", made.media_path)[0].media[0].path == record.media[0].path
    (unknown,) = check_records(f"{tmp_path}#agibot:reasoning")[1]
    assert unknown.code == "DATA_SPLIT" and "'agibot' does not exist; there are: av, robovqa" in unknown.message
    (problem,) = check_records(f"{tmp_path}#robovqa")[1]  # which is no split
    assert problem.code == "DATA_SPLIT"


def test_a_web_dataset_has_its_media_in_its_shards(tmp_path: Path) -> None:
    write_clip(tmp_path / "one.mp4", frames=4)
    content = (tmp_path / "one.mp4").read_bytes()
    for shard, ending, mode in (("000", ".tar", "w"), ("001", ".tar", "w")):
        with tarfile.open(tmp_path / f"s-{shard}{ending}", mode) as tar:
            for number in range(2):
                write_member(
                    tar, f"x/{shard}{number}.json", json.dumps({"question": "Is it?", "answer": "Yes"}).encode()
                )
                write_member(tar, f"x/{shard}{number}.mp4", content)
            write_member(tar, f"x/{shard}9.txt", b"no question")
    (tmp_path / "one.mp4").unlink()
    for path in (tmp_path, tmp_path / "s-{000..001}.tar", tmp_path / "s-*.tar"):
        records, problems = check_records(path)
        assert [record.id for record in records] == ["x/0000", "x/0001", "x/0010", "x/0011"]
        assert [problem.code for problem in problems] == ["DATA_FIELD"] * 2  # the records of text alone
        assert records[0].media[0].file == f"{tmp_path}/s-000.tar!x/0000.mp4"
    assert len(load_records(tmp_path / "s-000.tar", need_answers=False)) == 3
    (problem,) = check_records(tmp_path / "s-{000..003}.tar")[1]
    assert problem.code == "DATA_FILE_MISSING" and "2 of 4 shards" in problem.message
    (problem,) = check_records(tmp_path / "s-{0..999999999}.tar")[1]
    assert problem.code == "DATA_FILE_MISSING" and "1,000,000,000 shards" in problem.message


def test_captions_are_the_kept_keys_and_are_asked_as_a_file_says(tmp_path: Path) -> None:
    for name in ("videos", "metas"):
        (tmp_path / name).mkdir()
    write_clip(tmp_path / "videos/a.camera_front_wide_120fov.mp4", frames=4)
    write_clip(tmp_path / "videos/a.camera_rear.mp4", frames=4)
    write_clip(tmp_path / "videos/b.any.mp4", frames=4)
    for name in ("a", "b", "c"):
        label = {"weather": "Overcast", "critical_object": [1], "rule_violation": "False", "lighting": name}
        (tmp_path / f"metas/{name}.label.json").write_text(json.dumps(label))
    records, (problem, lacking) = check_records(tmp_path)
    assert lacking.code == "DATA_FIELD" and lacking.severity == "warning"
    assert [record.media[0].written for record in records] == [
        "videos/a.camera_front_wide_120fov.mp4",
        "videos/b.any.mp4",
    ]
    assert problem.code == "DATA_MEDIA_MISSING" and "c.camera_front" in problem.message
    answer = records[0].answer.removeprefix("```json\n").removesuffix("\n```")
    assert len(json.loads(answer)) == 15 and "critical_object" not in answer and answer.startswith('{\n  "weather"')
    before = open_source(tmp_path).fingerprint()
    (tmp_path / "captions.yaml").write_text("user_prompt: What is it like?\nkeys: [lighting]\nsystem_prompt: ''\n")
    (record, _), _ = check_records(tmp_path)
    assert record.question == "What is it like?" and record.answer == '```json\n{\n  "lighting": "a"\n}\n```'
    assert [turn.role for turn in record.turns] == ["user", "assistant"]
    assert open_source(tmp_path).fingerprint() != before
    (tmp_path / "other.yaml").write_text("keys: weather\n")
    assert [each.code for each in check_records(f"{tmp_path}#{tmp_path}/other.yaml")[1]] == ["DATA_FIELD"]


def captions(folder: Path, labels: dict[str, Any], videos: tuple[str, ...]) -> Path:
    for name in ("videos", "metas"):
        (folder / name).mkdir()
    for name in videos:
        (folder / "videos" / name).write_bytes(b"x")
    for name, label in labels.items():
        (folder / f"metas/{name}.label.json").write_text(json.dumps(label))
    return folder


def test_captions_without_a_key_or_a_label_are_named(tmp_path: Path) -> None:
    labels = {"a": {"weather": "Rain"}, "b": {"caption": "A car."}, "c": {"weather": None, "lighting": "Day"}}
    videos = ("a.camera_rear.mp4", "a.front.mp4", "b.mp4", "c.mp4", "d.mp4", "e.x.mp4", "notes.txt")
    path = captions(tmp_path, labels, videos)
    (path / "captions.yaml").write_text("keys: [weather, lighting]")
    records, problems = check_records(path)
    assert [record.id for record in records] == ["a", "c"]
    found = {(problem.code, problem.severity): problem for problem in problems}
    assert len(problems) == len(found) == 3
    left_out = found["DATA_LEFT_OUT", "warning"].message
    assert left_out == "2 of 6 videos have no label in metas: d.mp4, e.x.mp4"
    none = found["DATA_FIELD", "error"]
    assert none.where.endswith("b.label.json") and none.message.endswith("but caption")
    assert found["DATA_FIELD", "warning"].message.endswith("lighting (1)")
    with pytest.raises(ProblemError, match="DATA_FIELD"):
        convert(path, tmp_path / "out.json", "llava")
    os.remove(path / "metas/b.label.json")
    assert [record.id for record in load_records(f"{path}#train[1:]")] == ["c"]
    codes = {problem.code for problem in convert(path, tmp_path / "out.json", "llava").problems}
    assert codes == {"DATA_LEFT_OUT", "DATA_FIELD"}


def test_shards_that_number_their_records_alike_give_ids_of_their_own(tmp_path: Path) -> None:
    for shard in (0, 1):
        with tarfile.open(tmp_path / f"s-{shard}.tar", "w") as tar:
            write_member(tar, "0001.mp4", b"x")
            write_member(tar, "0001.json", b'{"question": "Why?", "answer": "So"}')
    assert [record.id for record in load_records(tmp_path)] == ["0001", "s-1/0001"]


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ({"json": '{"question": "Why?", "answer": "So", "answer": "No"}'}, "answer"),
        ({"json": '{"text": "a"}', "txt": "b"}, "text"),
    ],
)
def test_a_record_of_a_shard_that_repeats_a_key_is_refused(tmp_path: Path, files: dict[str, str], key: str) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for ending, content in {"mp4": "x", **files}.items():
            write_member(tar, f"a.{ending}", content.encode())
    problem = check_records(tmp_path / "s.tar")[1][0]
    assert problem.code == "DATA_SYNTAX" and repr(key) in problem.message and "every key once" in problem.remedy


def test_media_of_a_shard_without_a_text_are_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for name in ("a.mp4", "b.mp4", "b.json", "c.mp4", "c.png"):
            write_member(tar, name, b"x" if not name.endswith("json") else json.dumps(row("b")).encode())
    records, (problem,) = check_records(tmp_path / "s.tar")
    assert [record.id for record in records] == ["b"] and (problem.code, problem.severity) == (
        "DATA_LEFT_OUT",
        "warning",
    )
    assert problem.message.startswith("2 media have no text") and problem.message.endswith("a, c")


def test_questions_with_lettered_answers_are_records(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips/x.mp4").write_bytes(b"x")
    pair = {"question": "Which?", "index2ans": {"B": "left", "A": "right"}, "answer": "B"}
    again = {"question": "Where to?", "correct_answer": "to the right"}
    rows = [{"video": "clips/x.mp4", "qa_pairs": [pair, again]}, {"id": "q", "video": "clips/x.mp4", "qa_pairs": pair}]
    records = load_records(annotation_file(tmp_path, rows))
    assert [(record.id, record.answer) for record in records] == [("0-0", "B"), ("0-1", "to the right"), ("q", "B")]
    assert records[0].question.splitlines()[:3] == ["Which?", "(A) right", "(B) left"]
    assert len(records[0].question.splitlines()) == 4 and records[1].question == "Where to?"
    made = convert(tmp_path / "annotations.json", tmp_path / "out.jsonl", "jsonl")
    assert [record.turns for record in load_records(tmp_path / "out.jsonl", made.media_path)] == [
        record.turns for record in records
    ]
    wrong = annotation_file(tmp_path, [{"video": "clips/x.mp4", "qa_pairs": ["a"]}])
    assert [problem.code for problem in check_records(wrong)[1]] == ["DATA_FIELD"]


def function(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(body)
    return f"{folder}/mine.py:records"


GOOD = '{"video": "a.mp4", "question": "Is it?", "answer": "Yes"}'


@pytest.mark.parametrize(
    ("body", "line", "said", "good"),
    [
        (f"def records():\n    yield {GOOD}\n    1 / 0\n", 3, "ZeroDivisionError", 1),
        (f"import sys\ndef records():\n    yield {GOOD}\n    sys.exit(0)\n", 4, "SystemExit", 1),
        ("def records(:\n", 1, "SyntaxError", 0),
        ("import no_such_module\n", 1, "No module named", 0),
        ("def other():\n    return []\n", None, "no function records", 0),
        ("def records():\n    return 3\n", None, "not iterable", 0),
        ("def records():\n    yield {'video': {1}}\n", None, "set is not a text", 0),
        ("import os\ndef records():\n    yield 1\n    os._exit(3)\n", None, "exit code 3", 0),
        ("import json\ndef records():\n    json.loads('x')\n    yield 1\n", 3, "JSONDecodeError", 0),
    ],
)
def test_what_is_wrong_with_a_users_function_is_a_problem_with_its_line(
    tmp_path: Path, body: str, line: int | None, said: str, good: int
) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    records, problems = check_records(function(tmp_path, body))
    found = [problem for problem in problems if problem.code == "USER_FUNCTION"]
    assert len(records) == good and len(found) == 1 and said in found[0].message
    assert line is None or found[0].where == f"{tmp_path}/mine.py:{line}"


def test_a_users_function_has_its_own_process_and_its_own_imports(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It prints, changes folders and what Python itself is, imports what lies beside it, and gives paths."""
    (tmp_path / "a.mp4").write_bytes(b"x")
    (tmp_path / "beside.py").write_text("ANSWER = 'Yes'\n")
    body = """
import builtins, os, pathlib, random, sys
from beside import ANSWER
print("loud")
def records(word):
    os.chdir("/")
    builtins.sorted = None
    for name in {"b", "a", "c"}:
        question = f"{name} {random.random()} {word}"
        yield {"video": pathlib.Path(__file__).parent / "a.mp4", "question": question, "answer": ANSWER}
    yield {"video": "none.mp4", "question": "", "answer": 3.5}
"""
    path = function(tmp_path, body) + "#train"
    here = Path.cwd()
    source = open_source(path)
    findings = ProblemCollector("x")
    assert list(source.rows(findings)) == list(source.rows(findings))  # of any order and chance
    records, problems = check_records(path)
    assert len(records) == 3 and all(record.question.endswith(" train") for record in records)
    assert {problem.code for problem in problems} == {"DATA_FIELD"} and Path.cwd() == here
    assert "loud" not in capfd.readouterr().out
    assert open_source(path).fingerprint() != open_source(path.replace("train", "test")).fingerprint()


def test_names_with_a_hash_are_files_where_there_are_such_files(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    path = annotation_file(tmp_path, [row("a")]).rename(tmp_path / "set#1.json")
    assert len(load_records(path)) == 1
    assert file_of(f"{tmp_path}#train") == str(tmp_path) and file_of(str(path)) == str(path)
    here = os.getcwd()
    assert absolute_source("sets/x.py:f#train") == f"{here}/sets/x.py:f#train"
    assert (
        absolute_source(f"x.py:f#{path}") == f"{here}/x.py:f#{path}" and absolute_source("a.json") == f"{here}/a.json"
    )
    assert read_by("/sets/x.py:f#train") == ["/sets"] and read_by(f"/sets/x.py:f#{path}") == ["/sets", str(path)]
    assert read_by("/sets/s-{0..3}.tar") == ["/sets"] and read_by("/sets/nexar#train[:9]") == ["/sets/nexar"]
