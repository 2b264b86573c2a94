"""results.json as we and as others write it, and every way in which it can be broken."""

import json
import math
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vidqa.core.problem import ProblemError
from vidqa.data.problems import SHOWN, ProblemCollector
from vidqa.data.record import MediaRef, Record, Turn
from vidqa.evaluation.answers import RULES
from vidqa.evaluation.results import (
    FIELDS,
    check_results,
    compare_recipes,
    json_items,
    judged,
    make_item,
    read_evaluation,
    read_results,
)
from vidqa.gaps.analysis.storage import is_judged

ROW = {"video_id": "a.mp4", "response": "Yes.", "question": "Is it?", "gt": "yes"}


def written(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


def codes(error):
    return [problem.code for problem in error.value.problems]


def test_make_item_from_a_record():
    turns = (Turn("user", (0, "Does it stop?")), Turn("assistant", ("No",)))
    record = Record("q7", turns, (MediaRef("video", "a.mp4", "/data/v.tar", "a.mp4"),))
    item = make_item(record, "<think>hm</think>No.")
    assert tuple(item) == FIELDS
    assert item["video_id"] == "/data/v.tar!a.mp4" and item["sample_id"] == "q7" and item["kind"] == "yes_no"
    assert item["correct"] is True and item["parsed_response"] == "no" and item["response"] == "<think>hm</think>No."
    assert make_item(record, None)["parse_status"] == "empty"
    assert make_item(Record("x", turns[:1]), "No")["correct"] is None


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([ROW, ROW]),
        json.dumps({"results": [ROW, ROW], "n": 2}),
        json.dumps({"n": 2, "results": [ROW, ROW]}, indent=2),
        json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n",
        json.dumps(ROW) + "\n\n" + json.dumps(ROW),
        "\ufeff" + json.dumps([ROW, ROW], indent=4),
    ],
)
def test_every_layout(tmp_path, text):
    items = read_results(written(tmp_path, text))
    assert [item["correct"] for item in items] == [True, True]


def test_a_list_larger_than_a_block(tmp_path):
    rows = [{**ROW, "sample_id": str(n), "response": "Yes, " + "é" * (n % 977)} for n in range(4000)]
    items = read_results(written(tmp_path, json.dumps(rows, ensure_ascii=False, indent=1)))
    assert [item["sample_id"] for item in items] == [row["sample_id"] for row in rows]
    assert [item["response"] for item in items] == [row["response"] for row in rows]


def test_null_and_missing_responses(tmp_path):
    rows = [{**ROW, "response": None}, {k: v for k, v in ROW.items() if k != "response"}]
    items, problems = check_results(written(tmp_path, json.dumps(rows)))
    assert [item["parse_status"] for item in items] == ["empty", "empty"]
    assert [(p.code, p.severity) for p in problems] == [("RESULTS_FORMAT", "warning")]
    assert problems[0].where.endswith("results.json[1]")


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("", "RESULTS_FORMAT", ""),
        ("hello", "RESULTS_FORMAT", ":1"),
        ('{"a": 1, "b": {}}\n{', "RESULTS_FORMAT", "[0]"),
        ('{"a": {"b": 1},\n "c": 2}', "RESULTS_FORMAT", ""),
        (json.dumps([ROW])[:-3], "RESULTS_FORMAT", "[0]"),
        (json.dumps([ROW, ROW])[:-1], "RESULTS_FORMAT", "[2]"),
        (b"\xff\xfe[]", "RESULTS_FORMAT", ""),
        (json.dumps([ROW, 3, None]), "RESULTS_FORMAT", "[1]"),
        (json.dumps([ROW, {"question": "q", "gt": "yes", "response": "yes"}]), "RESULTS_FORMAT", "[1]"),
        (json.dumps([{**ROW, "question": ["q"]}]), "RESULTS_FORMAT", "[0].question"),
        ("[" * 100_000, "RESULTS_FORMAT", "[0]"),
        ('[{"video_id": ' + "9" * 10_000 + "}]", "RESULTS_FORMAT", "[0]"),
        (json.dumps(ROW) + "\n{broken}\n" + json.dumps(ROW) + "\n", "RESULTS_FORMAT", ":2"),
        (json.dumps(ROW) + "\n\x1c\n" + json.dumps(ROW) + "\n", "RESULTS_FORMAT", ":2"),
    ],
)
def test_broken_files_are_problems(tmp_path, text, code, where):
    with pytest.raises(ProblemError) as error:
        read_results(written(tmp_path, text))
    assert code in codes(error)
    assert next(p for p in error.value.problems if p.code == code).where.endswith(f"results.json{where}")


def test_a_last_line_cut_by_a_kill_is_left_out(tmp_path):
    items, problems = check_results(written(tmp_path, json.dumps(ROW) + "\n" + json.dumps(ROW)[:20]))
    assert len(items) == 1
    assert [(p.code, p.severity) for p in problems] == [("RESULTS_FORMAT", "warning")]


def test_many_problems_are_bounded_and_counted(tmp_path):
    with pytest.raises(ProblemError) as error:
        read_results(written(tmp_path, json.dumps([1] * 500)))
    assert len(error.value.problems) == SHOWN + 1
    assert "480 more places" in error.value.problems[-1].message


def test_missing_file(tmp_path):
    with pytest.raises(ProblemError) as error:
        read_results(tmp_path / "no.json")
    assert codes(error) == ["RESULTS_FOLDER"]


def test_a_run_without_results(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "best.json").write_text("{}")
    with pytest.raises(ProblemError, match=r"no results\.json") as error:
        read_evaluation(tmp_path)
    assert codes(error) == ["RESULTS_FOLDER"]


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=20,
)
nearly = st.fixed_dictionaries({}, optional={name: anything for name in FIELDS})


@settings(max_examples=80, deadline=None)
@example(b"\xef\xbb\xbf")
@example(b"\x1c")  # blank to str.strip, and not to JSON
@given(
    st.one_of(
        anything.map(json.dumps), st.lists(nearly).map(json.dumps), nearly.map(json.dumps), st.text(), st.binary()
    )
)
def test_any_content_is_read_or_a_problem(tmp_path_factory, text):
    path = written(tmp_path_factory.mktemp("fuzz"), text)
    items, problems = check_results(path)
    json.dumps(items).encode()
    assert items or problems or json.loads(path.read_text()) in ([], {"results": []})


def test_recipes():
    a = {"model": {"path": "a"}, "vision": {"fps": 2}, "generation": {"max_tokens": 8}, "created": 1}
    assert compare_recipes(a, {**a, "model": {"path": "b"}, "created": 2}) == []
    assert compare_recipes(a, {**a, "vision": {"fps": 4}}) == ["vision.fps: 2 -> 4"]
    assert compare_recipes(a, {k: v for k, v in a.items() if k != "generation"}) == [
        "generation.max_tokens: 8 -> (absent)"
    ]


def test_an_answer_is_judged_once_and_again_only_where_the_rules_are_others(tmp_path):
    """Results beside a metrics.json of the present rules keep their verdict; those of others are judged."""
    item = {**judged(ROW), "correct": False, "parsed_response": "no"}
    path = written(tmp_path, json.dumps([item, ROW]))
    assert [row["correct"] for row in read_results(path)] == [True, True]
    (tmp_path / "metrics.json").write_text(json.dumps({"answer_rules": RULES}))
    assert [row["correct"] for row in read_results(path)] == [False, True]
    assert read_results(path)[0] == item and is_judged(str(path))
    for text in ('{"answer_rules": "vidqa.answers.v1"}', "[]", "{"):
        (tmp_path / "metrics.json").write_text(text)
        assert [row["correct"] for row in read_results(path)] == [True, True] and not is_judged(str(path))
    path.write_text(json.dumps([{**item, "parse_status": 3}]))
    (tmp_path / "metrics.json").write_text(json.dumps({"answer_rules": RULES}))
    assert [row["correct"] for row in read_results(path)] == [True]


HALF = {"video_id": "half \ud800 pair"}  # no file can hold it but escaped
ELEMENTS = [
    {"video_id": "a.mp4", "response": "Yes", "n": [1, 2.5, -3e4, None, True]},
    {"video_id": 'a "b" }, {"video_id": "c', "response": "}, {"},
    {"video_id": "ä\u2028\x7f", "turns": [{"video_id": 1}, {"video_id": 2}, {"from": "x"}]},
    {"other": {}, "video_id": "d"},
    {"video_id": 123456789012345678901234567890},
    HALF,
    {"video_id": float("inf"), "deep": [[[[{}]]]]},
    "text",
    7,
    [],
]


def values_of(text):
    problems = ProblemCollector("r.json")
    return list(json_items(text.encode(), "r.json", problems)), problems.problems


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("infinite", [False, True])
def test_values_are_those_of_the_json_module(indent, infinite):
    chance = random.Random(1)
    for _ in range(120):
        escaped = chance.random() < 0.5
        choice = [each for each in ELEMENTS if (escaped or each != HALF) and (infinite or "deep" not in str(each))]
        wanted = [chance.choice(choice) for _ in range(chance.randrange(1, 40))]
        found, problems = values_of(json.dumps(wanted, indent=indent, ensure_ascii=escaped))
        assert [value for _, value in found] == wanted and problems == []
        assert [index for index, _ in found] == list(range(len(wanted)))


@pytest.mark.parametrize("wrong", ["{'id': 1}", '{"id": 01}', '{"id": "a\nb"}', '{"id": 1]', "{", "nul"])
def test_the_first_wrong_element_is_named_and_the_ones_before_it_are_given(wrong):
    sound = [f'{{"id": "{number}"}}' for number in range(300)]
    found, problems = values_of(f"[{', '.join([*sound, wrong, *sound])}]")
    assert [value["id"] for _, value in found] == [str(number) for number in range(300)]
    assert [(problem.code, problem.where) for problem in problems] == [("RESULTS_FORMAT", "r.json[300]")]


def test_not_a_number_is_read_as_the_json_module_reads_it():
    found, problems = values_of('[{"id": 1}, {"id": NaN}, {"id": 3}]')
    assert math.isnan(found[1][1]["id"]) and len(found) == 3 and problems == []


def test_text_that_is_not_utf8_names_its_first_wrong_byte():
    problems = ProblemCollector("r.json")
    list(json_items(b'[{"id": "a"}, {"id": "\xff"}]', "r.json", problems))
    assert [(problem.code, problem.where) for problem in problems.problems] == [("RESULTS_FORMAT", "r.json")]
    assert "byte 22" in problems.problems[0].message
