"""Results that lack something, are damaged or belong nowhere: what becomes of each in one gap table."""

import json

import pyarrow.parquet as pq
import pytest

from vidqa.core.problem import ProblemError
from vidqa.gaps.analysis.analyze import OTHER_TRUTH, analyze
from vidqa.gaps.analysis.annotations import UNKNOWN


def annotation(number):
    turns = [{"from": "human", "value": f"<video>\nIs {number} there?"}, {"from": "gpt", "value": "yes"}]
    return {"id": f"k{number}", "video": f"clips/{number}.mp4", "conversations": turns}


def result(number, response, **more):
    named = {"video_id": f"clips/{number}.mp4", "sample_id": f"k{number}"}
    return {**named, "question": f"Is {number} there?", "gt": "yes", "response": response, **more}


@pytest.fixture
def analyzed(tmp_path):
    """`analyzed(results)` gives (gaps, rows of the table)."""
    (tmp_path / "kpi.json").write_text(json.dumps([annotation(number) for number in range(400)]))
    (tmp_path / "eval").mkdir()

    def run(text):
        (tmp_path / "eval/results.json").write_text(text)
        table = tmp_path / "gaps.parquet"
        try:
            found = analyze(str(tmp_path / "eval"), str(table), str(tmp_path / "kpi.json"))
        except ProblemError:
            assert not table.exists()
            raise
        return found, pq.read_table(table).to_pylist()

    return run


def test_results_that_lack_something_are_completed_from_their_annotation(analyzed):
    rows = [result(number, ("Yes.", "no", None, "who knows", "")[number % 5]) for number in range(350)]
    rows[7] |= {"gt": "", "response": "No"}  # the annotation has it
    rows[8] |= {"question": "", "response": "no"}
    rows[9] |= {"gt": "no"}
    rows[10] |= {"video_id": "other.mp4", "sample_id": "other"}
    rows[11] = rows[12]
    rows[13] |= {"response": "half a pair \ud800"}
    del rows[14]["response"]
    found, table = analyzed(json.dumps(rows))
    codes = {problem.code for problem in found.problems}
    assert codes >= {"GAPS_ANNOTATIONS", "GAPS_NO_RESULT", "RESULTS_TWICE"}
    joins = {problem.message.partition(": ")[2] for problem in found.problems if problem.code == "GAPS_ANNOTATIONS"}
    assert joins >= {UNKNOWN, OTHER_TRUTH}
    assert "RESULTS_FORMAT" in codes
    by_row = {row["row_index"]: row for row in table}
    assert (by_row[7]["ground_truth"], by_row[7]["error_type"]) == ("yes", "wrong")
    assert by_row[8]["question"] == "Is 8 there?"
    assert by_row[13]["response"] == "half a pair ?"
    assert 12 not in by_row and found.by_error["missing"] == 52  # 50 that were not evaluated, and 10's and 11's own
    assert found.count == len(table) > 200


@pytest.mark.parametrize(
    ("spoil", "places"),
    [
        (lambda text: text.replace('"gt": "yes"', '"gt": ["yes"]', 3), ["[0].gt", "[1].gt", "[2].gt"]),
        (lambda text: text[: len(text) // 2], ["[176]"]),
        (lambda text: text.replace('"video_id": "clips/200.mp4"', '"video_id": clips', 1), ["[200]"]),
        (lambda text: text.replace("[", "", 1), [":1"]),
        (lambda text: "", [""]),
    ],
)
def test_damaged_results_name_their_places_and_leave_no_table(analyzed, spoil, places):
    with pytest.raises(ProblemError) as stopped:
        analyzed(spoil(json.dumps([result(number, "Yes.") for number in range(350)])))
    errors = [problem.where for problem in stopped.value.problems if problem.severity == "error"]
    assert [where.partition("results.json")[2] for where in errors] == places
