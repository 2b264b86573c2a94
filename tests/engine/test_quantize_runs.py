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
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from forked import Started
from in_process import run_here, train_here
from starlette.testclient import TestClient
from tiny_world import engine_command, tiny_data, tiny_model, tiny_spec

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine import serve
from vidqa.engine.distributed import single_process_world
from vidqa.engine.quantize import gate
from vidqa.engine.quantize import run as program
from vidqa.jobs import local_job
from vidqa.jobs.exports import find
from vidqa.jobs.local_job import Question, ask
from vidqa.jobs.upload import exports
from vidqa.planning.plan import load_sets
from vidqa.spec import Layer, dump, load, resolve
from vidqa.spec.keys import with_values
from vidqa.spec.parent_layers import parent_layer

# Not importorskip: every process that collects tests would import it, which takes ten seconds.
pytestmark = pytest.mark.skipif(find_spec("llmcompressor") is None, reason="llmcompressor is not installed")
KILLED_WITHIN_S = 120
LINEAR_NUMBERS = 2 * (64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 128)  # of the tiny decoder's linear layers
HEADER_BYTES = 10_000
ANSWERING = {"model.dtype": "float32", "vision.nframes": 2, "generation.max_tokens": 4}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of LoRA, a set of other clips, and a spec that quantizes the run and evaluates both models on that set."""
    folder = tmp_path_factory.mktemp("quantize_runs")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), data=tiny_data(folder, clips=8))
    lora = {"policy.lora.r": 4, "policy.lora.target_modules": ["q_proj", "down_proj"], "train.optm_lr": 2e-3}
    lora |= {"train.train_policy.dataset.test_size": 4}
    place.trained = folder / "trained"
    train_here(written := tiny_spec(folder, place.model, place.data, lora), place.trained)
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


def test_a_killed_run_leaves_nothing_half_published_and_the_next_one_ends(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    monkeypatch.setattr(gate, "evaluate", evaluation_here)
    assert program.quantize(load(world.spec, "quantize"), RunFolder(world.run)) == 0
    facts = json.loads((world.run / "quantize.json").read_text())
    assert not unfinished.exists() and facts["proof"]["largest_difference"] == 0
    assert facts["gate"]["passed"] and facts["gate"]["comparison"]["whole"]["n"] > 0
    assert "% after" in (world.run / "best/README.md").read_text()
    assert str(world.folder) not in (world.run / "best/quantize.json").read_text()
    named = f"model with the adapters of trained, {Path(load(world.spec, 'quantize').model.model_path).name}"
    # The adapter's run gave model, frames and records; it was merged before.
    assert (world.run / "merged/merged.json").is_file() and facts["model"]["name"] == named
    assert f"The model {named}, in smaller" in (world.run / "best/README.md").read_text()
    trained = json.loads(next((world.trained / "safetensors").glob("*/export.json")).read_text())
    assert abs(facts["proof"]["loss"] - trained["trainer_loss"]) < 2
    with pytest.raises(ProblemError, match="MODEL_QUANTIZED"):  # export.py has no trained weights to hand on
        find(str(world.run))
    for action in ("train", "grpo", "quantize"):
        with pytest.raises(ProblemError, match=f"unquantized weights\n.*--parent-run {world.trained}"):
            parent_layer(action, world.run, None)
    assert exports(world.run, "final") == [world.run / "safetensors/final"]
    evaluated = parent_layer("evaluate", world.run, None).table
    assert evaluated["model.model_name"] == str(world.run / "safetensors/final") and evaluated["vision.nframes"] == 4


def served_answer(folder: Path, data: Path, item: dict[str, Any], place: Path) -> str:
    """What a server of a quantized folder answers to the question of an evaluation's item."""
    table = {**ANSWERING, "model.model_name": str(folder), "inference.generator": "native", "engine.decode_workers": 1}
    table |= {"dataset.annotation_path": str(data / "annotations.json"), "results_dir": str(place)}
    spec = resolve("inference", [Layer("test", table)]).spec
    serving = Namespace(name="small", host="127.0.0.1", queue=4, max_body_mb=1, max_media_mb=1, choices=[])
    serving.allow_path, serving.allow_host = [str(data)], []
    content = [
        {"type": "video_url", "video_url": {"url": f"file://{item['video_id']}"}},
        {"type": "text", "text": item["question"]},
    ]
    with serve.opened(spec) as backend:
        app = serve.server_app(serving, spec, backend, None, place).app()
        client = TestClient(app, base_url="http://127.0.0.1")
        body = {"model": "small", "messages": [{"role": "user", "content": content}]}
        (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    answer: str = choice["message"]["content"]
    return answer


def test_an_adapter_outside_of_its_run_is_merged_as_in_it(world: SimpleNamespace, tmp_path: Path) -> None:
    adapter = shutil.copytree(next((world.trained / "safetensors").glob("*_*")), tmp_path / "adapter")
    spec = with_values(load(world.spec, "quantize"), {"model.model_path": str(adapter)})
    folder = program.source_folder(spec, RunFolder(tmp_path), single_process_world())
    for name in ("merged.json", "model.safetensors", "processor_config.json"):
        assert (folder / name).read_bytes() == (world.run / "merged" / name).read_bytes(), name


def test_answers_of_all_programs_are_those_of_the_evaluation(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: Any
) -> None:
    """A server, infer.py and both generators take the quantized folder as any model."""
    folder = world.run / "safetensors/final"
    item = json.loads((world.run / "evaluations/after/results.json").read_text())[0]
    clip = Path(item["video_id"])
    annotations = str(world.kpi / "annotations.json")
    assert served_answer(folder, world.kpi, item, tmp_path) == item["response"]

    forking = SimpleNamespace(run=lambda command, **_: forked.run(command, timeout=180), DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(local_job, "subprocess", forking)
    keys = tuple(f"{name}={value}" for name, value in ANSWERING.items())
    (row,) = ask(Question(str(folder), (str(clip),), (item["question"],), sets=keys))
    assert row["response"] == item["response"]

    sys.path.append(str(SKILL_ROOT / "benchmarks"))
    from parity import parity, spec_of

    figures = parity(spec_of(str(folder), None, annotations, "", keys, tmp_path / "parity"))
    assert figures["native"]["same_answers"] == 1


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model that has learned its questions, and an evaluation about other clips; the model's own answers to it are
    given once."""
    folder = tmp_path_factory.mktemp("learned")
    root = tiny_data(folder, clips=11)
    records = json.loads((root / "annotations.json").read_text())
    is_other = [record.get("video") in ("videos/9.mp4", "videos/10.mp4") for record in records]
    for name, others in (("train", False), ("other", True)):
        chosen = [record for record, other in zip(records, is_other, strict=True) if other == others]
        (root / f"{name}.json").write_text(json.dumps(chosen))
    keys = {"train.epoch": 15, "train.optm_lr": 3e-3, "train.ckpt.enable_checkpoint": False}
    keys["custom.train_dataset.annotation_path"] = str(root / "train.json")
    run = train_here(tiny_spec(folder, tiny_model(folder), root, keys), folder / "run")
    evaluation = {"dataset.annotation_path": str(root / "other.json"), "dataset.media_dir": str(root), **ANSWERING}
    evaluation |= {"vision.nframes": 4, "generation.max_tokens": 12, "metrics.names": [], "results_dir": str(folder)}
    place = SimpleNamespace(data=root, model=(run / "best").resolve(), evaluation=folder / "evaluate.toml")
    place.evaluation.write_text(dump(resolve("evaluate", [Layer("test", evaluation)]).spec))
    place.before = folder / "before"
    evaluation_here(load(place.evaluation, "evaluate"), place.model, place.before)
    return place


def evaluation_here(evaluation: Any, model: Path, place: Path) -> None:
    """As `gate.evaluate`, in this process."""
    place.mkdir(parents=True, exist_ok=True)
    spec = place / "spec.toml"
    spec.write_text(dump(with_values(evaluation, {"model.model_name": str(model), "results_dir": str(place.parent)})))
    run_here("evaluate", spec, place)


@pytest.mark.parametrize(
    ("scheme", "share"),
    [
        ("FP8_DYNAMIC", 0.53),
        ("W4A16", 0.31),
        pytest.param("FP8", 0.53, marks=pytest.mark.slow),
        pytest.param("W8A8", 0.53, marks=pytest.mark.slow),
        pytest.param("NVFP4A16", 0.29, marks=pytest.mark.slow),
    ],
)
def test_a_trained_model_is_smaller_and_answers_as_well_and_as_it_is_served(
    learned: SimpleNamespace, tmp_path: Path, monkeypatch: Any, scheme: str, share: float
) -> None:
    def evaluate(evaluation: Any, model: Path, place: Path) -> None:
        if place.name == "before":
            shutil.copytree(learned.before, place)
        else:
            evaluation_here(evaluation, model, place)

    monkeypatch.setattr(gate, "evaluate", evaluate)
    table = {
        "model.model_path": str(learned.model),
        "dataset.annotation_path": str(learned.data / "train.json"),
        "dataset.media_dir": str(learned.data),
        "quantize.quantization_scheme": scheme,
        "quantize.group_size": 32,
        "quantize.num_calibration_samples": 16,
        "quantize.force": True,
        "quantize.evaluate": str(learned.evaluation),
        "vision.nframes": 4,
        "engine.decode_workers": 1,
        "results_dir": str(tmp_path),
    }
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    assert program.quantize(resolve("quantize", [Layer("test", table)]).spec, run) == 0
    facts = json.loads((run.path / "quantize.json").read_text())
    whole = facts["gate"]["comparison"]["whole"]
    assert facts["gate"]["passed"] and whole["before"] >= 0.75 and whole["after"] >= whole["before"] - 0.01
    whole_bytes = facts["bytes"]["model"] / 2  # which is stored in float32
    linear = 2 * LINEAR_NUMBERS
    assert facts["bytes"]["quantized"] < whole_bytes - (1 - share) * linear + HEADER_BYTES
    item = json.loads((run.path / "evaluations/after/results.json").read_text())[0]
    assert item["response"] and item["correct"]
    assert served_answer(run.exports / "final", learned.data, item, tmp_path) == item["response"]


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
