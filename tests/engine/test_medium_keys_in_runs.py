"""Keys of media and turns in real runs: what is trained on and what is answered about is what the record asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from clips import write_clip
from in_process import run_here, train_here
from tiny_world import losses, tiny_model, tiny_spec

from vidqa.data import load_records
from vidqa.planning.samples import training_planner
from vidqa.spec import Layer, dump, load, resolve


def rows() -> list[dict[str, Any]]:
    def row(name: str, keys: dict[str, Any], *turns: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        said = [
            {"role": "assistant" if at % 2 else "user", "content": text, **own} for at, (text, own) in enumerate(turns)
        ]
        said[0]["content"] = [{"type": "video", "video": "a.mp4", **keys}, {"type": "text", "text": turns[0][0]}]
        return {"id": name, "messages": said}

    return [
        row("whole", {}, ("Is the first bit set?", {}), ("Yes.", {})),
        row("end", {"video_start": 2.0, "nframes": 2}, ("Is the first bit set?", {}), ("No.", {})),
        row("small", {"fps": 2.0, "max_pixels": 2048}, ("Is a <video> shown?", {}), ("Yes.", {})),
        row("last", {}, ("First?", {}), ("no", {"loss": False}), ("And last?", {}), ("yes", {})),
    ]


def test_a_run_trains_and_evaluates_what_records_ask_for(tmp_path: Path) -> None:
    model, root = tiny_model(tmp_path), tmp_path / "data"
    write_clip(root / "a.mp4", frames=24, fps=6)
    (root / "annotations.json").write_text(json.dumps(rows()))
    frozen = {"policy.freeze_pattern": ["visual"], "engine.keep_features": True, "train.epoch": 2}
    path = tiny_spec(tmp_path, model, root, {**frozen, "custom.vision.cap_pixels_per_frame": True})
    train_here(path, tmp_path / "run")
    spec = load(path, "train")
    samples, problems = training_planner(spec, model).plan(load_records(root))
    assert not problems and len({sample.plans for sample in samples}) == 3
    assert len(losses(tmp_path / "run")) == 2
    last = replace(samples[3].record, turns=tuple(replace(turn, learned=True) for turn in samples[3].record.turns))
    assert training_planner(spec, model).plan([last])[0][0].supervised > samples[3].supervised

    export = sorted((tmp_path / "run/safetensors").iterdir())[-1]
    table = {
        "dataset.annotation_path": str(root / "annotations.json"),
        "dataset.media_dir": str(root),
        "model.model_name": str(export),
        "model.dtype": "float32",
        "vision.nframes": 4,
        "generation.max_tokens": 4,
        "engine.frame_cache_dir": str(tmp_path / "cache"),
    }
    path.write_text(dump(resolve("evaluate", [Layer("test", table)]).spec), encoding="utf-8")
    run_here("evaluate", path, tmp_path / "evaluated")
    results = json.loads((tmp_path / "evaluated/results.json").read_text())
    assert [item["question"] for item in results][2] == "Is a <video> shown?" and len(results) == 4
    recipe = json.loads((tmp_path / "evaluated/recipe.json").read_text())
    assert recipe["frames"]["cap_pixels_per_frame"] is True  # the export says so
