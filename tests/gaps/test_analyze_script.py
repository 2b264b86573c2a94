"""scripts/analyze_gaps.py as a user runs it: exit codes, one JSON object, commands that run."""

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from programs import run_here

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "analyze_gaps.py"


def run(*words, cwd):
    return run_here([sys.executable, str(SCRIPT), *words], cwd=cwd)


@pytest.fixture
def place(tmp_path):
    turns = [{"from": "human", "value": "<video>Is it?"}, {"from": "gpt", "value": "yes"}]
    notes = [{"id": name, "video": f"{name}.mp4", "conversations": turns} for name in "ab"]
    (tmp_path / "annotations.json").write_text(json.dumps(notes))
    rows = [
        {"video_id": name, "question": "Is it?", "gt": "yes", "response": text}
        for name, text in (("a", "Yes"), ("b", "No"))
    ]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    return tmp_path


WORDS = ("--results-dir", ".", "--gaps-parquet", "gaps.parquet", "--kpi-ann-path", "annotations.json")


def test_one_json_object_and_a_next_command_that_runs(place):
    real = [sys.executable, str(SCRIPT), *WORDS, "--jsonl", "gaps.jsonl", "--json"]
    done = subprocess.run(real, cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"] and found["data"]["gaps"] == 1 and found["data"]["correct"] == 1
    shown = subprocess.run(shlex.split(found["next"][0]), cwd=place, capture_output=True, text=True, timeout=60)
    assert json.loads(shown.stdout)["sample_id"] == "b"


def test_text_for_a_person_and_fail_on_gaps(place):
    done = run(*WORDS, "--fail-on-gaps", cwd=place)
    assert done.returncode == 3 and "GAPS_FOUND" in done.stderr
    assert done.stdout.splitlines()[:3] == [
        "1 gaps among 2 samples, written to gaps.parquet",
        "kind    samples  gaps  wrong",
        "yes_no        2     1      1",
    ]
    assert (place / "gaps.parquet").exists()


def test_lines_in_a_bucket_are_not_what_a_shell_can_show_next(place):
    from vidqa.gaps.analysis.report import GapAnalysis, next_commands

    request = GapAnalysis(results_dir=".", gaps_parquet="gaps.parquet", kpi_ann_path=".", jsonl="gaps.jsonl")
    assert next_commands(request) == ["head -n 5 gaps.jsonl"]
    assert next_commands(replace(request, jsonl="s3://lake/gaps.jsonl")) == []


def test_usage_and_missing_input(place):
    assert run("--results-dir", ".", cwd=place).returncode == 2
    for unused in ("--other-results", "--embeddings"):
        done = run(*WORDS, unused, ".", cwd=place)
        assert done.returncode == 2 and f"{unused} is for the" in done.stderr
    done = run(*WORDS[:3], ".", *WORDS[4:], cwd=place)
    assert done.returncode == 4 and "name a file in a folder" in done.stderr
    done = run("--results-dir", "absent", *WORDS[2:], "--json", cwd=place)
    assert done.returncode == 3 and json.loads(done.stdout)["problems"][0]["code"] == "RESULTS_FOLDER"
    assert "Traceback" not in done.stderr
    done = run("--results-dir", "", *WORDS[2:], cwd=place)
    assert done.returncode == 4 and "names no file" in done.stderr, "not the present folder"


@pytest.mark.parametrize(
    "words",
    [
        ("--slices", "annotations.json"),
        ("--audit", "a.html"),
        ("--slices", "x.json", "--audit", "x.json"),
        ("--audit", "."),
    ],
)
def test_no_output_replaces_an_input_or_another_output(place, words):
    before = (place / "annotations.json").read_bytes()
    done = run(*WORDS, *words, cwd=place)
    assert done.returncode == 2 and ("named twice" in done.stderr or "is a folder" in done.stderr)
    assert (place / "annotations.json").read_bytes() == before and not (place / "gaps.parquet").exists()


def test_other_evaluations_of_one_name_are_all_heard(place):
    for folder, said in (("one", "No"), ("two", "Yes")):
        (place / folder).mkdir()
        rows = [{"video_id": name, "question": "Is it?", "gt": "yes", "response": said} for name in "ab"]
        (place / folder / "results.json").write_text(json.dumps(rows))
    others = ("--other-results", "one/results.json", "two/results.json")
    (place / "results.json").write_text(json.dumps(rows))
    assert run(*WORDS, "--audit", "audit.json", *others, cwd=place).returncode == 0
    (item, other) = json.loads((place / "audit.json").read_text())["items"]
    assert item["suggested"] == other["suggested"] == "no"


def test_the_folder_one_stands_in_is_a_folder_like_others(place):
    for name in ("rank_0", "rank_1"):
        (place / name).mkdir()
        (place / name / "results.json").write_text((place / "results.json").read_text())
    assert json.loads(run(*WORDS, "--json", cwd=place).stdout)["data"]["source_results"] == ["results.json"]
    (place / "results.json").unlink()
    found = json.loads(run(*WORDS, "--json", cwd=place).stdout)["data"]["source_results"]
    assert found == ["rank_0/results.json", "rank_1/results.json"]
    (place / "rank_1").rename(place / "other")
    refused = run(*WORDS, "--json", cwd=place)
    assert json.loads(refused.stdout)["problems"][0]["code"] == "RESULTS_FOLDER"
