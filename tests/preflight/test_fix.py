"""--fix: a new file of annotations that passes, every change named, the original untouched."""

from __future__ import annotations

import copy
import json
import shlex
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.preflight.corpus import Case
from tests.preflight.test_preflight import SCRIPT
from tests.programs import run_here
from vidqa.core.environment import cache_folder
from vidqa.core.problem import Exit, ProblemError
from vidqa.data import load_records
from vidqa.preflight.fix import fix_annotations
from vidqa.spec import load


@pytest.fixture
def case(tmp_path: Path, clips: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return Case(tmp_path, clips, tiny_model, monkeypatch)


def spoil(case: Case) -> None:
    """One fault of every kind that can be mended, and three records that cannot."""
    (case.media / "3.mp4").write_bytes(b"no video")
    case.train[0]["id"] = None
    case.train[1]["conversations"][0]["from"] = "Human"
    case.train[1]["conversations"][1]["from"] = "model"
    case.train[2]["id"] = "clip1-1"
    case.train[2]["video_fps"] = 30
    case.train[3]["conversations"][0]["value"] = "<video>\n<video>\nIs it so?"
    case.train[4]["video"] = "gone.mp4"
    case.train[5]["conversations"][1]["value"] = ""


def test_what_is_written_passes_and_the_original_stays(case: Case) -> None:
    spoil(case)
    before = copy.deepcopy(case.train)
    path, target = case.write(), case.folder / "new" / "corrected.json"
    fixed = fix_annotations(path, "train", target)
    assert json.loads((case.folder / "train.json").read_text()) == before
    written = json.loads(target.read_text())
    assert fixed.records == len(written) == 4 and fixed.dropped == 4
    assert [record["id"] for record in written] == ["0", "clip0-1", "clip1-1", "clip1-1-3"]
    assert [turn["from"] for turn in written[1]["conversations"]] == ["human", "gpt"]
    assert written[2]["video_fps"] == 8 and written[3]["conversations"][0]["value"] == "<video>\nIs it so?"
    assert fixed.counts == {"id": 2, "role": 1, "video_fps": 1, "tags": 1, "left out": 4}
    for said in ("train.json[0]: id '0' given", "'Human' -> 'human'", "video_fps 30 -> 8.0", "gone.mp4", "[6]", "[5]"):
        assert said in fixed.text
    case.spec["custom.train_dataset.annotation_path"] = str(target)
    assert case.look() == []


def test_a_sound_file_is_copied_as_it_is(case: Case) -> None:
    fixed = fix_annotations(case.write(), "train", case.folder / "same.json")
    assert json.loads((case.folder / "same.json").read_text()) == case.train
    assert fixed.counts == {} and fixed.dropped == 0


def test_rows_of_a_table_become_rows_of_a_file(case: Case) -> None:
    """Media that were found by their last names are named by their paths, and what is no JSON goes."""
    rows = [{**row, "video": Path(row["video"]).name, "when": datetime(2026, 1, 1)} for row in case.train]
    table = case.folder / "set/train.parquet"
    (case.folder / "set").mkdir()
    shutil.copytree(case.media, case.folder / "set/clips")
    pq.write_table(pa.Table.from_pylist(rows), table)
    case.spec |= {"custom.train_dataset.annotation_path": str(table.parent), "custom.train_dataset.media_path": ""}
    fixed = fix_annotations(case.write(), "train", case.folder / "fixed.json")
    assert fixed.counts == {"field": len(rows)} and "when left out" in fixed.text
    assert list(fixed.settings.values()) == [str(case.folder / "fixed.json"), str(table.parent)]
    assert len(load_records(*fixed.settings.values())) == len(rows)


def test_media_inside_a_table_become_files_beside_the_new_file(case: Case) -> None:
    """The cache that holds them meanwhile may be emptied."""
    rows = [{**row, "video": {"bytes": (case.media / row["video"]).read_bytes()}} for row in case.train]
    pq.write_table(pa.Table.from_pylist(rows), case.folder / "train.parquet")
    case.spec["custom.train_dataset.annotation_path"] = str(case.folder / "train.parquet")
    fixed = fix_annotations(case.write(), "train", case.folder / "fixed" / "train.json")
    shutil.rmtree(cache_folder() / "archives")
    paths = [Path(record.media[0].path) for record in load_records(*fixed.settings.values())]
    assert [path.read_bytes() for path in paths] == [row["video"]["bytes"] for row in rows]


def test_jsonl_with_a_bad_line(case: Case) -> None:
    lines = [json.dumps(record) for record in case.train]
    case.raw = "\n".join([*lines[:3], '{"id":', *lines[3:]])
    fixed = fix_annotations(case.write(), "train", case.folder / "list.json")
    assert fixed.records == 8 and fixed.dropped == 1 and "train.json:4" in fixed.text


def test_what_only_decoding_found_is_left_out(case: Case) -> None:
    whole = bytearray((case.media / "1.mp4").read_bytes())
    begin, end = whole.index(b"mdat") + 4, whole.rindex(b"moov") - 4
    whole[(begin + end) // 2 : end] = bytes(end - (begin + end) // 2)
    (case.media / "1.mp4").write_bytes(whole)
    before = fix_annotations(case.write(), "train", case.folder / "before.json")
    assert case.report("media").problems
    after = fix_annotations(case.write(), "train", case.folder / "after.json")
    assert (before.dropped, after.dropped) == (0, 2)


@pytest.mark.parametrize(
    ("raw", "target", "code", "words"),
    [
        (None, "train.json", "OUTPUT_EXISTS", "already"),
        ("[1, 2]", "new.json", "DATA_EMPTY", "none of 2 records can be used"),
        ("[{]", "new.json", "DATA_SYNTAX", ""),
        ("", "new.json", "DATA_EMPTY", "the file is empty"),
    ],
)
def test_what_cannot_be_fixed(case: Case, raw: str | None, target: str, code: str, words: str) -> None:
    case.raw = raw
    with pytest.raises(ProblemError) as stopped:
        fix_annotations(case.write(), "train", case.folder / target)
    assert stopped.value.problems[0].code == code and words in stopped.value.problems[0].message
    assert not (case.folder / "new.json").exists()


def test_the_script(case: Case) -> None:
    spoil(case)
    words = ["--spec", case.write(), "--only", "media", "--fix", case.folder / "corrected.json", "--json"]
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=120)
    said = json.loads(done.stdout)
    assert done.returncode == Exit.INPUT and said["problems"]  # of the file as it is, not of the corrected one
    assert said["data"]["fix"]["records"] == 4 and len(said["data"]["fix"]["changes"]) == 9
    spec = Path(words[1])
    assert subprocess.run(shlex.split(said["next"][0]), capture_output=True, timeout=120).returncode == 0
    assert load(spec, "train").custom.train_dataset.annotation_path == str(case.folder / "corrected.json")
    again = run_here([sys.executable, str(SCRIPT), *map(str, words)], cwd=case.folder)
    assert again.returncode == Exit.INPUT and json.loads(again.stdout)["problems"][0]["code"] == "OUTPUT_EXISTS"
