"""Annotations of every accepted shape, and every way in which they can be wrong."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import ProblemError
from vidqa.data import Record, check_records, load_records

QUESTION = "Is the door open?"


def turns(question: str = f"<video>\n{QUESTION}", answer: str = "Yes") -> list[dict[str, str]]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]


def row(**changes: Any) -> dict[str, Any]:
    return {"id": "r", "video": "a.mp4", "conversations": turns(), **changes}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.mp4", "b.mp4", "c.png"):
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def write(root: Path, rows: Any, name: str = "annotations.json") -> Path:
    path = root / name
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def load_one(root: Path, annotation: dict[str, Any], **options: Any) -> Record:
    return load_records(write(root, [annotation]), **options)[0]


def problems_of(root: Path, *rows: Any) -> list[Any]:
    return check_records(write(root, list(rows)))[1]


def only_problem(root: Path, *rows: Any) -> Any:
    found = problems_of(root, *rows)
    assert len(found) == 1, found
    return found[0]


def test_llava_record(root: Path) -> None:
    record = load_one(root, row(id=7, video_fps=29.97, question_type="yes_no"))
    assert (record.id, record.video_fps, record.kind, record.source) == ("7", 29.97, "yes_no", "annotations.json[0]")
    assert [(turn.role, turn.parts) for turn in record.turns] == [("user", (0, QUESTION)), ("assistant", ("Yes",))]
    (medium,) = record.media
    assert (medium.kind, medium.written, medium.path, medium.size) == ("video", "a.mp4", str(root / "a.mp4"), 1)
    assert (record.question, record.answer) == (QUESTION, "Yes")


def test_all_shapes_of_one_question_give_the_same_turns(root: Path) -> None:
    said = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Yes"}]
    parts = [{"type": "video", "video": "a.mp4"}, {"type": "text", "text": QUESTION}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Yes"}]}
    url = {"type": "video_url", "video_url": {"url": f"file://{root}/a.mp4"}}
    shapes = [
        {"video": "a.mp4", "conversations": turns()},
        {"video": ["a.mp4"], "conversations": turns(QUESTION)},
        {"videos": ["a.mp4"], "conversations": turns(f"\n<video>\n{QUESTION}")},
        {"video": "a.mp4", "conversations": turns(f"<image>\n{QUESTION}")},
        {"video": "a.mp4", "messages": said},
        {"messages": [{"role": "user", "content": parts}, answer]},
        {"video": "a.mp4", "messages": [{"role": "user", "content": parts}, answer]},
        {"videos": ["a.mp4"], "messages": [{"role": "user", "content": [{"type": "video"}, parts[1]]}, answer]},
        {"messages": [{"role": "user", "content": [url, parts[1]]}, answer]},
    ]
    records = load_records(write(root, shapes))
    assert [record.id for record in records] == [str(at) for at in range(len(shapes))]
    assert {record.turns for record in records} == {records[0].turns}
    assert {record.media[0].path for record in records} == {str(root / "a.mp4")}


def test_several_media_and_turns_keep_their_places(root: Path) -> None:
    said = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "First <video> then <image> and <video>?"},
        {"from": "gpt", "value": "b is later"},
        {"from": "human", "value": "Why?"},
        {"from": "gpt", "value": "It says <video>"},
    ]
    record = load_one(root, row(video=["a.mp4", "b.mp4"], image="c.png", conversations=said))
    assert [medium.written for medium in record.media] == ["a.mp4", "c.png", "b.mp4"]
    assert record.turns[1].parts == ("First ", 0, " then ", 1, " and ", 2, "?")
    assert record.turns[4].parts == ("It says <video>",)
    assert [turn.role for turn in record.turns] == ["system", "user", "assistant", "user", "assistant"]


def test_without_tags_media_come_first_in_the_first_user_turn(root: Path) -> None:
    said = [{"from": "system", "value": "Be brief."}, *turns(QUESTION), *turns("And now?", "No")]
    record = load_one(root, row(videos=["a.mp4"], video="b.mp4", conversations=said))
    assert record.turns[1].parts == (0, 1, QUESTION)
    assert record.turns[3].parts == ("And now?",)
    assert [medium.written for medium in record.media] == ["b.mp4", "a.mp4"]


def test_jsonl_bom_and_blank_lines(root: Path) -> None:
    path = root / "set.jsonl"
    lines = [json.dumps(row(id=name, conversations=turns(answer="ja — öffnen")), ensure_ascii=False) for name in "xy"]
    path.write_text("\ufeff" + "\n\n".join(lines) + "\n", encoding="utf-8")
    records = load_records(path)
    assert [record.id for record in records] == ["x", "y"]
    assert records[1].answer == "ja — öffnen"
    assert records[1].source == "set.jsonl[1]"


def test_root_mode_and_direct_mode(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    write(root, [row()])
    assert load_records(root)[0].media[0].path == str(root / "a.mp4")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = write(elsewhere, [row(), row(id="s", video=str(root / "b.mp4"))])
    assert [record.media[0].path for record in load_records(path, root)] == [str(root / "a.mp4"), str(root / "b.mp4")]


def test_media_must_stay_in_their_folder(root: Path) -> None:
    inner = root / "inner"
    inner.mkdir()
    (inner / "d.mp4").write_bytes(b"x")
    outside, tricky, absolute = row(video="../a.mp4"), row(id="s", video="x/../../a.mp4"), row(id="t")
    absolute["video"] = str(root / "a.mp4")
    good = row(id="u", video="x/../d.mp4")
    write(inner, [outside, tricky, absolute, good])
    records, problems = check_records(inner)
    assert [problem.code for problem in problems] == ["DATA_MEDIA_OUTSIDE_ROOT"] * 3
    assert [record.id for record in records] == ["u"]
    records, problems = check_records(inner / "annotations.json", inner)  # direct mode keeps absolute names
    assert [record.id for record in records] == ["t", "u"]
    assert len(problems) == 2


def test_links_must_not_lead_out_of_a_set_of_its_own(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "secret.mp4").write_bytes(b"not yours")
    (root / "in.mp4").symlink_to("a.mp4")
    (root / "out.mp4").symlink_to(other / "secret.mp4")
    (root / "folder").symlink_to(other)
    rows = [row(id=name, video=name) for name in ("in.mp4", "out.mp4", "folder/secret.mp4")]
    for media in ("", root):  # root mode, and as a spec that was built from the folder names it
        records, problems = check_records(write(root, rows) if media else write(root, rows).parent, media)
        assert [record.id for record in records] == ["in.mp4"]
        assert [problem.code for problem in problems] == ["DATA_MEDIA_OUTSIDE_ROOT"] * 2
        assert "link" in problems[0].message and str(other) in problems[0].remedy
    linked = tmp_path_factory.mktemp("linked") / "set"
    linked.symlink_to(root)  # the folder itself may be reached by one
    assert [record.id for record in check_records(linked)[0]] == ["in.mp4"]
    named = write(other, rows, "mine.json")  # direct mode: the user says which folder holds the media
    assert len(load_records(named, root)) == 3


def test_an_archive_behind_a_link_is_outside(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    with tarfile.open(other / "videos.tar", "w") as tar:
        tar.add(root / "a.mp4", "packed.mp4")
    (root / "videos.tar").symlink_to(other / "videos.tar")
    write(root, [row(video="packed.mp4")])
    assert [problem.code for problem in check_records(root)[1]] == ["DATA_MEDIA_OUTSIDE_ROOT"]


def test_a_snapshot_in_the_cache_of_the_hub_is_a_set_of_its_own(tmp_path: Path) -> None:
    repository = tmp_path / "hub/datasets--a--b"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs/1f").write_bytes(b"x")
    snapshot = repository / "snapshots/abc"
    (snapshot / "videos").mkdir(parents=True)
    (snapshot / "videos/a.mp4").symlink_to("../../../blobs/1f")
    write(snapshot, [row(video="videos/a.mp4")])
    assert len(load_records(snapshot)) == 1


def test_a_question_without_answer_is_enough_where_asked(root: Path) -> None:
    asked = row(conversations=turns()[:1])
    assert load_one(root, asked, need_answers=False).answer == ""
    assert only_problem(root, asked).code == "DATA_FIELD"


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"id": 1.5}, "DATA_FIELD", "id"),
        ({"id": True}, "DATA_FIELD", "id"),
        ({"id": ""}, "DATA_FIELD", "id"),
        ({"video": 3}, "DATA_FIELD", "video"),
        ({"video": ["a.mp4", None]}, "DATA_FIELD", "video[1]"),
        ({"video": "a\ud800.mp4"}, "DATA_FIELD", "video"),
        ({"video": "none.mp4"}, "DATA_MEDIA_MISSING", "video"),
        ({"video": "."}, "DATA_MEDIA_MISSING", "video"),
        ({"video": "a\0b.mp4"}, "DATA_MEDIA_MISSING", "video"),
        ({"video": "s3://bucket/a.mp4"}, "DATA_MEDIA_MISSING", "video"),
        ({"video_fps": "30"}, "DATA_FIELD", "video_fps"),
        ({"video_fps": 0}, "DATA_FIELD", "video_fps"),
        ({"video_fps": 10**400}, "DATA_FIELD", "video_fps"),
        ({"conversations": None}, "DATA_FIELD", "conversations"),
        ({"conversations": []}, "DATA_FIELD", "conversations"),
        ({"conversations": "hello"}, "DATA_FIELD", "conversations"),
        ({"conversations": ["hello"]}, "DATA_FIELD", "conversations[0]"),
        ({"conversations": [{"from": "robot", "value": "x"}]}, "DATA_FIELD", "conversations[0].from"),
        ({"conversations": [{"value": "x"}]}, "DATA_FIELD", "conversations[0].from"),
        ({"messages": [{"role": [], "content": "x"}], "conversations": None}, "DATA_FIELD", "messages[0].role"),
        ({"conversations": [{"from": "human"}]}, "DATA_FIELD", "conversations[0].content"),
        ({"conversations": [{"from": "human", "value": 4}]}, "DATA_FIELD", "conversations[0].value"),
        ({"conversations": turns("\ud800")}, "DATA_FIELD", "conversations[0].value"),
        ({"conversations": [{"from": "human", "value": [{"type": "audio"}]}]}, "DATA_FIELD", "value[0]"),
        ({"conversations": list(reversed(turns()))}, "DATA_FIELD", "conversations[0]"),
        ({"conversations": turns(QUESTION)[:1] * 2}, "DATA_FIELD", "conversations[1]"),
        ({"conversations": turns(answer=" \n")}, "DATA_FIELD", "conversations[1]"),
        ({"video": None, "conversations": turns(" ")}, "DATA_FIELD", "conversations[0]"),
        ({"conversations": turns("<video><video> Why?")}, "DATA_TAG_COUNT", ""),
        ({"conversations": turns("<video><image> Why?")}, "DATA_TAG_COUNT", ""),
        ({"video": None}, "DATA_TAG_COUNT", ""),
    ],
)
def test_a_wrong_record_names_its_code_place_and_remedy(
    root: Path, changes: dict[str, Any], code: str, field: str
) -> None:
    good = row(id="good")
    path = write(root, [good, row(**changes)])
    records, problems = check_records(path)
    assert [record.id for record in records] == ["good"]
    errors = [problem for problem in problems if problem.severity == "error"]
    assert [problem.code for problem in errors] == [code]
    assert errors[0].where.startswith(f"{path}[1]")
    assert errors[0].where.endswith(field)
    assert len(errors[0].remedy) > 10


@pytest.mark.parametrize("medium", ["data:video/mp4;base64," + "A/" * 50, "A/" * 3000])
def test_a_medium_in_base64_is_refused_with_a_short_message(root: Path, medium: str) -> None:
    problem = only_problem(root, row(video=medium))
    assert problem.code == "DATA_MEDIA_MISSING" and "local file" in problem.remedy and len(problem.message) < 150


def test_a_misspelt_name_of_the_media_is_shown(root: Path) -> None:
    problem = only_problem(root, {**row(video=None), "vidio": "videos/a.mp4"})
    assert problem.code == "DATA_TAG_COUNT"
    assert '"video": "clip-1.mp4"' in problem.remedy and "vidio" in problem.remedy


@pytest.mark.parametrize("value", [None, 3, "x", [1]])
def test_rows_that_are_no_objects(root: Path, value: Any) -> None:
    assert only_problem(root, value).code == "DATA_FIELD"


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("", "DATA_EMPTY", ""),
        ("[]", "DATA_EMPTY", ""),
        ('[{"id": 1},\n {"id" 2}]', "DATA_SYNTAX", ":2"),
        ('{"id": 1}\n{"id" 2}\n{"id": 3', "DATA_SYNTAX", ":2"),
        ("[" * 100_000, "DATA_SYNTAX", ":1"),
        ('{"annotations": [1, 2]\n}', "DATA_FIELD", ""),
        ('"text"', "DATA_FIELD", ""),
        ("nonsense", "DATA_SYNTAX", ":1"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, code: str, place: str) -> None:
    path = tmp_path / "annotations.json"
    path.write_text(text)
    with pytest.raises(ProblemError) as raised:
        load_records(path)
    codes = {problem.code: problem.where for problem in reversed(raised.value.problems)}
    assert codes[code] == f"{path}{place}"
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("depth", [100, 400, 700, 100_000])
@pytest.mark.parametrize("name", ["annotations.json", "annotations.jsonl"])
def test_a_record_that_is_nested_too_deeply_is_left_out_and_named(root: Path, name: str, depth: int) -> None:
    good, deep = json.dumps(row(id="good")), json.dumps(row(note=1)).replace("1}", "[" * depth + "]" * depth + "}")
    path = root / name
    path.write_text(f"[{good},\n{deep}]" if name.endswith("json") else f"{good}\n{deep}\n")
    records, (problem,) = check_records(path)
    assert problem.code == "DATA_SYNTAX" and "nested too deeply" in problem.message
    assert [record.id for record in records] == ["good"] or (depth > 700 and name.endswith("json"))
    assert load_one(root, row(note=json.loads("[" * 60 + "]" * 60))).id == "r"


RECORDS = json.dumps([row(id=name, conversations=turns(answer="1 é")) for name in "abc"], ensure_ascii=False)
LINES = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in json.loads(RECORDS))


@pytest.mark.parametrize("text", [RECORDS, LINES], ids=["list", "lines"])
def test_a_file_that_was_cut_off_says_how_much_of_it_is_whole(root: Path, text: str) -> None:
    path, raw = root / "set.jsonl", text.encode()
    starts = [at for at in range(len(raw)) if raw[at:].startswith(b'{"id"')]
    said = {
        number: f"in the middle of record {number + 1}, {are} complete"
        for number, are in enumerate(("none is", "1 is", "2 are"))
    }
    for length in range(starts[0] + 1, len(raw) - 1):
        path.write_bytes(raw[:length])
        number = sum(start < length for start in starts) - 1
        _, problems = check_records(path)
        if not problems or "UTF-8" in problems[0].message:  # lines end between records; a torn line is text no more
            assert text is LINES
            continue
        (problem,) = problems
        assert problem.code == "DATA_SYNTAX" and "write or copy it again" in problem.remedy
        between = f"ends after {number + 1} whole record"
        assert said[number] in problem.message or between in problem.message, (length, problem)
    path.write_text('[{"id": "a"}, {"id" 2}, {"id": "c"}')
    problem = check_records(path)[1][-1]  # behind those of the whole record
    assert "at at" not in problem.message and "column" in problem.message  # wrong, not cut off
    path.write_text('[{"id": "a}]')
    assert "at at" not in check_records(path)[1][0].message


def test_missing_media_are_warned_of_where_records_are_kept(root: Path) -> None:
    path = write(root, [row(), row(id="s", video="none.mp4"), row(id="t", video="../a.mp4")])
    records, problems = check_records(path, keep_missing=True)
    assert [(problem.code, problem.severity) for problem in problems] == [
        ("DATA_MEDIA_MISSING", "warning"),
        ("DATA_MEDIA_OUTSIDE_ROOT", "error"),  # is not missing
    ]
    assert [(record.id, record.media[0].path) for record in records] == [
        ("r", str(root / "a.mp4")),
        ("s", str(root / "none.mp4")),
    ]
    for found in (problems[0], check_records(path)[1][0]):
        assert "--fix" in found.remedy and "quarantine" in found.remedy


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    path.write_bytes(b'[{"id": "\xff"}]')
    (problem,) = check_records(path)[1]
    assert (problem.code, "0xff" in problem.message) == ("DATA_SYNTAX", True)


@pytest.mark.parametrize("name", ["none.json", "", ".", "s-{0..1}.tar", "s-*.tar"])
def test_missing_annotation_files(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their full path is named, not only the part that the user wrote."""
    monkeypatch.chdir(tmp_path)
    (problem,) = check_records(name)[1]
    assert problem.code == "DATA_FILE_MISSING"
    assert problem.where == (str(tmp_path / name.replace("{0..1}", "0")) if name else "annotation_path")


def test_missing_media_folder(root: Path) -> None:
    path = write(root, [row()])
    assert [problem.code for problem in check_records(path, root / "none")[1]] == ["DATA_FILE_MISSING"]
    assert [problem.code for problem in check_records(path, root / "a.mp4")[1]] == ["DATA_FILE_MISSING"]


def test_same_id_twice_names_the_first(root: Path) -> None:
    problem = only_problem(root, row(id="7"), row(id="8"), row(id=7))
    assert problem.code == "DATA_FIELD"
    assert "[2]" in problem.where
    assert "record 0" in problem.message


def test_one_bad_record_shows_all_its_problems_and_hides_none_of_the_others(root: Path) -> None:
    bad = row(id=None, video="none.mp4", video_fps="fast", conversations=turns("<video><video>", ""))
    found = problems_of(root, bad, row(id="x", video="no.mp4"), row(id="ok"))
    assert {problem.code for problem in found} >= {"DATA_FIELD", "DATA_TAG_COUNT", "DATA_MEDIA_MISSING"}


def test_many_places_are_counted(root: Path) -> None:
    problems = problems_of(root, *(row(id=at, video="none.mp4") for at in range(1000)))
    assert len(problems) == 21
    assert "980 more" in problems[-1].message
    assert "1000 in all" in problems[-1].message


def test_messages_are_bounded(root: Path) -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    huge = "x" * 100_000
    problems = problems_of(root, row(id=huge, video=huge), row(id="b", video=deep), row(id="c", conversations=deep))
    assert len(problems) == 3
    assert max(len(str(problem)) for problem in problems) < 2000


def test_text_only_records_are_kept_with_a_warning(root: Path) -> None:
    records, problems = check_records(write(root, [row(video=None, conversations=turns(QUESTION))]))
    assert records[0].media == ()
    assert [(problem.code, problem.severity) for problem in problems] == [("DATA_FIELD", "warning")]
    assert len(load_records(root / "annotations.json")) == 1


@pytest.mark.parametrize("answer", [3.5, True, ["So", "Thus"], None])
def test_a_flat_question_needs_one_text_as_its_answer(root: Path, answer: Any) -> None:
    assert load_one(root, {"video": "a.mp4", "question": "How many?", "answer": 3}).answer == "3"  # a column of counts
    assert only_problem(root, {"video": "a.mp4", "question": "Why?", "answer": answer}).code == "DATA_FIELD"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"options": "a cup|a box"}, "options"),
        ({"A": "a cup", "B": "a box"}, "A, B"),
        ({"choices": ["A. a cup", "B. a box"]}, "choices"),
        ({"options": ["open", "closed"]}, ""),
        ({"candidates": ["A. open", "B. closed"]}, ""),
        ({"a": "open", "options": 7}, ""),
    ],
)
def test_options_that_the_question_does_not_list_are_named(root: Path, fields: dict[str, Any], names: str) -> None:
    flat = {"video": "a.mp4", "question": "Is it (A) open or (B) closed?", "answer": "A", **fields}
    problems = check_records(write(root, [flat]))[1]
    expected = [("DATA_OPTIONS", f"id '0' {names}")] if names else []
    assert [(problem.code, problem.where.partition(" ")[2]) for problem in problems] == expected


def test_a_name_with_a_folder_too_many_gets_the_right_name(root: Path) -> None:
    problem = only_problem(root, row(video="videos/a.mp4"))
    assert "'a.mp4'" in problem.remedy


@pytest.mark.parametrize(
    ("there", "written", "remedy"),
    [
        ("in/a.mp4", "in\\a.mp4", "folders are separated by / here: write 'in/a.mp4'"),
        ("a.mp4", "C:\\clips\\a.mp4", "write 'a.mp4'"),
        ("na\u00efve.mp4", "nai\u0308ve.mp4", "another Unicode form (NFC)"),
        ("nai\u0308ve.mp4", "na\u00efve.mp4", "another Unicode form (NFD)"),
    ],
)
def test_a_name_as_another_system_writes_it_gets_the_right_name(
    root: Path, there: str, written: str, remedy: str
) -> None:
    (root / there).parent.mkdir(exist_ok=True)
    (root / there).write_bytes(b"x")
    problem = only_problem(root, row(video=written))
    assert problem.code == "DATA_MEDIA_MISSING" and remedy in problem.remedy


@pytest.mark.parametrize(
    ("whole", "remedy"),
    [
        ({"data": [row()]}, "make that list the whole file"),
        ({"clip": row()}, "with its name as \"id\", as 'clip'"),
        ({"clip": {"video": "a.mp4", "question": "?", "answer": "Yes"}}, "with its name as \"id\", as 'clip'"),
    ],
)
def test_an_object_around_the_records_is_named(root: Path, whole: Any, remedy: str) -> None:
    path = write(root, whole)
    (problem,) = check_records(path)[1]
    assert problem.code == "DATA_FIELD" and remedy in problem.remedy


def test_a_folder_with_annotations_of_another_name_is_told_the_file(root: Path) -> None:
    path = write(root, [row()], "questions.json")
    with pytest.raises(ProblemError, match=f"(?s)DATA_FILE_MISSING.*name the file itself, such as {path}"):
        load_records(root)
