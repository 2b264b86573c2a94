"""A tiny model folder and a tiny data set of real clips, images and text, for tests of the engine.

model = tiny_model(tmp)                       a Qwen3-VL folder, or one of another `family`
root = tiny_data(tmp, clips=6)                root mode: annotations.json and media
path = tiny_spec(tmp, model, root, {"train.epoch": 2})
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import forked
from clips import write_clip, write_image

from vidqa.spec import Layer, dump, resolve

SOURCE = Path(__file__).resolve().parents[1] / "src"
QUESTIONS = (
    ("Is the first bit set?", "Yes."),
    ("How many frames are there?\n(A) few\n(B) many", "B"),
    ("What is shown?", "a pattern of bits that counts the frames"),
)


@cache
def _model_builder(family: str) -> Any:
    module = {"qwen3_vl": "vidqa.engine.families.tiny_qwen3_vl", "qwen2_5_vl": "tiny_qwen2_5_vl"}[family]
    return import_module(module).write_tiny_model


def tiny_model(folder: Path, family: str = "qwen3_vl", **options: Any) -> Path:
    return _model_builder(family)(folder / "model", [text for pair in QUESTIONS for text in pair], **options)


def tiny_data(folder: Path, *, clips: int = 6, images: int = 1, texts: int = 1) -> Path:
    """Write clips of different lengths, rates and sizes with 2 questions each, and image and text questions."""
    root = folder / "data"
    root.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []

    def add(media: dict[str, Any], tags: str, number: int) -> None:
        question, answer = QUESTIONS[number % len(QUESTIONS)]
        turns = [{"from": "human", "value": tags + question}, {"from": "gpt", "value": answer}]
        records.append({"id": f"r{len(records)}", **media, "conversations": turns})

    for number in range(clips):
        size = {"width": 64 + 32 * (number % 2), "height": 64}
        write_clip(
            root / f"videos/{number}.mp4", frames=8 + 3 * number, fps=4 + number % 3, **size, first_number=40 * number
        )
        for question in range(2):
            add({"video": f"videos/{number}.mp4"}, "<video>\n", number + question)
    for number in range(images):
        write_image(root / f"images/{number}.png", number=number, width=96, height=64)
        add({"image": f"images/{number}.png"}, "<image>\n", number)
    for number in range(texts):
        add({}, "", number + 1)
    (root / "annotations.json").write_text(json.dumps(records), encoding="utf-8")
    return root


def tiny_spec(folder: Path, model: Path, root: Path, overrides: dict[str, Any] | None = None) -> Path:
    """Write the spec of a full fine-tune in float32 without warm-up, with `overrides` by dotted name. All trainings on
    the same data share a frame cache, so that only the first starts decode workers, which import torch."""
    table = {
        "policy.model_name_or_path": str(model),
        "policy.model_max_length": 4096,
        "custom.train_dataset.annotation_path": str(root / "annotations.json"),
        "custom.train_dataset.media_path": str(root),
        "custom.vision.nframes": 4,
        "train.output_dir": str(folder / "out"),
        "train.param_dtype": "float32",
        "train.train_batch_per_replica": 4,
        "train.epoch": 1,
        "train.optm_lr": 1e-3,
        "train.optm_warmup_steps": 0,
        "train.train_policy.dataloader_num_workers": 1,
        "engine.frame_cache_dir": str(root.parent / "cache"),
        "engine.pack_tokens": 400,
        **(overrides or {}),
    }
    path = folder / "spec.toml"
    path.write_text(dump(resolve("train", [Layer("test", table)]).spec), encoding="utf-8")
    return path


def run_engine(
    action: str, spec: Path, run_dir: Path, ranks: int = 1, *, check: bool = True, timeout: float = 180, **place: Any
) -> subprocess.CompletedProcess[str]:
    """Run the engine under a real torchrun; its processes fork from one that has imported their modules."""
    done = forked.run(engine_command(action, spec, run_dir, ranks), timeout=timeout, **place)
    if check and done.returncode:
        raise AssertionError(f"engine exited {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return done


def engine_command(action: str, spec: Path, run_dir: Path, ranks: int = 1) -> list[str]:
    torchrun = [sys.executable, "-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", str(ranks)]
    return [*torchrun, "-m", "vidqa.engine", action, "--spec", str(spec), "--run-dir", str(run_dir)]


def losses(run_dir: Path) -> list[float]:
    """train/loss of every step."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["train/loss"] for event in map(json.loads, lines) if "train/loss" in event]
