"""Results read by a second process: the same table and problems as without one, and no process is left behind."""

import json
import multiprocessing
import time

import pyarrow.parquet as pq
import pytest

import vidqa.evaluation.gaps.judge
from vidqa.contract.problem import ProblemError
from vidqa.evaluation.gaps import analyze
from vidqa.evaluation.results import Bounded


def annotation(number):
    turns = [{"from": "human", "value": f"<video>\nIs {number} there?"}, {"from": "gpt", "value": "yes"}]
    return {"id": f"k{number}", "video": f"clips/{number}.mp4", "conversations": turns}


def result(number, response, **more):
    named = {"video_id": f"clips/{number}.mp4", "sample_id": f"k{number}"}
    return {**named, "question": f"Is {number} there?", "gt": "yes", "response": response, **more}


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Analyze twice, in this process and with a second one; `both(results)` gives two lists of what came out."""
    (tmp_path / "kpi.json").write_text(json.dumps([annotation(number) for number in range(400)]))
    (tmp_path / "eval").mkdir()

    def once(large, batch):
        monkeypatch.setattr(vidqa.evaluation.gaps.judge, "LARGE", large)
        monkeypatch.setattr(vidqa.evaluation.gaps.judge, "_BATCH", batch)
        table = tmp_path / f"{large}.parquet"
        try:
            found = analyze(str(tmp_path / "eval"), str(table), str(tmp_path / "kpi.json"))
        except ProblemError as stopped:
            assert not table.exists()
            return stopped.problems
        return [found.as_dict(), found.problems, pq.read_table(table).to_pylist()]

    def run(text):
        (tmp_path / "eval/results.json").write_text(text)
        return once(1 << 40, 100), once(0, 5_000)

    return run


def test_the_same_table_and_the_same_warnings(both):
    rows = [result(number, ("Yes.", "no", None, "who knows", "")[number % 5]) for number in range(350)]
    rows[7] |= {"gt": "", "response": "No"}  # the annotation has it
    rows[8] |= {"question": "", "response": "no"}
    rows[9] |= {"gt": "no"}
    rows[10] |= {"video_id": "other.mp4", "sample_id": "other"}
    rows[11] = rows[12]
    rows[13] |= {"response": "half a pair \ud800"}
    del rows[14]["response"]
    alone, beside = both(json.dumps(rows))
    assert alone == beside
    assert {problem.code for problem in alone[1]} >= {"GAPS_RESULT_UNKNOWN", "GAPS_NO_RESULT", "RESULTS_FIELD_MISSING"}
    assert alone[0]["gaps"] > 200


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"gt": "yes"', '"gt": ["yes"]', 3),
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"video_id": "clips/200.mp4"', '"video_id": clips', 1),
        lambda text: text.replace("[", "", 1),
        lambda text: "",
    ],
)
def test_the_same_errors_with_their_places(both, spoil):
    alone, beside = both(spoil(json.dumps([result(number, "Yes.") for number in range(350)])))
    assert alone and alone == beside
    assert any(problem.severity == "error" for problem in alone)


def test_a_second_process_that_dies_is_no_empty_table(tmp_path, monkeypatch):
    monkeypatch.setattr(vidqa.evaluation.gaps.judge, "LARGE", 0)
    path = tmp_path / "results.json"
    path.write_text(json.dumps([result(number, "Yes.") for number in range(10)]))
    with vidqa.evaluation.gaps.judge.judging([str(path)], "normalized", Bounded()) as batches:
        (process,) = multiprocessing.active_children()
        process.kill()
        with pytest.raises(RuntimeError, match="ended before it was done"):
            list(batches)


def test_no_process_outlives_what_stopped_the_analysis(tmp_path, monkeypatch):
    monkeypatch.setattr(vidqa.evaluation.gaps.judge, "LARGE", 0)
    (tmp_path / "results.json").write_text(json.dumps([result(1, "Yes.")]))
    (tmp_path / "kpi.json").write_text("{}")
    began = time.monotonic()
    with pytest.raises(ProblemError):
        analyze(str(tmp_path), str(tmp_path / "gaps.parquet"), str(tmp_path / "kpi.json"))
    assert multiprocessing.active_children() == [] and time.monotonic() - began < 60
