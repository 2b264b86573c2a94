"""A benchmark whose true scores are known, run by real evaluation jobs of a tiny real model."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from tiny_world import run_engine, tiny_model

from vidqa.benchmark.questions import read_questions
from vidqa.benchmark.running import Settings, report, run_benchmark, settle, write_files, write_spec
from vidqa.evaluation.cosmos_protocol import protocol_scores
from vidqa.evaluation.results import read_dataset
from vidqa.jobs.resources import Resources

CHOICES = {"A": "yes", "B": "no"}
QUESTIONS = ("Is the first bit set?", "Is the last bit set?")


def write_benchmark(home: Path, planted: dict[str, str]) -> None:
    """Two subsets with a broken clip, a question that has no options, and the right answers `planted` by id."""
    for name in ("robovqa", "av"):
        rows = []
        for number in range(4):
            clip = f"clips/c{number}.mp4"
            write_clip(home / name / clip, frames=8, fps=4, width=64, height=64, first_number=10 * number)
            pairs: list[dict[str, Any]] = [
                {"question": text, "index2ans": CHOICES, "answer": planted.get(f"{name}/{clip}#{at}", "B")}
                for at, text in enumerate(QUESTIONS)
            ]
            rows.append({"video": clip, "qa_pairs": pairs if number == 0 else pairs[0]})
        open_ended = {"question": "What is shown?", "answer": planted.get(f"{name}/clips/c1.mp4#0", "a bit")}
        rows[1]["qa_pairs"] = open_ended
        (home / name / f"{name}_benchmark_qa_pairs.json").write_text(json.dumps(rows))
    (home / "av/clips/c3.mp4").write_bytes(b"no video")


def settings_of(folder: Path, model: Path, out: str) -> Settings:
    sets = ("model.dtype=float32", "generation.max_tokens=2", "engine.decode_workers=1")
    options = {"datasets": ("robovqa", "av"), "model": str(model), "answer_type": "letter", "retries": 1}
    return settle(folder / "data", folder / out, "local", Resources(), **options, sets=sets)


def raw_answers(run: Path) -> dict[str, str]:
    """What the model wrote, by id, from the engine's own files."""
    lines = [line for file in run.glob("answers/*/*.jsonl") for line in file.read_text().splitlines()]
    return {answer["sample_id"]: answer["text"] for answer in map(json.loads, lines)}


@pytest.mark.slow
def test_planted_scores_are_found_with_failing_and_empty_answers(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    write_benchmark(tmp_path / "data", {})
    first = settings_of(tmp_path, model, "first")
    questions, _ = read_questions(first.home, first.datasets, "letter", None)
    run_engine("evaluate", write_spec(replace(first, retries=0), questions), tmp_path / "first-run")
    said = raw_answers(tmp_path / "first-run")
    letters = {name: re.search("[A-Z]", text) for name, text in said.items() if not name.endswith("c1.mp4#0")}
    empty = {name for name, found in letters.items() if not found}
    assert empty and len(empty) < len(letters), "the tiny model gives both kinds of answers"

    # The truth: every letter that is given is right but the first, open answers are right but for case.
    planted = {name: found[0] for name, found in letters.items() if found}
    wrong = next(iter(planted))
    planted[wrong] = "B" if planted[wrong] == "A" else "A"
    planted |= {name: said[name].upper() for name in said if name.endswith("c1.mp4#0")}
    write_benchmark(tmp_path / "data", planted)
    settings = settings_of(tmp_path, model, "out")
    outcome = run_benchmark(settings)
    found = report(settings, outcome)
    for name in ("robovqa", "av"):
        row, own = found["subsets"][name], {each for each in planted if each.startswith(f"{name}/")} - {wrong}
        assert (row["n"], row["one_shot"]["correct"]) == (5, len(own))
        assert row["failed"] == (name == "av")
    whole = found["subsets"]["all"]
    assert whole["one_shot"]["empty"] == len(empty) + 1 and whole["asked_again"] == len(empty)
    assert whole["one_shot"]["open_ended"]["correct"] == 2

    # What the second attempt wrote decides about those alone that had no answer.
    rows = json.loads((outcome.run / "retries.json").read_text())
    retried = {row["sample_id"]: row["response"] for row in rows}
    assert set(retried) == empty and {row["attempt"] for row in rows} == {1}
    assert len(list((settings.folder / "job/runs").glob("*/results.json"))) == 1, "all attempts are one job"
    gained = sum((letter := re.search("[A-Z]", text)) is not None and letter[0] == "B" for text in retried.values())
    assert whole["with_retries"]["correct"] == whole["one_shot"]["correct"] + gained

    write_files(settings, outcome, found)
    for name in ("robovqa", "av"):
        items, problems = read_dataset(tmp_path / "out", name)
        theirs = [answer for file in (settings.folder / name).glob("*.json") for answer in json.loads(file.read_text())]
        correct = found["subsets"][name]["with_retries"]["correct"]
        assert protocol_scores(items)["correct"] == sum(answer["is_correct"] for answer in theirs) == correct
        assert len(theirs) == len(items) == 5 and problems == []
        ours, _ = read_dataset(outcome.run, name)
        assert protocol_scores(ours)["correct"] == found["subsets"][name]["one_shot"]["correct"]

    # Stopped among the further attempts, it goes on with the question that was due.
    resumed = tmp_path / "resumed"
    shutil.copytree(outcome.run, resumed)
    (attempt,) = resumed.glob("answers/again-1/*/rank-0.jsonl")
    lines = attempt.read_text().splitlines(keepends=True)
    attempt.write_text(lines[0])
    (resumed / "retries.json").unlink()
    run_engine("evaluate", outcome.run / "spec.toml", resumed)  # its skip_saved is true
    assert len(lines) > 1 and sorted(attempt.read_text().splitlines(keepends=True)) == sorted(lines)
    assert attempt.read_text().startswith(lines[0]), "what was answered is kept"
    assert json.loads((resumed / "retries.json").read_text()) == rows

    again = run_benchmark(settings)
    write_files(settings, again, report(settings, again))
    assert again.run == outcome.run, "the job is found again"
    assert len(json.loads((settings.folder / "robovqa/c0.json").read_text())) == 2, "a second run appends nothing"
