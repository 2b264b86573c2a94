"""The page of a training, from run folders as the engine writes them, whole and damaged."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from vidqa.core.pages.training import main, report
from vidqa.core.pages.training_charts import main_chart
from vidqa.core.pages.training_data import read_training
from vidqa.core.problem import Problem
from vidqa.core.run_folder import RunFolder

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\" onload='x'"


class Page(HTMLParser):
    """The page as a browser reads it; every tag that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [], self.open
        self.words = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == name]


def make_run(folder: Path, *, first: int = 0, steps: int = 60, **facts: Any) -> RunFolder:
    """A run folder after `steps` steps, validated after every tenth; the loss falls and rises again at the end."""
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    run.update_run(trainable=[{"part": "language_model.layers (LoRA)", "parameters": 1000, "trainable": 40}], **facts)
    (folder / "plan.json").write_text(
        json.dumps({"train_samples": 4321, "total_steps": steps, "steps_per_epoch": 20, "effective_batch": 8})
    )
    for step in range(first + 1, steps + 1):
        run.log_metrics(step, _step(step), 1000.0 + step)
        if step % 10 == 0:
            held_out = 0.5 + abs(step - 40) / 100
            run.log_metrics(step, {"val/avg_loss": held_out, "val/accuracy": 0.75, "val/truncated": 0.2}, 1000.0 + step)
    run.write_status("COMPLETE", step=steps, total_steps=steps, exit_code=0)
    return run


def _step(step: int) -> dict[str, float]:
    return {
        "train/loss": 2.0 / step,
        "train/lr": 1e-5,
        "train/grad_norm": 1.0,
        "perf/step_s": 2.0,
        "perf/data_wait_s": 1.5,
        "perf/tokens_per_s": 12000.0,
        "perf/tokens_per_s_per_rank": 3000.0,
        "perf/mfu": 0.41,
        "perf/memory_gib": 63.2,
    }


def page_of(run: RunFolder) -> Page:
    return Page(report(read_training(run.path)))


def export(run: RunFolder, name: str, step: int, **facts: Any) -> None:
    folder = run.exports / name
    folder.mkdir(parents=True)
    (folder / "export.json").write_text(json.dumps({"step": step, **facts}))


def test_the_page_says_how_it_went(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run.path / "spec.toml").write_text('[policy.lora]\nr = 16\nlora_alpha = 32\ntarget_modules = ["q_proj"]\n')
    export(run, "step_40", 40, measured={"val/avg_loss": 0.5, "val/accuracy": 0.75})
    (run.exports / "step_40/proof.json").write_text(json.dumps({"trainer_loss": 0.25, "reloaded_loss": 0.250001}))
    export(run, "step_60", 60, unproved="no sample could be decoded")
    (run.path / "best.json").write_text(json.dumps({"name": "step_40", "step": 40, "metric": "val/avg_loss"}))
    run.add_to_quarantine([Problem("MEDIA_UNREADABLE", "a.mp4", "no frame", "replace it", 3)])
    page = page_of(run)
    for said in (
        "COMPLETE · step 60 of 60",
        "0.0333first: 2.0000",
        "0.5000lowest, after step 40; at the end 0.7000",
        "12,000median, over 4 processes; MFU 41.0 %",
        "2 smedian; 2 min in all",
        "63.2 GiB",
        "404.00 % of 1,000",
        "rank 16, alpha 32, on q_proj",
        "Training samples4,321",
        "loss 0.250000 in the trainer, 0.250001 loaded again",
        "The export step_60 is unproved",
        "MEDIA_UNREADABLE a.mp4 no frame",
        "The validation loss was lowest after step 40 and higher at the end, a sign of overfitting",
        "75 % of the step time was spent waiting for decoded video",
        "20 % of the answers in validation were truncated",
    ):
        assert said.replace(" ", "") in page.words.replace(" ", ""), said
    names = [svg["aria-label"] for svg in page.all("svg")]
    assert names[0] == "Loss" and len(names) == 8
    assert not page.all("text"), "words in a drawing would shrink with it on a narrow screen"
    assert page.words.count(" step ") >= 8, "the axis of each chart"
    assert "accuracy, step 10: 75" in page.text, "shares are drawn in percent"
    marks = [text for text in ("epoch 1 ends", "epoch 2 ends", "best: step_40") if text in page.text]
    assert len(marks) == 3


@pytest.mark.parametrize("divergence", [0.0, 0.02])
def test_a_divergence_that_no_reference_measured_is_not_drawn_as_zero(tmp_path: Path, divergence: float) -> None:
    run = make_run(tmp_path / "run", steps=1)
    run.log_metrics(2, {"rollout/reward": 0.5, "train/kl": divergence}, 1000.0)
    assert ("KL divergence from the reference" in page_of(run).text) == (divergence > 0)


def test_printed_pages_are_dark_on_white(tmp_path: Path) -> None:
    style = report(read_training(make_run(tmp_path / "run", steps=1).path))
    assert "@media screen and (prefers-color-scheme: dark)" in style and "@media (prefers-color-scheme" not in style


def test_the_page_needs_no_network_and_runs_nothing(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    assert not page.all("script") and not page.all("link") and not page.all("img")
    (policy,) = (meta["content"] for meta in page.all("meta") if meta.get("http-equiv"))
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_nothing_of_the_run_becomes_markup(tmp_path: Path) -> None:
    lost = {"from": None, "step": 0, "lost": 7}
    resumes = [{"from": f"/{EVIL}/x/y", "step": 4, "changed": [EVIL]}, lost]
    run = make_run(tmp_path / "<b>run", resumes=resumes, more=EVIL)
    run.update_run(trainable=[{"part": EVIL, "parameters": 2, "trainable": 1}])
    plan = {"quarantined": [{"code": EVIL, "where": EVIL, "message": EVIL}], "data_fingerprint": EVIL}
    (run.path / "plan.json").write_text(json.dumps(plan))
    (run.path / "spec.toml").write_text(f"a = {json.dumps(EVIL)}")
    (run.path / "best.json").write_text(json.dumps({"name": EVIL, "step": 3}))
    export(run, "step_3", 3, unproved=EVIL + "\ud800")
    page = page_of(run)
    assert not page.all("script") and not page.all("img") and not page.all("b")
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert page.text.count("<script>alert(1)</script>") >= 7 and "this run, no checkpoint left of step 7" in page.text


def test_a_run_that_goes_on_from_another_has_one_curve(tmp_path: Path) -> None:
    make_run(tmp_path / "first", steps=30)
    middle = {"from": str(tmp_path / "first/checkpoints/step_20"), "step": 20, "changed": ["train.optm_lr: 1 -> 2"]}
    make_run(tmp_path / "second", first=20, steps=50, resumes=[middle])
    begun = {"from": str(tmp_path / "second/checkpoints/step_40"), "step": 40, "changed": []}
    again = {"from": "/moved/third/checkpoints/step_50", "step": 50, "changed": []}
    run = make_run(tmp_path / "third", first=40, steps=60, resumes=[begun, again])
    training = read_training(run.path)
    assert [step for step, _ in training.points("train/loss")] == list(range(1, 61))
    page = page_of(run)
    assert "resumes after step 40 of second" in page.text and "this run, step_50" in page.text
    assert "train.optm_lr: 1 -> 2" in page_of(RunFolder(tmp_path / "second")).text


def test_a_run_folder_reached_by_another_name_is_still_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", resumes=[{"from": str(tmp_path / "run/checkpoints/step_20"), "step": 20}])
    monkeypatch.chdir(run.path)
    training = read_training(Path("."))
    assert len(training.points("train/loss")) == 60


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 50, b"[3", b"[[1]]", b'{"a": NaN}', b'{"step": "x", "resumes": [1, {}]}']
)
@pytest.mark.parametrize("name", ["run.json", "plan.json", "status.json", "best.json", "metrics.jsonl", "spec.toml"])
def test_a_damaged_file_costs_what_it_says_and_no_more(tmp_path: Path, name: str, damage: bytes) -> None:
    run = make_run(tmp_path / "run")
    export(run, "step_60", 60)
    (run.path / name).write_bytes(damage)
    page = page_of(run)
    assert "step_60" in page.text
    assert bool(page.all("svg")) == (name != "metrics.jsonl")


def test_damaged_completions_cost_what_lies_behind_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    line = {"step": 2, "slot": 0, "id": "r1", "question": "Is it?", "answer": "Yes", "text": "No.", "reward": 0.5}
    line |= {"parts": {}, "advantage": 0.0, "token_ids": [1], "finish_reason": "stop"}
    frames = [pa.compress(text.encode(), codec="zstd", asbytes=True) for text in (json.dumps(line) + "\n", "{x\n")]
    (run.path / "rollouts-0.jsonl.zst").write_bytes(b"".join(frames))
    assert "r1, mean reward 0.500" in page_of(run).text


@pytest.mark.parametrize("value", ['"x"', "null", "true", "NaN", "1e999", "1" + "0" * 400, "[1]"])
def test_values_that_are_no_numbers_are_no_points(tmp_path: Path, value: str) -> None:
    run = make_run(tmp_path / "run", steps=5)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 6, "train/loss": {value}, "val/avg_loss": {value}}}\n')
    assert len(read_training(run.path).points("train/loss")) == 5
    assert page_of(run).all("svg")


def test_a_long_training_is_a_small_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    events = [{"step": n, "train/loss": 1 + math.sin(n / 99) / 9, "val/avg_loss": 1.0} for n in range(2, 20_000)]
    events[11_000]["train/loss"] = 7.0  # one of all
    with (run.path / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    training = read_training(run.path)
    text = report(training)
    assert "Truncated" not in text, "nothing was generated"
    assert len(text) < 300_000 and "19,798 between them are in metrics.jsonl" in " ".join(Page(text).text.split())
    drawn = main_chart(training)
    assert drawn is not None and drawn["lines"][0]["look"] == "pale"
    heights = sorted(float(place.split()[1]) for place in str(drawn["lines"][0]["path"])[1:].split(" L"))
    assert heights[0] < heights[1] - 100  # the one peak


def test_the_module_writes_the_page_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    program = [sys.executable, "-m", "vidqa.core.pages.training"]
    done = subprocess.run([*program, str(run.path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, f"report: {run.path / 'report.html'}\n")
    assert "Training run" in Page((run.path / "report.html").read_text()).text
    assert main(tmp_path / "none") == 2 and "holds no training" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
