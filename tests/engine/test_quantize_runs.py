"""Runs of quantizing as jobs carry them out: an adapter's run as parent, a kill while writing, and the gate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import Started
from tiny_world import engine_command, run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.contract.problem import ProblemError
from vidqa.contract.run_folder import RunFolder
from vidqa.engine.quantize import gate
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.sources import parent_layer
from vidqa.storage.upload import exports

pytest.importorskip("llmcompressor")
KILLED_WITHIN_S = 120


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of LoRA, a set of other clips, and a spec that quantizes the run and evaluates both models on that set."""
    folder = tmp_path_factory.mktemp("quantize_runs")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), data=tiny_data(folder, clips=8))
    lora = {"policy.lora.r": 4, "policy.lora.target_modules": ["q_proj", "down_proj"], "train.optm_lr": 2e-3}
    place.trained = folder / "trained"
    run_engine("train", written := tiny_spec(folder, place.model, place.data, lora), place.trained)
    shutil.copy(written, place.trained / "spec.toml")  # as a launch does
    other = tiny_data(folder / "kpi", clips=2, images=0)
    evaluation = {
        "dataset.annotation_path": str(other / "annotations.json"),
        "dataset.media_dir": str(other),
        "vision.nframes": 2,
        "generation.max_tokens": 4,
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
    spec = resolve(
        "quantize",
        [
            Layer(
                "test",
                json.loads(
                    json.dumps(
                        {
                            "model.model_path": str(world.model),
                            "dataset.annotation_path": str(world.data / "annotations.json"),
                            "quantize.evaluate": str(world.evaluation),
                        }
                    )
                ),
            )
        ],
    ).spec
    with pytest.raises(ProblemError) as refused:
        gate.judge(spec, run, world.model, final)
    (problem,) = refused.value.problems
    assert (problem.code, problem.exit_code) == ("ENGINE_QUANTIZE_GATE", 5) and "overall" in problem.message
    assert json.loads((final / "quantize.json").read_text())["gate"]["passed"] is False
    assert (tmp_path / "comparison.txt").read_text()
