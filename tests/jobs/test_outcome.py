"""What `launch.py --wait` and `jobs.py status` show of a job that is done."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from programs import run_here

from tests.platforms.conftest import ENOUGH_S
from vidqa.core.cli import SKILL_ROOT, Result
from vidqa.core.problem import Problem
from vidqa.evaluation.metrics import score
from vidqa.jobs import job_results, records
from vidqa.jobs import watch as jobs
from vidqa.jobs.api import JobHandle
from vidqa.jobs.launch import launch
from vidqa.jobs.platforms._base import State
from vidqa.jobs.records import JobRecord

WriteSpec = Callable[..., Path]
RIGHT = [{"video_id": f"{n}.mp4", "question": "Is it?", "gt": "no", "response": "No."} for n in range(18)]
WRONG = [{"video_id": f"w{n}.mp4", "question": "Is it?", "gt": "yes", "response": "No."} for n in range(2)]


@pytest.fixture
def trained(over_at_once: None, write_spec: WriteSpec) -> JobRecord:
    return jobs.wait(launch("train", write_spec("complete"), "local").record, ENOUGH_S)


def ways(record: JobRecord) -> list[Result]:
    """jobs.py status, jobs.py wait, launch.py --wait."""
    return [
        job_results.of_job(record),
        job_results.of_wait(record),
        job_results.of_launch(JobHandle(record.job_id), record),
    ]


def as_evaluation(record: JobRecord) -> JobRecord:
    """The record of an evaluation of the same model, with what one leaves in its run folder."""
    run = Path(record.run_dir).with_name("evaluation")
    run.mkdir()
    (run / "metrics.json").write_text(json.dumps(score(RIGHT + WRONG)))
    settings = {"generation": {"max_tokens": 8}, "engine": {"on_bad_sample": "quarantine"}, "vision": {"nframes": 3}}
    dataset = {"annotation_path": "/kpi/a b.json", "media_dir": "/kpi"}
    model = {"model_name": "/base", "dtype": "float32"}
    (run / "spec.toml").write_text(tomli_w.dumps({"dataset": dataset, "model": model, **settings}))
    link = run.with_name("link")
    link.symlink_to(record.model)
    evaluation = replace(record, job_id="evaluation", action="evaluate", run_dir=str(run), model=str(link))
    return records.write(evaluation)


def test_a_finished_evaluation_says_its_accuracy_and_what_guessing_would_get(trained: JobRecord) -> None:
    record = as_evaluation(trained)
    (Path(record.run_dir) / "report.html").write_text("<html>")
    for made in ways(record):
        assert "accuracy 90.0 % (95 % interval 6" in made.text
        assert "majority-class baseline 90.0 %; the model answers 'no' to every yes_no question" in made.text
        assert made.data["scores"]["accuracy"] == made.data["scores"]["majority_accuracy"] == 0.9
        low, high = made.data["scores"]["accuracy_ci95"]
        assert low < 0.9 < high
        assert made.data["report"] == f"{record.run_dir}/report.html" and made.data["report"] in made.text


def test_what_kept_a_cancelled_job_from_saving_is_shown(trained: JobRecord) -> None:
    full = Problem("ENGINE_SAVE_FAILED", "/run", "No space left on device", "Free disk space", exit_code=5)
    trained.run.write_problems([full])
    record = replace(trained, state=State.CANCELED, exit_code=5, cancel_requested="now")
    assert [problem.code for problem in jobs.problems_of(record)] == ["ENGINE_SAVE_FAILED", "JOB_NOT_DONE"]


def test_records_that_were_left_out_are_named(trained: JobRecord) -> None:
    run = Path(trained.run_dir)
    problems = [{"where": f"a.json[{row}]", "code": "C", "message": "m", "remedy": "r"} for row in range(5)]
    (run / "quarantine.json").write_text(json.dumps(problems))
    for made in ways(trained):
        assert made.data["left_out"]["count"] == 5 and made.data["left_out"]["first"][0] == "a.json[0]"
        assert f"named in {run / 'quarantine.json'}: a.json[0]; a.json[1]; a.json[2] ..." in made.text


def test_a_run_folder_that_cannot_be_looked_at_gives_no_results(trained: JobRecord) -> None:
    for state in (State.COMPLETE, State.ERROR):
        shown = job_results.of_job(replace(trained, run_dir=f"/{'x' * 300}", state=state))
        assert shown.data["state"] == state and "report" not in shown.data


def test_damaged_scores_are_not_shown(trained: JobRecord) -> None:
    record = as_evaluation(trained)
    for damage in (b"", b"\0" * 40, b"[1]", b'{"headline": 3}', b'{"accuracy": 1'):
        (Path(record.run_dir) / "metrics.json").write_bytes(damage)
        for made in ways(record):
            assert "scores" not in made.data and "\nscore " not in made.text and made.code == 0, damage


@pytest.mark.parametrize("size", [None, "many", [1]])
def test_damaged_sizes_of_a_quantization_are_unknown(trained: JobRecord, size: object) -> None:
    facts = {"bytes": {"quantized": size, "model": 2_000_000_000}, "proof": {}, "gate": {}}
    (Path(trained.run_dir) / "quantize.json").write_text(json.dumps(facts))
    (made, *_) = ways(replace(trained, action="quantize"))
    assert "unknown, 2.00 GB before" in made.text


def export(run: Path) -> None:
    folder = run / "safetensors/step_2"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"\0" * 8)
    (folder / "config.json").write_text("{}")
    (run / "best").symlink_to("safetensors/step_2")
    (run / "best.json").write_text(json.dumps({"metric": "val/avg_loss", "value": 0.25, "step": 2, "name": "step_2"}))


def test_after_a_training_comes_the_evaluation_of_its_best_on_what_the_base_was_measured_on(trained: JobRecord) -> None:
    export(Path(trained.run_dir))
    as_evaluation(trained)
    for made in ways(trained):
        assert re.search(r"^best +step_2, by val/avg_loss 0.25$", made.text, re.MULTILINE)
        assert made.data["best"]["step"] == 2
        done = run_here(shlex.split(made.next[-1]), cwd=SKILL_ROOT)
        assert done.returncode == 0, done.stderr
        spec = tomllib.loads((Path(trained.run_dir) / "evaluate.toml").read_text())
        assert spec["dataset"]["annotation_path"] == "/kpi/a b.json"
        assert spec["model"]["model_name"] == f"{trained.run_dir}/safetensors/step_2"
        # What a comparison needs equal is as it was; frames are those of the training.
        assert spec["model"]["dtype"] == "float32" and spec["generation"]["max_tokens"] == 8
        assert spec["engine"]["on_bad_sample"] == "quarantine" and spec["vision"]["nframes"] == 8
    earlier = Path(trained.run_dir).with_name("earlier")  # another job has learned from what the base was measured on
    earlier.mkdir()
    (earlier / "spec.toml").write_text('[custom.train_dataset]\nannotation_path = "/kpi/a b.json"\n')
    records.write(replace(trained, job_id="earlier", run_dir=str(earlier)))
    assert "--eval-root EVAL_ROOT" in job_results.of_job(trained).next[-1]


def test_where_no_evaluation_is_known_the_user_names_the_set(trained: JobRecord) -> None:
    assert not any("build_spec" in each for each in job_results.of_job(trained).next)  # nothing was exported
    export(Path(trained.run_dir))
    words = shlex.split(job_results.of_job(trained).next[-1])
    assert words[1].endswith("build_spec.py") and words[2:5] == ["evaluate", "--parent-run", trained.run_dir]
    assert words[words.index("--eval-root") + 1] == "EVAL_ROOT"


def test_a_job_that_runs_shows_no_page_of_an_earlier_attempt(stand_in: None, write_spec: WriteSpec) -> None:
    record = launch("train", write_spec("hang"), "local").record
    (Path(record.run_dir) / "report.html").write_text("<html>")
    assert "report" not in job_results.of_job(record).data
    stopped = jobs.cancel(record.job_id, ENOUGH_S)
    assert job_results.of_job(stopped).data["report"] == f"{record.run_dir}/report.html"
