"""What every source of records does: one list of scenarios, run against each registered kind.

    from source_conformance import *    # in a test module that has a fixture `made`

`made(folder, rows)` keeps these rows in a way that the kind opens, beside the media that they name, and gives the path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vidqa.data import check_records, fingerprint, load_records, open_source
from vidqa.data.load import load_pairs
from vidqa.data.problems import ProblemCollector
from vidqa.data.record import Provenance
from vidqa.spec import Layer, resolve
from vidqa.spec.schedule import train_samples

Made = Callable[[Path, list[dict[str, Any]]], Path]


def row(name: str, answer: str = "Yes", **fields: Any) -> dict[str, Any]:
    turns = [{"from": "human", "value": "<video>\nIs it open?"}, {"from": "gpt", "value": answer}]
    return {"id": name, "video": "a.mp4", "conversations": turns, **fields}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.mp4").write_bytes(b"x")
    return tmp_path


def test_records_are_those_of_the_rows_in_their_order(folder: Path, made: Made) -> None:
    records = load_records(made(folder, [row("b", kind="door"), row("a", answer="No", video_fps=8)]))
    assert [(record.id, record.answer, record.kind, record.video_fps) for record in records] == [
        ("b", "Yes", "door", None),
        ("a", "No", None, 8.0),
    ]
    assert {record.media[0].path for record in records} == {str(folder / "a.mp4")}
    assert len({record.source for record in records}) == 2


@pytest.mark.parametrize(("test_size", "count"), [(None, 6), (3, 4), (0.5, 4)])
def test_its_training_samples_are_counted(folder: Path, made: Made, test_size: int | float | None, count: int) -> None:
    """Records of one video are on one side: of pairs, at most three records are one pair."""
    for name in "bc":
        (folder / f"{name}.mp4").write_bytes(b"x")
    path = made(folder, [row(str(number), video=f"{'abc'[number // 2]}.mp4") for number in range(6)])
    keys = {"custom.train_dataset.annotation_path": str(path), "train.train_policy.dataset.test_size": test_size}
    assert train_samples(resolve("train", [Layer("test", keys)]).spec) == count


def test_rows_are_given_again_and_are_those_of_the_records(folder: Path, made: Made) -> None:
    source = open_source(made(folder, [row("a"), row("b")]))
    findings = ProblemCollector(str(source.path))
    first, again = list(source.rows(findings)), list(source.rows(findings))
    assert first == again and not findings.problems
    pairs, warnings = load_pairs(source)
    assert [pair.row for pair in pairs] == [value for _, value in first] and warnings == []
    assert [pair.row["id"] for pair in pairs] == [pair.record.id for pair in pairs]


def test_what_is_wrong_is_named_and_hides_no_other_record(folder: Path, made: Made) -> None:
    path = made(folder, [row("a"), row("b", video="none.mp4"), row("c", answer=""), row("d")])
    records, problems = check_records(path)
    assert [record.id for record in records] == ["a", "d"]
    assert [problem.code for problem in problems] == ["DATA_MEDIA_MISSING", "DATA_FIELD"]
    assert "media_path or media_dir of a spec" in problems[0].remedy
    assert all(str(open_source(path).path) in problem.where for problem in problems)


def test_a_fingerprint_changes_with_a_row_and_not_with_its_place(
    folder: Path, made: Made, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = open_source(made(folder, [row("a")])).fingerprint()
    other = tmp_path_factory.mktemp("other")
    (other / "a.mp4").write_bytes(b"x")
    assert open_source(made(other, [row("a")])).fingerprint() == found
    assert open_source(made(other, [row("a", answer="No")])).fingerprint() != found


def test_media_lie_where_the_media_path_says(
    folder: Path, made: Made, tmp_path_factory: pytest.TempPathFactory
) -> None:
    media = tmp_path_factory.mktemp("media")
    (media / "b.mp4").write_bytes(b"xy")
    path = made(folder, [row("a", video="b.mp4")])
    assert open_source(path, media).media.root == str(media)
    assert load_records(path, media)[0].media[0].path == str(media / "b.mp4")


def test_provenance_is_read_and_changes_nothing_that_is_taught(folder: Path, made: Made) -> None:
    plain = load_records(made(folder, [row("a")]))
    mined = load_records(made(folder, [row("a", provenance={"origin": "mined", "round": 2, "gap": "q7"})]))
    assert plain[0].provenance is None
    assert mined[0].provenance == Provenance("mined", 2, "q7")
    assert mined[0].turns == plain[0].turns and fingerprint(mined) == fingerprint(plain)


def test_an_empty_source_is_a_problem(folder: Path, made: Made) -> None:
    assert [problem.code for problem in check_records(made(folder, []))[1]] == ["DATA_EMPTY"]


def test_a_part_is_cut_as_the_datasets_library_cuts_a_split(folder: Path, made: Made) -> None:
    path = str(made(folder, [row(name) for name in "abcde"]))
    if ".py:" in path:
        pytest.skip("what stands behind # is the function's argument")
    parts = {
        "#train[:2]": "ab",
        "#[1:3]": "bc",
        "#train[-2:]": "de",
        "#train[20%:60%]": "bc",
        "#train[:1]+train[4:]": "ae",
    }
    for part, names in {"": "abcde", "#train": "abcde", **parts}.items():
        assert "".join(record.id for record in load_records(path + part)) == names, part
    assert len({open_source(path + part).fingerprint() for part in ["", *parts]}) == 1 + len(parts)
    codes = {
        part: [problem.code for problem in check_records(path + part)[1]] for part in ("#test", "#x:train", "#[a:]")
    }
    assert set(map(tuple, codes.values())) == {("DATA_SPLIT",)}, codes
    assert [problem.code for problem in check_records(f"{path}#train[5:]")[1]] == ["DATA_EMPTY"]
