"""The benchmark's own reading and counting of answers, as Cosmos-Reason1 has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vidqa.benchmark.problems import BENCHMARK_DATA
from vidqa.benchmark.questions import read_questions
from vidqa.benchmark.running import published, settle
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.evaluation.accuracy import accuracy_interval
from vidqa.evaluation.cosmos_protocol import protocol_answer, protocol_correct, protocol_scores
from vidqa.evaluation.results import judged, read_dataset
from vidqa.jobs.resources import Resources
from vidqa.spec import Layer, resolve

SUBSETS = ("av", "robovqa", "agibot", "bridgev2", "holoassist", "robofail")
LETTERS = "What is it?\n(A) a cup\n(B) a pan\nAnswer with the option's letter from the given choices directly."
TAGGED = f"{LETTERS}\nWrite <think> and <answer> your single letter answer </answer>."


@pytest.mark.parametrize(
    ("question", "gt", "response", "answer"),
    [
        (LETTERS, "B", "B", "B"),
        (LETTERS, "B", "it is (B) a pan", "B"),
        (LETTERS, "B", "The pan", "T"),  # the first capital letter, wherever it stands
        (LETTERS, "B", "b", ""),
        (LETTERS, "B", None, ""),
        (TAGGED, "B", "<think>A?</think> <answer> B </answer>", "B"),
        (TAGGED, "B", "<think>A?</think> B", ""),
        (TAGGED, "B", "<answer>B", ""),  # cut off before the tag ends
        (TAGGED, "B", "<answer>\n(B) a pan</answer> <answer>A</answer>", "B"),
        ("What is it?", "a cup", " A Cup ", "A Cup"),
        ("Say <answer> it </answer>", "a cup", "<think>x</think><answer>a cup</answer>", "a cup"),
    ],
)
def test_an_answer_is_read_as_the_benchmark_does(question: str, gt: str, response: str | None, answer: str) -> None:
    assert protocol_answer(response, question, gt) == answer


def test_no_answer_is_never_right_and_case_does_not_count() -> None:
    assert protocol_correct("A Cup", "a cup") and not protocol_correct("a cups", "a cup")
    assert not protocol_correct("", "")


def test_scores_count_what_is_empty_and_tell_open_questions_apart() -> None:
    asked = [
        (LETTERS, "B", "B"),
        (LETTERS, "B", "A"),
        (LETTERS, "A", ""),
        ("What?", "Cup", "cup"),
        ("What?", "Cup", "a cup"),
    ]
    items = [
        judged({"video_id": f"{at}.mp4", "question": q, "gt": gt, "response": response, "sample_id": str(at)})
        for at, (q, gt, response) in enumerate(asked)
    ]
    found = protocol_scores(items)
    assert (found["n"], found["correct"], found["accuracy"], found["empty"]) == (5, 2, 0.4, 1)
    assert (found["lettered"]["n"], found["lettered"]["correct"]) == (3, 1)
    assert (found["open_ended"]["n"], found["open_ended"]["correct"]) == (2, 1)
    low, high = found["accuracy_ci95"]
    assert 0 < low < 0.4 < high < 1


def test_a_hundred_questions_leave_ten_points() -> None:
    items = [
        judged({"video_id": f"{at}", "question": LETTERS, "gt": "A", "response": "AB"[at % 2], "sample_id": str(at)})
        for at in range(100)
    ]
    low, high = protocol_scores(items)["accuracy_ci95"]
    assert 0.5 - low == pytest.approx(0.1, abs=0.003) and high - 0.5 == pytest.approx(0.1, abs=0.003)


def benchmark(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    (folder / name / "clips").mkdir(parents=True)
    (folder / name / f"{name}_benchmark_qa_pairs.json").write_text(json.dumps(rows))
    for row in rows:
        (folder / name / row["video"]).write_bytes(b"")
    return folder


PAIR = {"question": "Which?", "index2ans": {"A": "left", "B": "right"}, "correct_answer": "B"}


def test_questions_are_read_in_both_forms_and_layouts(tmp_path: Path) -> None:
    rows = [
        {"video": "clips/a.mp4", "qa_pairs": [PAIR, {"question": "What?", "answer": "a cup"}]},
        {"video": "clips/b.mp4", "qa_pairs": PAIR},
        {"video": "clips/a.mp4", "qa_pairs": PAIR},
    ]
    benchmark(tmp_path / "benchmark", "av", rows)
    found, problems = read_questions(tmp_path, ["av"], "letter", None)
    assert problems == [] and [question.id for question in found] == [
        "av/clips/a.mp4#0",
        "av/clips/a.mp4#1",
        "av/clips/b.mp4#0",
        "av/clips/a.mp4#2",
    ]
    assert found[0].prompt == LETTERS.replace("What is it?", "Which?").replace("a cup", "left").replace(
        "a pan", "right"
    )
    assert (found[1].prompt, found[1].answer) == ("What?", "a cup")
    again, _ = read_questions(tmp_path / "benchmark", ["av"], "reasoning", 1)
    assert len(again) == 1 and again[0].prompt.endswith("<answer> your single letter answer </answer>.")


def test_what_is_missing_is_named_for_every_subset(tmp_path: Path) -> None:
    benchmark(tmp_path, "av", [{"video": "clips/a.mp4", "qa_pairs": PAIR}, {"video": "clips/b.mp4", "qa_pairs": PAIR}])
    benchmark(tmp_path, "agibot", [{"video": "clips/a.mp4", "qa_pairs": PAIR}])
    (tmp_path / "av/clips/a.mp4").unlink()
    _, problems = read_questions(tmp_path, ["av"], "letter", None)
    assert [(problem.code, problem.severity) for problem in problems] == [(BENCHMARK_DATA.name, "warning")]
    assert "1 of the 2 clips of av are missing" in problems[0].message
    (tmp_path / "agibot/clips/a.mp4").unlink()
    with pytest.raises(ProblemError) as wrong:
        read_questions(tmp_path, ["holoassist", "agibot"], "letter", None)
    assert [problem.code for problem in wrong.value.problems] == [BENCHMARK_DATA.name] * 2
    assert "1 of the 1 clips of agibot are missing" in wrong.value.problems[1].message


@pytest.mark.parametrize(
    "row", [{"video": "clips/a.mp4", "qa_pairs": [{"question": "What?"}]}, {"video": "clips/a.mp4"}]
)
def test_a_question_without_an_answer_is_a_problem(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match="BENCHMARK_DATA"):
        read_questions(benchmark(tmp_path, "av", [row]), ["av"], "letter", None)


DATA = Layer("data", {"dataset.annotation_path": "a.json", "results_dir": "out"})
CONFIG = """
datasets: [robovqa, av]
model:
  {model_name: nvidia/Cosmos-Reason1-7B, tokenizer_model_name: qwen2.5-vl-7b, dtype: bfloat16, tp_size: 2,
  max_length: 64000}
evaluation: {answer_type: %s, num_processes: 80, skip_saved: false, fps: 2, seed: 7}
generation: {max_retries: 3, max_tokens: 512, temperature: 0.7, repetition_penalty: 1.0, presence_penalty: 0.0}
"""


@pytest.mark.parametrize(("answer_type", "generation"), [("reasoning", (0.7, 512)), ("letter", (0.0, 10))])
def test_a_configuration_of_theirs_is_taken(tmp_path: Path, answer_type: str, generation: tuple[float, int]) -> None:
    (tmp_path / "evaluate.yaml").write_text(CONFIG % answer_type)
    found = settle(tmp_path, tmp_path / "out", "local", Resources(), config=tmp_path / "evaluate.yaml")
    assert (found.datasets, found.answer_type, found.retries) == (("robovqa", "av"), answer_type, 3)
    assert found.folder == tmp_path / "out/Cosmos-Reason1-7B" / answer_type
    assert [problem.where for problem in found.problems] == ["model.tp_size"]
    spec = resolve("evaluate", [*found.layers, DATA]).spec
    assert spec.model.model_name == "hf_model://nvidia/Cosmos-Reason1-7B"
    assert (spec.vision.fps, spec.vision.nframes, spec.evaluation.seed) == (2, None, 7)
    assert (spec.generation.temperature, spec.generation.max_tokens) == generation
    assert (spec.model.max_length, spec.dataset.system_prompt) == (64000, "Answer the questions.")


def test_the_protocol_holds_where_nothing_is_said_and_options_win(tmp_path: Path) -> None:
    options = {"datasets": ("av", "av"), "model": "hf_model://nvidia/Cosmos-Reason2-2B"}
    found = settle(tmp_path, tmp_path, "local", Resources(), **options, sets=("generation.top_p=0.9",))
    spec = resolve("evaluate", [*found.layers, DATA]).spec
    assert (found.datasets, found.answer_type, found.retries, spec.generation.top_p) == (("av",), "reasoning", 10, 0.9)
    assert (spec.vision.fps, spec.evaluation.seed, spec.model.max_length) == (4, 1, 128000)
    assert (spec.generation.temperature, spec.generation.max_tokens) == (0.6, 1024)


@pytest.mark.parametrize(
    "text",
    [
        "datasets: 3",
        "{datasets: [av], evaluation: {answer_type: freeform}}",
        "{datasets: [av], generation: {max_retries: x}}",
        "{}",
    ],
)
def test_a_configuration_that_cannot_be_taken_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "evaluate.yaml").write_text(text)
    config = tmp_path / "evaluate.yaml"
    with pytest.raises(ProblemError) as wrong:
        settle(tmp_path, tmp_path, "local", Resources(), model="hf_model://a/b", config=config)
    assert [problem.code for problem in wrong.value.problems] == ["SPEC_VALUE"]


def test_results_of_one_data_set_are_found_below_one_model_only(tmp_path: Path) -> None:
    answer = {"datasource": "av", "video_id": "a", "prompt": LETTERS, "correct_answer": "B", "full_response": "B"}
    for place in ("m/letter/av", "m/letter/robovqa"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "a.json").write_text(json.dumps([answer]))
    items, _ = read_dataset(tmp_path, "av")
    assert protocol_scores(items)["correct"] == len(items) == 1
    for name, code in (("agibot", "RESULTS_FOLDER"), ("av", "RESULTS_FOLDER")):
        if name == "av":
            (tmp_path / "n/letter/av").mkdir(parents=True)
        with pytest.raises(ProblemError, match=code):
            read_dataset(tmp_path, name)


def test_a_data_set_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    answer = {"video_id": "a", "prompt": LETTERS, "correct_answer": "B", "full_response": "B"}
    names = [f"set{number:02d}" for number in range(12)]
    for name in names:
        (tmp_path / "m/letter" / name).mkdir(parents=True)
        (tmp_path / "m/letter" / name / "a.json").write_text(json.dumps([answer]))
    with pytest.raises(ProblemError, match="set08, set09 and 2 more"):
        read_dataset(tmp_path, "agibot")
    answered = {"video_id": "a", "question": "?", "gt": "yes", "response": "no"}
    items = [{**answered, "kind": kind} for kind in ("door", "car")]
    (tmp_path / "results.json").write_text(json.dumps(items))
    with pytest.raises(ProblemError, match="its kinds: car, door"):
        read_dataset(tmp_path, "agibot")


def test_the_page_has_every_published_score_with_the_width_of_its_interval() -> None:
    page = (SKILL_ROOT / "references/benchmarks.md").read_text()
    for row in published():
        cells = []
        for name in SUBSETS:
            score, n = row["scores"].get(name), 110 if name == "robovqa" else 100
            if score is None:
                cells.append("")
                continue
            right = round(score * n / 100)
            interval = accuracy_interval([at < right for at in range(n)], [str(at) for at in range(n)])
            assert interval
            cells.append(f"{score:g} ± {50 * (interval.high - interval.low):.1f}")
        line = " | ".join([row["model"], row["how"], *cells, row["source"]])
        assert f"| {line} |" in page
