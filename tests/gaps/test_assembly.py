"""Assembly: what the new set holds, where each row comes from, and that rows which leak are left out."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from programs import run_here
from test_leaks import plain, scene, write

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.data import load_records
from vidqa.datatools.outputs import json_list
from vidqa.gaps.curation.assembly import Assembly, assemble, warnings
from vidqa.gaps.curation.rows import read_columns, read_rows


def write_set(root: Path, clips: dict[str, np.ndarray], rows: list[dict[str, Any]]) -> Path:
    for name, frames in clips.items():
        write(root / f"{name}.mp4", frames)
    found = []
    for number, row in enumerate(rows):
        turns = [{"from": "human", "value": f"<video>\n{row['question']}"}, {"from": "gpt", "value": row["answer"]}]
        others = {name: value for name, value in row.items() if name not in ("question", "answer", "video")}
        found.append({"id": f"q{number}", "video": f"{row['video']}.mp4", **others, "conversations": turns})
    (root / "annotations.json").write_text(json.dumps(found))
    return root


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sets")
    asked = [{"video": "a", "question": f"Is it {n}?", "answer": "no", "kind": f"k{n % 2}"} for n in range(12)]
    new = [
        {"video": "b", "question": f"Is it {n}?", "answer": "yes" if n < 6 else "no", "kind": "open", "shift": "night"}
        for n in range(8)
    ]
    mined = {"origin": "mined", "round": 2, "gap": "g1"}
    new[0] |= {"provenance": mined, "curation": {"similarity": 0.9}}
    return {
        "base": write_set(root / "base", {"a": scene(40)}, asked),
        "new": write_set(root / "new", {"b": scene(41, view=2)}, new),
        "kpi": write_set(root / "kpi", {"c": scene(42, view=3)}, [{"video": "c", "question": "Why?", "answer": "x"}]),
    }


def request(sets: dict[str, Path], out: Path, **over: Any) -> Assembly:
    return Assembly(**{"base": sets["base"], "add": (sets["new"],), "out": out, "kpi": (str(sets["kpi"]),), **over})


def test_rows_say_where_they_come_from_and_ids_are_unique(sets: dict[str, Path], tmp_path: Path) -> None:
    made = assemble(request(sets, tmp_path, balance=False, round=3))
    records = load_records(tmp_path / "annotations.json")
    assert len(records) == 20 and len({record.id for record in records}) == 20
    origins = Counter((r.provenance.origin, r.provenance.round) for r in records if r.provenance)
    assert origins == {("base", None): 12, ("mined", 2): 1, ("generated", 3): 7}
    rows = json.loads((tmp_path / "annotations.json").read_text())
    assert rows[12]["curation"] == {"similarity": 0.9} and rows[12]["shift"] == "night"
    assert rows[12]["provenance"]["gap"] == "g1" and rows[12]["id"] == "q0-r3"
    assert made.as_dict()["by_origin"] == {"base": 12, "mined": 1, "generated": 7}
    assert json.loads((tmp_path / "leaks.json").read_text()) == [] and warnings(made, request(sets, tmp_path)) == []


def test_answers_are_balanced_capped_and_replayed(sets: dict[str, Path], tmp_path: Path) -> None:
    made = assemble(request(sets, tmp_path / "a", replay=2))
    answers = Counter(row["conversations"][1]["value"] for row in made.rows[8:])
    assert answers == {"yes": 2, "no": 2} and made.left_out["more of one answer"] == 4
    assert Counter(row["kind"] for row in made.rows[:8]) == {"k0": 4, "k1": 4}
    again = assemble(request(sets, tmp_path / "b", replay=2))
    assert again.rows == made.rows
    capped = assemble(request(sets, tmp_path / "c", max_per_kind=3, balance=False))
    assert capped.as_dict()["by_origin"]["base"] == 12 and len(capped.rows) == 15


def test_replay_thins_the_first_base_set_and_keeps_what_earlier_rounds_have_added(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    assemble(request(sets, tmp_path / "one", balance=False))
    joined = tmp_path / "one" / "annotations.json"
    rows = [{"video": "d", "question": "How many?", "answer": "two"}]
    later = write_set(tmp_path / "later", {"d": scene(51)}, rows)
    made = assemble(Assembly(base=joined, add=(later,), out=tmp_path / "two", replay=0.5, round=4))
    assert made.as_dict()["by_origin"] == {"base": 4, "mined": 1, "generated": 8}


def test_an_assembled_set_is_the_base_of_the_next_round(sets: dict[str, Path], tmp_path: Path) -> None:
    assemble(request(sets, tmp_path / "one", balance=False))
    again = assemble(request(sets, tmp_path / "two", base=tmp_path / "one", add=(sets["kpi"],), kpi=()))
    assert again.as_dict()["by_origin"] == {"base": 12, "mined": 1, "generated": 8}


def test_rows_that_leak_are_left_out_and_named(sets: dict[str, Path], tmp_path: Path) -> None:
    """Both questions about the leaking clip go, and no other row."""
    rows = [{"video": "d", "question": question, "answer": "y"} for question in ("What?", "Where?")]
    leaking = write_set(tmp_path / "leaking", {"d": scene(42, view=3)[8:30]}, rows)
    over = request(sets, tmp_path / "out", add=(sets["new"], leaking), balance=False)
    made = assemble(over)
    assert made.left_out["leaking"] == 2 and made.as_dict()["leaks"] > 0
    assert made.rows == assemble(request(sets, tmp_path / "without", balance=False)).rows
    (warning,) = warnings(made, over)
    assert (warning.code, warning.severity) == ("CURATION_LEAK", "warning")
    assert "2 new rows were left out" in warning.message and "q0 of kpi (same moments)" in warning.message
    (pair,) = [
        pair for pair in json.loads((tmp_path / "out/leaks.json").read_text()) if pair["reason"] != "the same id"
    ]
    assert pair["new_media"].endswith("d.mp4") and pair["protected_media"].endswith("c.mp4")


def test_where_all_new_rows_leak_nothing_is_assembled(sets: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"video": "d", "question": "What?", "answer": "y"}]
    leaking = write_set(tmp_path / "leaking", {"d": scene(42, view=3)[8:30]}, rows)
    with pytest.raises(ProblemError, match=r"(?s)CURATION_NOTHING_NEW.*q0 of kpi \(same moments\)"):
        assemble(request(sets, tmp_path / "out", add=(leaking,)))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["leaks.json"]


def test_clips_too_plain_to_tell_are_a_warning(sets: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"video": "p", "question": "What?", "answer": "y"}]
    kept = write_set(tmp_path / "kept", {"p": plain(40, (0, 2, 4))}, rows)
    new = write_set(tmp_path / "new", {"p": plain(40, (0, 1, 3))}, [rows[0] | {"question": "Which?"}])
    over = request(sets, tmp_path / "out", add=(new,), kpi=(str(kept),))
    made = assemble(over)
    (warning,) = warnings(made, over)
    assert warning.severity == "warning" and "possible duplicate (low-detail frames)" in warning.message
    assert (made.as_dict()["leaks"], made.as_dict()["too_plain_to_tell"]) == (0, 1)


def test_rows_that_the_base_set_has_are_no_news(sets: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="CURATION_NOTHING_NEW"):
        assemble(Assembly(base=sets["base"], add=(sets["base"],), out=tmp_path))


@pytest.mark.parametrize("name", ["base", "new", "kpi"])
def test_no_set_that_is_read_is_replaced(sets: dict[str, Path], name: str) -> None:
    before = (sets[name] / "annotations.json").read_bytes()
    with pytest.raises(ProblemError, match="OUTPUT_EXISTS"):
        assemble(request(sets, sets[name]))
    assert (sets[name] / "annotations.json").read_bytes() == before


def test_without_protected_sets_there_is_a_warning(sets: dict[str, Path], tmp_path: Path) -> None:
    plain = request(sets, tmp_path, kpi=())
    (warning,) = warnings(assemble(plain), plain)
    assert (warning.code, warning.severity) == ("CURATION_LEAK", "warning")


def test_add_given_again_adds_and_a_second_protected_set_is_refused(sets: dict[str, Path], tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(SKILL_ROOT / "scripts/assemble_dataset.py"),
        "--base",
        str(sets["base"] / "annotations.json"),
    ]
    again = [word for name in ("new", "base") for word in ("--add", str(sets[name] / "annotations.json"))]
    made = run_here([*script, *again, "--out", "a", "--json"], cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    rows = json.loads((tmp_path / "a/annotations.json").read_text())
    assert {row["provenance"]["origin"] for row in rows} > {"base"}
    kpi = [word for name in ("kpi", "base") for word in ("--kpi", str(sets[name] / "annotations.json"))]
    refused = run_here([*script, *again, *kpi, "--out", "b"], cwd=tmp_path)
    assert refused.returncode == 2 and "one set each" in refused.stderr
    no_folder = run_here([*script, *again, "--out", "a/annotations.json"], cwd=tmp_path)
    assert no_folder.returncode == 4 and "ENV_FILE_REFUSED at a/annotations.json" in no_folder.stderr


def test_a_folder_of_mining_gives_what_had_answers_and_what_a_person_has_answered(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    mined = tmp_path / "mined"
    clip = str(write_set(mined, {"m": scene(44, view=4)}, []) / "m.mp4")
    (mined / "annotations.json").unlink()
    turns = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "A cup."}]
    rows = [{"id": name, "video": clip, "conversations": turns} for name in ("had", "answered")]
    unused = {"kind": None, "provenance": {}, "curation": {}}
    tasks = [
        {"id": name, "media": clip, "medium": "video", "question": "Why?", **unused} for name in ("answered", "open")
    ]
    (mined / "tasks.json").write_text(json.dumps(tasks))
    (mined / "mined.json").write_bytes(json_list([]))
    over = request(sets, tmp_path / "out", add=(mined,), replay=0)
    with pytest.raises(ProblemError, match=r"(?s)CURATION_INPUT.*label_samples.py --tasks .*/mined/tasks.json"):
        assemble(over)
    rows[1]["conversations"] = [{"from": "human", "value": "Why?"}, turns[1]]
    (mined / "labelled.json").write_bytes(json_list(rows[1:]))
    assert [row["id"] for row in assemble(over).rows] == ["answered"]
    (mined / "mined.json").write_bytes(json_list(rows[:1]))
    assembled = assemble(over)
    assert [row["id"] for row in assembled.rows] == ["had", "answered"]
    assert assembled.left_out["without an answer"] == 1


def gap_table(place: Path, rows: list[tuple[str, str | None, str]]) -> Path:
    names = ("sample_id", "response", "error_type")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), place)
    return place


def test_pairs_are_the_rows_with_a_wrong_answer(sets: dict[str, Path], tmp_path: Path) -> None:
    rows = [("q1", "yes", "wrong"), ("q2", "maybe so", "unparsed"), ("q3", None, "missing"), ("q4", " ", "empty")]
    rows += [("q5", "no", "wrong"), ("elsewhere", "yes", "wrong"), ("q1", "perhaps", "wrong")]
    gaps = gap_table(tmp_path / "gaps.parquet", rows)
    made = assemble(request(sets, tmp_path / "out", add=(), pairs=gaps))
    records = {record.id: record for record in load_records(tmp_path / "out/annotations.json")}
    assert {name: (r.answer, r.rejected) for name, r in records.items()} == {
        "q1": ("no", "yes"),
        "q2": ("no", "maybe so"),
    }
    left_out = {"gaps without an answer": 2, "rejected answer equals the right one": 1, "gaps of other sets": 1}
    assert made.as_dict()["left_out"] == left_out


def test_pairs_of_a_protected_set_are_left_out(sets: dict[str, Path], tmp_path: Path) -> None:
    gaps = gap_table(tmp_path / "gaps.parquet", [("q1", "yes", "wrong")])
    with pytest.raises(ProblemError, match="leak"):
        assemble(request(sets, tmp_path / "out", add=(), pairs=gaps, kpi=(str(sets["base"]),)))


@pytest.mark.parametrize(
    ("rows", "code"), [([("x", "yes", "wrong")], "CURATION_NOTHING_NEW"), (None, "CURATION_INPUT")]
)
def test_a_table_without_pairs_is_a_problem(sets: dict[str, Path], tmp_path: Path, rows: Any, code: str) -> None:
    gaps = tmp_path / "gaps.parquet"
    gap_table(gaps, rows) if rows else gaps.write_text("no table")
    with pytest.raises(ProblemError) as wrong:
        assemble(request(sets, tmp_path / "out", add=(), pairs=gaps))
    assert [problem.code for problem in wrong.value.problems] == [code]


def test_columns_of_other_types_are_read_as_text_or_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"sample_id": [1, None], "response": [[1], [2]]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    assert read_columns(tmp_path / "t.parquet", "sample_id") == [{"sample_id": "1"}, {"sample_id": None}]
    with pytest.raises(ProblemError, match="CURATION_INPUT"):
        read_columns(tmp_path / "t.parquet", "response")


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_rows_with_other_ids_are_passed_over_whatever_is_wrong_with_them(tmp_path: Path, ending: str) -> None:
    turns = [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "this"}]
    rows: list[Any] = [{"conversations": turns}, {"id": "b", "wrong": 1}, 3, {"conversations": turns}, {"id": 7}]
    text = json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows))
    (tmp_path / f"rows.{ending}").write_text(text)
    assert [record.id for _, record in read_rows(tmp_path / f"rows.{ending}", only={"3", "none"})] == ["3"]
    assert read_rows(tmp_path / f"rows.{ending}", only={"none"}) == []
    with pytest.raises(ProblemError, match="DATA_FIELD"):
        read_rows(tmp_path / f"rows.{ending}", only={"7"})
