"""The search for layers that must stay: a layer that its scheme breaks is kept, and the gate holds then."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from in_process import run_here
from safetensors.torch import load_file, save_file
from tiny_world import tiny_data, tiny_model

from vidqa.core.run_folder import RunFolder
from vidqa.engine.quantize import gate, run
from vidqa.engine.quantize.gate import kept_group_candidates
from vidqa.planning.quantization import QuantizationPlan, fused_group
from vidqa.spec import Layer, dump, resolve

# Not importorskip: every process that collects tests would import it, which takes ten seconds.
pytestmark = pytest.mark.skipif(find_spec("llmcompressor") is None, reason="llmcompressor is not installed")
LAYER = "model.language_model.layers.1.mlp"


def break_layer(model: Path) -> None:
    """Make most of what a layer does its `down_proj`'s, and give each group of 32 of its weights a number beside which
    all others round to zero. That number's input is always zero, so that the model before does not see it."""
    tensors = load_file(model / "model.safetensors")
    outliers = slice(0, None, 32)
    tensors[f"{LAYER}.down_proj.weight"] *= -40
    tensors[f"{LAYER}.down_proj.weight"][:, outliers] = 1e4
    tensors[f"{LAYER}.up_proj.weight"][outliers] = 0
    save_file(tensors, model / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model with a layer that 8 bits break, and an evaluation in which all answers of the model before are right."""
    folder = tmp_path_factory.mktemp("search")
    place = SimpleNamespace(folder=folder, model=tiny_model(folder), data=tiny_data(folder, clips=8, images=0))
    break_layer(place.model)
    kpi = tiny_data(folder / "kpi", clips=0, images=0, texts=16) / "annotations.json"
    records = json.loads(kpi.read_text())
    for number, record in enumerate(records):
        options = "\n".join(f"({letter}) {number + at}" for at, letter in enumerate("ABCD"))
        record["conversations"][0]["value"] = f"Which number is it?\n{options}"
        record["conversations"][1]["value"] = "A"
    kpi.write_text(json.dumps(records))
    table = {
        "dataset.annotation_path": str(kpi),
        "dataset.media_dir": str(kpi.parent),
        "model.model_name": str(place.model),
        "model.dtype": "float32",
        "vision.nframes": 2,
        "evaluation.method": "score",
        "metrics.names": [],
        "results_dir": str(folder),
    }
    place.evaluation = folder / "evaluate.toml"
    place.evaluation.write_text(dump(resolve("evaluate", [Layer("test", table)]).spec))
    run_here("evaluate", place.evaluation, folder / "first")
    answers = {item["sample_id"]: item["response"] for item in json.loads((folder / "first/results.json").read_text())}
    for record in records:
        record["conversations"][1]["value"] = answers[record["id"]]
    kpi.write_text(json.dumps(records))
    return place


def searched(world: SimpleNamespace, folder: Path) -> RunFolder:
    """A search on the model, its evaluations by engines that fork."""
    table = {
        "model.model_path": str(world.model),
        "dataset.annotation_path": str(world.data / "annotations.json"),
        "dataset.media_dir": str(world.data),
        "quantize.quantization_scheme": "W8A16",
        "quantize.group_size": 32,
        "quantize.kv_precision": "fp8",  # which calibrates
        "quantize.num_calibration_samples": 16,
        "quantize.force": True,
        "quantize.evaluate": str(world.evaluation),
        "quantize.search": True,
        "vision.nframes": 4,
        "engine.frame_cache_dir": str(world.folder / "cache"),
        "engine.decode_workers": 1,
        "results_dir": str(folder),
    }
    place = RunFolder(folder)
    assert run.quantize(resolve("quantize", [Layer("test", table)]).spec, place) == 0
    return place


def test_groups_stay_by_error_on_a_tenth_of_the_parameters() -> None:
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj")
    modules = {f"layers.{number}.{name}": (10, 10) for number in range(3) for name in names}
    plan = QuantizationPlan(modules, (), parameters=4000, bytes=0)
    errors = {fused_group(name): 0.1 for name in modules}
    errors |= {"layers.1.self_attn.qkv": 0.9, "layers.0.self_attn.qkv": 0.8, "layers.2.mlp.down_proj": 0.5}
    worst = "layers.1.self_attn.qkv"  # 300 parameters, more than the first try's 100
    assert kept_group_candidates(plan, errors) == [(worst,), (worst, "layers.2.mlp.down_proj")]
    assert kept_group_candidates(replace(plan, parameters=900), errors) == []
    assert kept_group_candidates(plan, {}) == []


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of the evaluations that a run makes."""
    places: list[Path] = []

    def start(command: list[str], **options: Any) -> Any:
        places.append(Path(command[-1]))
        done = forked.run(command, timeout=180)
        print(done.stderr[-3000:])
        return done

    monkeypatch.setattr(gate, "subprocess", SimpleNamespace(run=start, DEVNULL=subprocess.DEVNULL))
    return places


def test_the_layer_that_breaks_is_kept_and_the_gate_holds(
    world: SimpleNamespace, tmp_path: Path, forking: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, measure = [], run.measure
    monkeypatch.setattr(run, "measure", lambda *words: measured.append(1) or measure(*words))
    rows, compress = [], run.compress

    def compress_recorded(*words: Any) -> None:
        rows.append([row["inputs_embeds"].sum().item() for row in words[-1]])
        compress(*words)

    monkeypatch.setattr(run, "compress", compress_recorded)
    place = searched(world, tmp_path)
    facts = json.loads((place.path / "quantize.json").read_text())
    first, last = facts["tries"]
    assert first["kept"] == [] and not first["passed"] and last["kept"] == [f"{LAYER}.down_proj"] and last["passed"]
    assert first["bytes"] < last["bytes"] and first["after"] < first["before"] == last["before"] == 1
    assert [folder.name for folder in forking] == ["before", "after", "after-2"]
    assert len(measured) == 3, "of the model before once, and of each quantized one"
    assert len(rows) == 2 and len(rows[0]) == 16 and rows[0] == rows[1], "both tries calibrate on the same inputs"
    assert f"{LAYER}.down_proj" in facts["kept"] and f"{LAYER}.down_proj" not in facts["modules"]
    line = f"| 2 | {LAYER}.down_proj |"
    assert line in (place.path / "best/README.md").read_text() and line in (place.path / "comparison.txt").read_text()
