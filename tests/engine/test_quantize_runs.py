"""Runs of quantizing as jobs carry them out: an adapter's run as parent, a kill while writing, and the gate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from forked import Started
from starlette.testclient import TestClient
from tiny_world import engine_command, run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.contract.problem import ProblemError
from vidqa.contract.run_folder import RunFolder
from vidqa.engine import parity as engine_parity
from vidqa.engine import serve
from vidqa.engine.quantize import gate
from vidqa.jobs import local_job, parity
from vidqa.jobs.local_inference import Question, ask
from vidqa.planning.sets import load_sets
from vidqa.spec import Layer, dump, load, resolve
from vidqa.spec.sources import parent_layer
from vidqa.storage.upload import exports

pytest.importorskip("llmcompressor")
KILLED_WITHIN_S = 120
ANSWERING = {"model.dtype": "float32", "vision.nframes": 2, "generation.max_tokens": 4}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of LoRA, a set of other clips, and a spec that quantizes the run and evaluates both models on that set."""
    folder = tmp_path_factory.mktemp("quantize_runs")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), data=tiny_data(folder, clips=8))
    lora = {"policy.lora.r": 4, "policy.lora.target_modules": ["q_proj", "down_proj"], "train.optm_lr": 2e-3}
    lora |= {"train.train_policy.dataset.test_size": 4}
    place.trained = folder / "trained"
    run_engine("train", written := tiny_spec(folder, place.model, place.data, lora), place.trained)
    shutil.copy(written, place.trained / "spec.toml")  # as a launch does
    place.kpi = other = tiny_data(folder / "kpi", clips=2, images=0)
    evaluation = {
        "dataset.annotation_path": str(other / "annotations.json"),
        "dataset.media_dir": str(other),
        **ANSWERING,
        "metrics.names": [],
        "results_dir": str(folder),
    }
    place.evaluation = folder / "evaluate.toml"
    place.evaluation.write_text(dump(resolve("evaluate", [Layer("test", evaluation)]).spec))
    asked = {"quantize.quantization_scheme": "FP8_DYNAMIC", "quantize.evaluate": str(place.evaluation)}
    layers = [parent_layer("quantize", place.trained, "latest"), Layer("test", asked)]
    place.spec = folder / "quantize.toml"
    place.spec.write_text(dump(resolve("quantize", layers).spec))
    place.run = folder / "run"
    place.run.mkdir()
    shutil.copy(place.spec, place.run / "spec.toml")
    (place.run / "run.json").write_text('{"action": "quantize"}')
    return place


def test_a_killed_run_leaves_nothing_half_published_and_the_next_one_ends(world: SimpleNamespace) -> None:
    with (world.folder / "log.txt").open("w") as log:
        process = Started(
            engine_command("quantize", world.spec, world.run), stdout=log, stderr=log, start_new_session=True
        )
        unfinished, until = world.run / "safetensors/.unfinished-final", time.monotonic() + KILLED_WITHIN_S
        while not (unfinished / "config.json").is_file() and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert unfinished.is_dir() and not (world.run / "safetensors/final").exists()
    assert not (world.run / "quantize.json").exists()

    run_engine("quantize", world.spec, world.run, timeout=400)
    facts = json.loads((world.run / "quantize.json").read_text())
    assert not unfinished.exists() and facts["proof"]["largest_difference"] == 0
    assert facts["gate"]["passed"] and facts["gate"]["comparison"]["whole"]["n"] > 0
    assert "% after" in (world.run / "best/README.md").read_text()
    # The adapter's run gave model, frames and records; it was merged before.
    assert (world.run / "merged/merged.json").is_file() and facts["model"]["name"] == "merged"
    trained = json.loads(next((world.trained / "safetensors").glob("*/export.json")).read_text())
    assert abs(facts["proof"]["loss"] - trained["trainer_loss"]) < 2
    assert exports(world.run, "final") == [world.run / "safetensors/final"]
    evaluated = parent_layer("evaluate", world.run, None).table
    assert evaluated["model.model_name"] == str(world.run / "safetensors/final") and evaluated["vision.nframes"] == 4


def test_answers_of_all_programs_are_those_of_the_evaluation(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: Any
) -> None:
    """A server, infer.py and parity.py take the quantized folder as any model."""
    folder = world.run / "safetensors/final"
    item = json.loads((world.run / "evaluations/after/results.json").read_text())[0]
    clip = Path(item["video_id"])
    annotations = str(world.kpi / "annotations.json")
    table = {**ANSWERING, "model.model_name": str(folder), "inference.generator": "native", "engine.decode_workers": 1}
    table |= {"dataset.annotation_path": annotations, "results_dir": str(tmp_path)}
    spec = resolve("inference", [Layer("test", table)]).spec
    serving = Namespace(name="small", host="127.0.0.1", queue=4, max_body_mb=1, max_media_mb=1, choices=[])
    serving.allow_path, serving.allow_host = [str(world.kpi)], []
    content = [
        {"type": "video_url", "video_url": {"url": f"file://{clip}"}},
        {"type": "text", "text": item["question"]},
    ]
    with serve.opened(spec) as backend:
        app = serve.server_app(serving, spec, backend, None, tmp_path).app()
        client = TestClient(app, base_url="http://127.0.0.1")
        body = {"model": "small", "messages": [{"role": "user", "content": content}]}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    assert choice["message"]["content"] == item["response"]

    forking = SimpleNamespace(run=lambda command, **_: forked.run(command, timeout=180), DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(local_job, "subprocess", forking)
    keys = tuple(f"{name}={value}" for name, value in ANSWERING.items())
    (row,) = ask(Question(str(folder), (str(clip),), (item["question"],), sets=keys))
    assert row["response"] == item["response"]

    def compare_here(words: list[str]) -> int:
        monkeypatch.setattr(sys, "argv", words)
        return engine_parity.main()

    monkeypatch.setattr(parity, "_run", compare_here)
    request = parity.ParityRequest(str(folder), ("transformers", "native"), annotations=annotations, sets=keys)
    figures, problems = parity.compare(request)
    assert problems == [] and figures["generators"]["native"]["same_answers"] == 1


def test_what_the_training_held_out_does_not_calibrate(world: SimpleNamespace) -> None:
    trained = load_sets(load(world.trained / "spec.toml", "train"))
    calibrates = load_sets(load(world.spec, "quantize"))["calibration"]
    assert [record.id for record in calibrates] == [record.id for record in trained["train"]]
    assert trained["validation"]


def test_a_model_that_answers_worse_fails_the_gate(world: SimpleNamespace, tmp_path: Path, monkeypatch: Any) -> None:
    def answers(evaluation: Any, model: Path, place: Path) -> None:
        """The evaluation that the run made, with every answer right before, and as it was after."""
        place.mkdir(parents=True)
        made = world.run / "evaluations/after"
        items = json.loads((made / "results.json").read_text())
        if place.name == "before":
            items = [{**item, "response": item["gt"]} for item in items]
        (place / "results.json").write_text(json.dumps(items))
        (place / "recipe.json").write_text((made / "recipe.json").read_text())

    run = RunFolder(tmp_path)
    (tmp_path / "safetensors").mkdir()
    final = tmp_path / "safetensors/final"
    final.mkdir()
    (final / "quantize.json").write_text((world.run / "quantize.json").read_text())
    monkeypatch.setattr(gate, "evaluate", answers)
    table = {
        "model.model_path": str(world.model),
        "dataset.annotation_path": str(world.data / "annotations.json"),
        "quantize.evaluate": str(world.evaluation),
    }
    spec = resolve("quantize", [Layer("test", table)]).spec
    with pytest.raises(ProblemError) as refused:
        gate.pass_gate(spec, run, world.model, final, [], lambda _: final)
    (problem,) = refused.value.problems
    assert (problem.code, problem.exit_code) == ("ENGINE_QUANTIZE_GATE", 5) and "overall" in problem.message
    assert json.loads((final / "quantize.json").read_text())["gate"]["passed"] is False
    assert (tmp_path / "comparison.txt").read_text()
