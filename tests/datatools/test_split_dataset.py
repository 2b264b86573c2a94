"""Splitting: videos stay whole, strata are kept, a seed gives one split, nothing is overwritten, media are reached."""

from __future__ import annotations

import json
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.archives import make_tar
from tests.programs import run_here, run_next
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.data import fingerprint, load_records
from vidqa.data.record import MediaRef, Record, Turn
from vidqa.datatools.convert import convert
from vidqa.datatools.split import choose_validation, part_named, split_dataset, stratum

KINDS = ("yes_no", "letter", "text")


def record(name: str, kind: str | None, *videos: str, answer: str = "Yes") -> Record:
    media = tuple(MediaRef("video", video, f"/m/{video}") for video in videos)
    turns = (Turn("user", (*range(len(media)), "Is it open?")), Turn("assistant", (answer,)))
    return Record(name, turns, media, kind=kind)


def row(name: str, video: str, kind: str = "door", answer: str = "Yes") -> dict:
    turns = [{"from": "human", "value": "<video>\nIs it open?"}, {"from": "gpt", "value": answer}]
    return {"id": name, "video": video, "kind": kind, "note": "kept", "conversations": turns}


def dataset(root: Path, rows: list[dict], folder: str = "videos") -> Path:
    for each in rows:
        path = root / each["video"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(each["video"].encode())
    (root / "annotations.json").write_text(json.dumps(rows), encoding="utf-8")
    return root


def keys(records: list[Record]) -> set[str]:
    return {medium.key for each in records for medium in each.media}


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), min_size=2, max_size=60),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 99),
)
def test_videos_stay_whole_and_both_parts_have_some(groups: list[list[str]], share: float, seed: int) -> None:
    records = [record(f"{g}-{q}", kind, f"{g}.mp4") for g, group in enumerate(groups) for q, kind in enumerate(group)]
    chosen = choose_validation(records, share, seed, "kind")
    assert chosen == choose_validation(records, share, seed, "kind") and 0 < len(chosen) < len(records)
    sides = [
        {f"{at in chosen}" for at, each in enumerate(records) if each.media[0].key == key} for key in keys(records)
    ]
    assert all(len(side) == 1 for side in sides)
    backwards = choose_validation(records[::-1], share, seed, "kind")
    assert {records[at].id for at in chosen} == {records[::-1][at].id for at in backwards}


@pytest.mark.parametrize("seed", range(5))
def test_every_stratum_gets_its_share(seed: int) -> None:
    counts = {"yes_no": 200, "letter": 50, "text": 10}
    records = [record(f"{kind}{n}", kind, f"{kind}{n}.mp4") for kind, count in counts.items() for n in range(count)]
    chosen = choose_validation(records, 0.2, seed, "kind")
    found = Counter(records[at].kind for at in chosen)
    assert found == {"yes_no": 40, "letter": 10, "text": 2}
    assert chosen != choose_validation(records, 0.2, seed + 1, "kind")


def test_videos_with_several_kinds_come_near_the_share() -> None:
    records = [record(f"{v}-{k}", kind, f"{v}.mp4") for v in range(100) for k, kind in enumerate(KINDS) if (v + k) % 2]
    found = Counter(records[at].kind for at in choose_validation(records, 0.2, 0, "kind"))
    wanted = {kind: 0.2 * count for kind, count in Counter(r.kind for r in records).items()}
    assert all(abs(found[kind] - count) <= 2 for kind, count in wanted.items())


def test_answers_are_strata_as_evaluations_read_them() -> None:
    answers = ["Yes", "yes.", "<think>a</think> YES", "No", "B", "a red door"]
    assert [stratum(record("x", "k", answer=answer), "answer") for answer in answers] == [
        *["k: yes"] * 3, "k: no", "k: B", "k: (text)",
    ]  # fmt: skip
    records = [record(str(n), None, f"{n}.mp4", answer="yes" if n % 10 else "no") for n in range(100)]
    found = Counter(records[at].answer for at in choose_validation(records, 0.1, 0, "answer"))
    assert found == {"yes": 9, "no": 1}


def test_both_parts_are_data_sets_of_their_own(tmp_path: Path) -> None:
    rows = [row(f"r{n}-{q}", f"videos/{n}.mp4") for n in range(10) for q in range(2)]
    root, out = dataset(tmp_path / "data", rows), tmp_path / "out"
    made = split_dataset(root, "", out, 0.2, 0, "kind")
    assert made.is_rooted and made.written and made.warnings == []
    parts = {name: json.loads((out / name / "annotations.json").read_text()) for name in ("train", "val")}
    assert sorted(map(json.dumps, parts["train"] + parts["val"])) == sorted(map(json.dumps, rows))
    train, val = load_records(out / "train"), load_records(out / "val")  # root mode, through the links
    assert (len(train), len(val)) == (16, 4) and not {r.media[0].written for r in train} & {
        r.media[0].written for r in val
    }
    direct = load_records(out / "val" / "annotations.json", made.media_path)
    said = json.loads((out / "split.json").read_text())
    assert said["parts"]["val"]["fingerprint"] == fingerprint(direct) == fingerprint(val)
    assert said["fingerprint"] == fingerprint(load_records(root)) and said["seed"] == 0
    assert said["strata"] == {"door": {"train": 16, "val": 4}}


def test_media_in_an_archive_are_reached(tmp_path: Path) -> None:
    rows = [row(f"r{n}", f"{n}.mp4") for n in range(4)]
    root = tmp_path / "data"
    dataset(tmp_path / "loose", rows)
    root.mkdir()
    (root / "annotations.json").write_text(json.dumps(rows))
    with tarfile.open(root / "videos.tar", "w") as tar:
        for each in rows:
            tar.add(tmp_path / "loose" / each["video"], arcname=f"videos/{each['video']}")
    made = split_dataset(root, "", tmp_path / "out", 0.25, 0, "kind")
    assert made.is_rooted and len(load_records(tmp_path / "out" / "val")) == 1
    assert {path.name for path in (tmp_path / "out" / "val").iterdir()} == {"annotations.json", "videos.tar"}


def table_with_clips_below(root: Path) -> None:
    """A data set of the hub: its rows name clips by their last names, and one column is no JSON."""
    rows = [{**row(f"r{n}", f"{n}.mp4"), "when": datetime(2024, 1, n + 1)} for n in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), root / "train.parquet")
    (root / "clips").mkdir()
    for n in range(4):
        (root / f"clips/{n}.mp4").write_bytes(bytes([n]))


def shard(root: Path) -> None:
    texts = {f"{n}.json": json.dumps({"question": "Is it?", "answer": "Yes"}).encode() for n in range(4)}
    make_tar(root / "s-0.tar", dict(sorted((texts | {f"{n}.mp4": bytes([n]) for n in range(4)}).items())))


@pytest.mark.parametrize(
    ("make", "linked", "warnings"),
    [(table_with_clips_below, "clips", ["DATA_LEFT_OUT"]), (shard, "s-0.tar", [])],
)
def test_parts_of_tables_and_shards_reach_their_media(
    tmp_path: Path, make: Callable[[Path], None], linked: str, warnings: list[str]
) -> None:
    root, out = tmp_path / "data", tmp_path / "out"
    root.mkdir()
    make(root)
    split = split_dataset(root, "", out, 0.5, 0, "kind", skip_near_duplicates=True)
    assert [problem.code for problem in split.warnings] == warnings and split.is_rooted
    assert {path.name for path in (out / "val").iterdir()} == {"annotations.json", linked}
    for place in ((out / "train", ""), (out / "train/annotations.json", split.media_path)):
        assert fingerprint(load_records(*place)) == split.facts["parts"]["train"]["fingerprint"]


@pytest.mark.parametrize("seed", range(6))
def test_copies_of_a_video_stay_together(tmp_path: Path, seed: int) -> None:
    rows = [row(f"r{n}", f"v/{n}.mp4") for n in range(6)]
    root = dataset(tmp_path / "data", rows)
    for n in (1, 3):
        (root / f"v/{n}.mp4").write_bytes((root / f"v/{n + 1}.mp4").read_bytes())
    made = split_dataset(root, "", tmp_path / "out", 0.4, seed, "kind")
    assert [problem.code for problem in made.warnings] == ["DATATOOLS_DUPLICATES"] * 2
    held = {record.id for record in load_records(tmp_path / "out" / "val")}
    assert held and len(held & {"r1", "r2"}) != 1 and len(held & {"r3", "r4"}) != 1


def test_absolute_names_are_kept_and_say_so(tmp_path: Path) -> None:
    root = dataset(tmp_path / "data", [row(f"r{n}", f"{n}.mp4") for n in range(4)])
    rows = [row(f"r{n}", str(root / f"{n}.mp4")) for n in range(4)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    made = split_dataset(tmp_path / "a.json", "", tmp_path / "out", 0.25, 0, "kind")
    assert not made.is_rooted
    assert len(load_records(tmp_path / "out" / "train" / "annotations.json", made.media_path)) == 3


def test_rows_without_ids_keep_those_of_their_place(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row("", f"{n}.mp4").items() if k != "id"} for n in range(6)]
    root = dataset(tmp_path / "data", rows)
    split_dataset(root, "", tmp_path / "out", 0.5, 0, "kind")
    ids = [{r.id for r in load_records(tmp_path / "out" / part)} for part in ("train", "val")]
    assert ids[0] | ids[1] == {str(n) for n in range(6)} and not ids[0] & ids[1]


def codes(stopped: pytest.ExceptionInfo[ProblemError]) -> list[str]:
    return [problem.code for problem in stopped.value.problems]


def test_the_same_split_again_writes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    root, out = dataset(tmp_path / "data", [row(f"r{n}", f"v/{n}.mp4") for n in range(9)]), tmp_path / "out"
    split_dataset(root, "", out, 0.3, 0, "kind")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert not split_dataset(root, "", out, 0.3, 0, "kind").written
    with pytest.raises(ProblemError) as stopped:
        split_dataset(root, "", out, 0.3, 1, "kind")
    assert set(codes(stopped)) == {"OUTPUT_EXISTS"}
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == before


def test_a_folder_in_the_place_of_a_link_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    root, out = dataset(tmp_path / "data", [row(f"r{n}", f"v/{n}.mp4") for n in range(9)]), tmp_path / "out"
    (out / "val" / "v").mkdir(parents=True)
    with pytest.raises(ProblemError) as stopped:
        split_dataset(root, "", out, 0.3, 0, "kind")
    assert codes(stopped) == ["OUTPUT_EXISTS"] and not list(out.rglob("*.json"))


@pytest.mark.parametrize("share", [0, 1, -0.1, 2, float("nan")])
def test_a_share_must_leave_both_parts_something(tmp_path: Path, share: float) -> None:
    with pytest.raises(ProblemError) as stopped:
        split_dataset(tmp_path, "", tmp_path / "out", share, 0, "kind")
    assert codes(stopped) == ["USAGE"]


def test_one_video_cannot_be_split_and_a_large_one_is_warned_of(tmp_path: Path) -> None:
    one = dataset(tmp_path / "one", [row(f"r{n}", "v/a.mp4") for n in range(3)])
    with pytest.raises(ProblemError) as stopped:
        split_dataset(one, "", tmp_path / "out", 0.3, 0, "kind")
    assert codes(stopped) == ["DATA_SPLIT"] and not (tmp_path / "out").exists()
    two = dataset(tmp_path / "two", [row(f"r{n}", f"v/{n % 2}.mp4") for n in range(20)])
    made = split_dataset(two, "", tmp_path / "out", 0.1, 0, "kind")
    assert [problem.code for problem in made.warnings] == ["DATATOOLS_SPLIT"]


def test_the_script_leads_to_a_spec_that_reads_both_parts(tmp_path: Path) -> None:
    root = dataset(tmp_path / "data", [row(f"r{n}", f"v/{n}.mp4") for n in range(9)])
    rows = [row(f"a{n}", str(root / f"v/{n}.mp4")) for n in range(9)]
    (tmp_path / "absolute.json").write_text(json.dumps(rows))
    script = [sys.executable, str(SKILL_ROOT / "scripts/split_dataset.py"), "--json"]
    for number, source in enumerate((root, tmp_path / "absolute.json")):
        words = ["--annotations", str(source), "--out", f"out{number}", "--share", "0.3"]
        done = run_here([*script, *words], cwd=tmp_path)
        said = json.loads(done.stdout)
        assert done.returncode == 0 and said["data"]["parts"]["val"]["records"] == 3, said
        assert said["data"]["root_mode"] == (number == 0)
        for line in said["next"]:
            built = run_next(line, cwd=tmp_path)
            assert built.returncode == 0, built.stderr
        evaluation = (tmp_path / "before.toml").read_text()
        training = (tmp_path / "train.toml").read_text()
        assert f"out{number}/val/annotations.json" in evaluation and f"out{number}/train/annotations.json" in training
        assert "/val/" not in training  # what is scored chooses no weights
        for name in ("before.toml", "train.toml"):
            (tmp_path / name).unlink()
    assert [part_named(f"{tmp_path}/{place}") for place in ("out0/train", "out0/val/annotations.json", "data")] == [
        "train",
        "val",
        None,
    ]
    assert part_named(f"{root}#train[:5]") == "train" and part_named(f"{root}#[:5]") is None


def test_a_file_that_is_missing_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    """Until the spec, which can leave it out; a folder without any of the files is another one."""
    rows = [row(f"c{n}", f"v{n}.mp4") for n in range(6)]
    folder = dataset(tmp_path / "set", rows)
    (folder / "v2.mp4").unlink()
    converted = convert(folder / "annotations.json", tmp_path / "all/annotations.json", "llava", media_path=str(folder))
    split = split_dataset(converted.files[0], folder, tmp_path / "parts", 0.5, 0, "kind")
    for problems in (converted.problems, split.warnings):
        found = [(problem.code, problem.severity) for problem in problems if problem.code.startswith("DATA_MEDIA")]
        assert found == [("DATA_MEDIA_MISSING", "warning")]
    assert split.is_rooted
    for part in ("train", "val"):
        records = load_records(tmp_path / "parts" / part, keep_missing=True)
        assert len(records) == 3
        missing = [medium.written for each in records for medium in each.media if not Path(medium.path).exists()]
        assert missing == ["v2.mp4"] * any(each.id == "c2" for each in records)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProblemError, match="DATA_MEDIA_MISSING"):
        split_dataset(converted.files[0], tmp_path / "empty", tmp_path / "other", 0.5, 0, "kind")
