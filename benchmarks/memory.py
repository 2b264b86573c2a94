"""Peak memory and speed of the real trainer over shapes, ways of training and numbers of GPUs.

    python benchmarks/memory.py --gpus 4 --out runs                                # prints one row per run
    python benchmarks/memory.py --check benchmarks/results/memory-4xH200.json      # predicted against measured

Every run is the engine itself under torchrun on real mp4 files, a few optimizer steps long. Runs that together need no
more than the GPUs there are go side by side. A row says all that decides memory (vidqa.budget.measured), so that the
prediction can be made again from the row alone: after a change of the engine, measure, change the counts in
vidqa.budget.memory, and look at --check until every error is small.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("src", "tests", "benchmarks")]

from clips import write_clip
from shapes import write_random_model

from vidqa.budget.measured import compare, description, read_rows, table
from vidqa.budget.memory import Load, model_of
from vidqa.budget.trained import parameters
from vidqa.engine.prepare import training_records
from vidqa.families import family_of
from vidqa.packing.steps import Steps
from vidqa.run_folder import read_metrics
from vidqa.samples import training_planner
from vidqa.spec import Layer, dump, load, resolve

LORA = {"policy.lora.r": 16, "policy.lora.lora_alpha": 32.0}
FROZEN = {"policy.freeze_pattern": ["visual"]}
ALL_KEPT = {"engine.recompute": "none"}


@dataclass(frozen=True)
class Run:
    """One measured training: `tokens` is the pack budget of every micro-step."""

    shape: str
    gpus: int
    way: str
    tokens: int
    over: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.gpus}gpu-{self.way}-{self.tokens // 1024}k"


RUNS = [
    Run("8b", 2, "full", 8192),
    Run("8b", 1, "lora", 8192, LORA),
    Run("2b", 1, "full", 8192),
    Run("8b", 4, "full", 16384),
    Run("8b", 4, "full-kept", 8192, ALL_KEPT),
    Run("8b", 2, "frozen", 8192, FROZEN),
    Run("8b", 1, "lora", 16384, LORA),
    Run("2b", 1, "full-kept", 8192, ALL_KEPT),
    Run("8b", 4, "lora-kept", 8192, {**LORA, **ALL_KEPT}),
    Run("2b", 4, "full", 16384),
]
TINY = [Run("tiny", 1, "full", 8192), Run("tiny", 1, "lora", 8192, LORA)]


def write_data(folder: Path, clips: int) -> Path:
    """Clips whose 40 frames make 5,600 tokens each, one question per clip."""
    records = []
    for number in range(clips):
        write_clip(folder / f"{number}.mp4", frames=80, fps=8, width=640, height=448, first_number=100 * number)
        turns = [
            {"from": "human", "value": "<video>\nWhat is shown in this video?"},
            {"from": "gpt", "value": "a pattern of bits " * (4 + number % 5)},
        ]
        records.append({"id": str(number), "video": f"{number}.mp4", "conversations": turns})
    (folder / "annotations.json").write_text(json.dumps(records))
    return folder


def spec_of(run: Run, model: Path, data: Path, out: Path, frames: int) -> Path:
    packs = max(1, run.tokens // 5700)
    table = {
        "policy.model_name_or_path": str(model),
        "custom.train_dataset.annotation_path": str(data / "annotations.json"),
        "custom.train_dataset.media_path": str(data),
        "custom.vision.nframes": frames,
        "train.output_dir": str(out),
        "train.max_num_steps": 6,
        "train.epoch": 100,
        "train.train_batch_per_replica": packs,
        "train.train_policy.dataloader_num_workers": 2,
        "train.ckpt.enable_checkpoint": False,
        "train.ckpt.export_safetensors": False,
        "policy.parallelism.dp_shard_size": run.gpus,
        "engine.pack_tokens": run.tokens,
        "engine.recompute": "all",
        **run.over,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "spec.toml").write_text(dump(resolve("train", [Layer(run.name, table)]).spec))
    return out / "spec.toml"


def start(run: Run, spec: Path, gpus: list[int]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", str(run.gpus)]
    command += ["-m", "vidqa.engine", "train", "--spec", str(spec), "--run-dir", str(spec.parent / "run")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "OMP_NUM_THREADS": "4"}
    environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    log = (spec.parent / "log.txt").open("wb")
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def row_of(run: Run, out: Path, seconds: float, gpu: str) -> dict[str, Any]:
    """What was trained, and medians over the steps after the second; the first ones warm up."""
    metrics = out / "run/metrics.jsonl"
    events = [e for e in read_metrics(metrics) if "perf/step_s" in e] if metrics.exists() else []
    warm = events[2:]
    if not warm:
        status = out / "run/status.json"
        return {"run": run.name, "failed": status.read_text() if status.exists() else "no status"}
    values = {key: median(event[key] for event in warm) for key in warm[0] if key.startswith("perf/")}
    return {
        "run": run.name,
        "gpu": gpu,
        "ranks": run.gpus,
        **trained(out / "spec.toml", len(events), "cpu" if gpu == "cpu" else "cuda"),
        "start_s": round(seconds, 1),
        **{k.removeprefix("perf/"): round(v, 4) for k, v in values.items()},
    }


def trained(spec_path: Path, steps: int, device: str) -> dict[str, Any]:
    """The model, the keys that matter and the largest pack of a run."""
    spec = load(spec_path, "train")
    folder = Path(spec.policy.model_name_or_path)
    family, ranks = family_of(folder), spec.policy.parallelism.dp_shard_size
    samples, _ = training_planner(spec, folder).plan(training_records(spec)[0])
    plan = Steps(spec, samples, ranks, device)
    packs = [(plan.size(pack), at > 0) for n in range(steps) for rank in plan.packs(n) for at, pack in enumerate(rank)]
    (tokens, patches, supervised), again = max(packs)
    sizes = family.sizes_of(folder)
    model = model_of(sizes, parameters(family.tensors(sizes), spec.policy))
    return description(spec, spec.engine.recompute, model, Load(tokens, patches, supervised, again))


def check(rows: list[dict[str, Any]]) -> None:
    print(*table(rows), sep="\n")
    errors = [abs(each.error) for each in compare(rows) if not each.superseded]
    print(f"largest error {max(errors, default=0):.1%} of {len(errors)} rows")


def side_by_side(runs: list[Run], gpus: int) -> list[list[Run]]:
    """Runs in their order, as many at a time as there are GPUs for."""
    groups: list[list[Run]] = [[]]
    for run in runs:
        if sum(r.gpus for r in groups[-1]) + run.gpus > gpus:
            groups.append([])
        groups[-1].append(run)
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--out", type=Path, help="folder for models, data and runs")
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="print predicted against measured for a file of rows"
    )
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on tiny shapes, also without GPUs")
    options = parser.parse_args()
    if options.check:
        check(read_rows(options.check))
        return
    if options.out is None:
        parser.error("--out or --check is needed")
    runs = TINY if options.tiny else [run for run in RUNS if run.gpus <= options.gpus]
    data = write_data(options.out / "data", 4 if options.tiny else 16)
    device = "cpu" if options.tiny else "cuda"
    gpu = "cpu" if options.tiny else torch.cuda.get_device_name()
    models = {
        shape: write_random_model(
            shape, options.out / shape, ["What is shown in this video? a pattern of bits"], device
        )
        for shape in dict.fromkeys(run.shape for run in runs)
    }
    rows = []
    for group in side_by_side(runs, options.gpus):
        started, first = time.monotonic(), 0
        processes = []
        for run in group:
            spec = spec_of(run, models[run.shape], data, options.out / run.name, 8 if options.tiny else 40)
            processes.append((run, start(run, spec, list(range(first, first + run.gpus)))))
            first += run.gpus
        for run, process in processes:
            process.wait()
            rows.append(row_of(run, options.out / run.name, time.monotonic() - started, gpu))
            print(json.dumps(rows[-1]), flush=True)
    (options.out / "rows.json").write_text(json.dumps(rows, indent=2))
    ok = [row for row in rows if "failed" not in row]
    print(f"{len(ok)} of {len(rows)} runs; median mfu {np.median([row.get('mfu', 0) for row in ok]) if ok else 0:.3f}")


if __name__ == "__main__":
    main()
