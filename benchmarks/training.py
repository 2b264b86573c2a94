"""Short measured trainings: ours under its own torchrun, or the ordinary recipe, with the same figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch
from processes import SKILL_ROOT, Started, finish, start
from video_set import SetShape, write_set

from vidqa.core.run_folder import read_metrics
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.layers import parse_set

FPS = 1.4  # clips of 5 to 40 seconds become 1k to 8k tokens
# Clips for each GPU: three, two and two steps are an epoch, on any number of GPUs.
SETS = {
    "1k-8k": SetShape(24, (5, 40)),
    "4k-8k": SetShape(32, (20, 40)),
    "8k": SetShape(16, (30, 30)),  # 7,500 tokens, with Qwen2.5-VL 7,900
    "8-questions": SetShape(4, (20, 40), questions=8),
}
ADAPT = {"policy.lora.r": 16, "policy.lora.lora_alpha": 32.0, "policy.lora.lora_dropout": 0.0, "train.optm_lr": 1e-4}
WORKERS = 8
ALL_GPUS = 0  # in a table of trainings, before their number is known
FIGURES = ("tokens/s/gpu", "samples/s", "mfu", "mfu_unhalved", "memory_gib", "data_wait", "step_s")
BATCH_BYTES = 0.4e9  # float32 patches of 16k tokens of video
ENGINE = ("-m", "vidqa.engine")
STRETCHES = {"planned": "plan.json", "loaded": "run.json"}  # files that a run writes before the first step


@dataclass(frozen=True)
class Training:
    """One measured training. `per_rank` samples make an optimizer step on each GPU, in both recipes; the first `drop`
    of its `steps` warm up (compiling, filling the frame cache) and are not counted."""

    name: str
    recipe: str  # "ours" | "ordinary"
    shape: str
    gpus: int
    data: SetShape  # for each GPU, or for those that share samples
    steps: int
    drop: int
    per_rank: int = 8
    pack_tokens: int = 16384
    over: Mapping[str, Any] = field(default_factory=dict)  # of our spec
    words: Sequence[str] = ()  # of the ordinary recipe's program

    @property
    def data_ranks(self) -> int:
        """The number of GPUs, or groups of GPUs, with separate samples."""
        return self.gpus // self.over.get("policy.parallelism.cp_size", 1)

    @property
    def clips(self) -> SetShape:
        return replace(self.data, clips=self.data.clips * self.data_ranks)


def as_tiny(training: Training, steps: int) -> Training:
    """The same on a model of half a million parameters: a few steps, short clips, small packs."""
    shortest, longest = training.data.seconds
    data = replace(training.data, clips=4, seconds=(shortest / 6, longest / 6), width=96, height=64)
    return replace(training, shape="tiny", data=data, steps=steps, drop=min(1, steps - 1), per_rank=2, pack_tokens=600)


@dataclass(frozen=True)
class Place:
    """The folder of benchmarks: models, clips and runs, which later calls reuse."""

    out: Path

    @cached_property
    def cuda(self) -> bool:
        return torch.cuda.device_count() > 0

    def model(self, shape: str) -> Path:
        return self.out / "models" / shape

    def clips(self, shape: SetShape) -> Path:
        return self.out / "sets" / shape.name

    def run_dir(self, training: Training) -> Path:
        return self.out / "runs" / training.name

    def make(self, trainings: Sequence[Training]) -> None:
        """Write model folders in separate processes, which free their GPU memory, and meanwhile clips on all cores."""
        making = []
        for shape in dict.fromkeys(training.shape for training in trainings):
            if not (self.model(shape) / "processor_config.json").exists():  # written last
                words = [
                    str(SKILL_ROOT / "benchmarks" / "shapes.py"),
                    "--shape",
                    shape,
                    "--out",
                    str(self.model(shape)),
                ]
                making.append(start(words, self.out / "models" / f"{shape}.log", 240))
        for clips in dict.fromkeys(training.clips for training in trainings):
            write_set(self.clips(clips), clips)
        finish(making)
        if failures := [one.failure for one in making if one.failure]:
            raise SystemExit(f"a model folder could not be made: {failures[0]}")


def write_spec(training: Training, place: Place, sets: Sequence[str]) -> Path:
    """Write the spec of our own training: our defaults, and the keys that make it equal work to the compared recipe."""
    data, run = place.clips(training.clips), place.run_dir(training)
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    adapts = any(name.startswith("policy.lora.") for name in training.over)
    values = {
        "policy.model_name_or_path": str(place.model(training.shape)),
        "policy.parallelism.dp_shard_size": 1 if adapts else training.gpus,
        "policy.parallelism.dp_replicate_size": training.gpus if adapts else 1,
        "custom.train_dataset.annotation_path": str(data / "annotations.json"),
        "custom.train_dataset.media_path": str(data),
        "custom.vision.fps": FPS,
        "custom.vision.nframes": None,
        "train.output_dir": str(run),
        "train.max_num_steps": training.steps,
        "train.epoch": 1000,
        "train.train_batch_per_replica": training.per_rank,
        "train.train_policy.dataloader_num_workers": WORKERS if place.cuda else 1,
        "train.ckpt.enable_checkpoint": False,
        "train.ckpt.export_safetensors": False,
        "engine.pack_tokens": training.pack_tokens,
        "engine.frame_cache_dir": str(run / "frames"),  # empty: the first epoch decodes
        **training.over,
    }
    path = run / "spec.toml"
    resolved = resolve("train", [Layer(training.name, values), parse_set(sets)])
    path.write_text(dump(resolved.spec), encoding="utf-8")
    return path


def command_of(training: Training, place: Place, sets: Sequence[str], engine: Sequence[str] = ENGINE) -> list[str]:
    """The arguments of `python`; `sets` are KEY=VALUE of our own spec."""
    ranks = ["--standalone", "--nproc-per-node", str(training.gpus)]
    if training.recipe == "ours":
        spec = write_spec(training, place, sets)
        ours = [*engine, "train", "--spec", str(spec), "--run-dir", str(spec.parent / "run")]
        return ["-m", "vidqa.engine.torchrun", *ranks, *ours]
    words = ["--model", place.model(training.shape), "--data", place.clips(training.clips), "--fps", FPS]
    words += ["--out", place.run_dir(training), "--steps", training.steps, *training.words]
    batches = _packs_per_rank(training) if "--packed" in training.words else training.per_rank // 2
    words += ["--accumulate", batches, "--samples", training.per_rank]
    words += ["--pack-tokens", training.pack_tokens, "--workers", shared_memory_workers(training.gpus, place)]
    program = str(SKILL_ROOT / "benchmarks" / "ordinary.py")
    return ["-m", "torch.distributed.run", *ranks, program, *map(str, words)]


def shared_memory_workers(ranks: int, place: Place) -> int:
    """Loader workers per rank of the ordinary recipe: the usual number, or as many as /dev/shm has room for, through
    which they pass two batches each to their trainer. Without enough room they die."""
    if not place.cuda:
        return 1
    room = 0.8 * shutil.disk_usage("/dev/shm").free / ranks
    return max(1, min(WORKERS, int(room / (2 * BATCH_BYTES))))


def _packs_per_rank(training: Training) -> int:
    """About as many packs as hold `per_rank` samples of mean length."""
    shape = training.data
    tokens = sum(shape.seconds) / 2 * FPS / 2 * (shape.width // 32) * (shape.height // 32)
    return max(1, round(training.per_rank * tokens / training.pack_tokens))


def launch(
    training: Training,
    place: Place,
    sets: Sequence[str],
    limit_s: float,
    *,
    first_gpu: int = 0,
    engine: Sequence[str] = ENGINE,
) -> Started:
    """Start a training, on GPUs from `first_gpu` on."""
    gpus = range(first_gpu, first_gpu + training.gpus) if place.cuda else ()
    log = place.out / "runs" / f"{training.name}.log"
    return start(command_of(training, place, sets, engine), log, limit_s, gpus)


def side_by_side(trainings: Iterable[Training], gpus: int) -> list[list[Training]]:
    """Trainings in groups that run in parallel, in order, each with as many as there are GPUs for."""
    groups: list[list[Training]] = []
    for training in trainings:
        if groups and sum(one.gpus for one in groups[-1]) + training.gpus <= gpus:
            groups[-1].append(training)
        else:
            groups.append([training])
    return groups


def train(group: Sequence[Training], place: Place, sets: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
    """Run trainings in parallel, each on GPUs of its own; returns one row of figures each."""
    started: list[Started] = []
    for training in group:
        first = sum(one.gpus for one in group[: len(started)])
        started.append(launch(training, place, sets, limit_s, first_gpu=first))
    finish(started)
    return [figures(training, place, one) for training, one in zip(group, started, strict=True)]


def figures(training: Training, place: Place, started: Started) -> dict[str, Any]:
    """Medians over the counted steps, the maximum of memory, and `spread`: the range of their tokens/s/gpu, relative to
    the median."""
    steps = (our_steps if training.recipe == "ours" else their_steps)(training, place, started.began)
    row: dict[str, Any] = {"run": training.name, "gpus": training.gpus, "whole_s": started.seconds}
    if started.timed_out and len(steps) > training.drop:
        row["stopped"] = f"over {started.limit_s:.0f} s"  # its measurements before still count
    elif started.failure:
        return {**row, "failed": started.failure}
    counted = steps[training.drop :]
    measured = [key for key in FIGURES if counted[0][key] is not None]
    row |= {key: median(step[key] for step in counted) for key in measured}
    if "memory_gib" in row:  # the peak so far, which the last step has for all steps
        row["memory_gib"] = counted[-1]["memory_gib"]
    speeds = [step["tokens/s/gpu"] for step in counted]
    row |= {"spread": (max(speeds) - min(speeds)) / row["tokens/s/gpu"], "counted_steps": len(counted)}
    if training.recipe == "ours":
        run = place.run_dir(training) / "run"
        facts = json.loads((run / "run.json").read_text())
        row["trained"] = sum(part["trainable"] for part in facts["trainable"])
        row |= {key: facts[key] for key in ("memory_policy", "recompute", "stay")}
        row["pack_tokens"] = json.loads((run / STRETCHES["planned"]).read_text())["pack_tokens"]
        row |= {f"{name}_at_s": (run / file).stat().st_mtime - started.began for name, file in STRETCHES.items()}
        row["data_wait_first_epoch"] = first_epoch_wait(training, place, steps)
        row["losses"] = [step["loss"] for step in steps]
        shutil.rmtree(place.run_dir(training) / "frames", ignore_errors=True)
    else:
        result = json.loads((place.run_dir(training) / "result.json").read_text())
        row |= {key: result[key] for key in ("trained", "settings", "tried") if key in result}
    return {**row, "first_step_at_s": steps[0]["ended_at_s"]}


def first_epoch_wait(training: Training, place: Place, steps: Sequence[Mapping[str, Any]]) -> float:
    """The share of time without a batch in the first epoch's steps, including the very first."""
    plan = json.loads((place.run_dir(training) / "run" / "plan.json").read_text())
    epoch = steps[: plan["steps_per_epoch"]]
    return sum(step["data_wait"] * step["step_s"] for step in epoch) / sum(step["inner_s"] for step in epoch)


def our_steps(training: Training, place: Place, began: float) -> list[dict[str, Any]]:
    """Steps from metrics.jsonl. A step lasts from the end of the previous one to its own end, with all other work."""
    path = place.run_dir(training) / "run" / "metrics.jsonl"
    events = [e for e in read_metrics(path) if "perf/step_s" in e] if path.exists() else []
    steps, last = [], began
    for event in events:
        seconds, inner = max(event["time"] - last, 1e-9), event["perf/step_s"]
        last = event["time"]
        scale = inner / seconds
        mfu, whole = event.get("perf/mfu"), event.get("perf/mfu_attention_not_halved")
        steps.append(
            {
                "tokens/s/gpu": event["perf/tokens_per_s"] * scale / training.gpus,
                "samples/s": training.per_rank * training.data_ranks / seconds,
                "mfu": mfu and mfu * scale,
                "mfu_unhalved": whole and whole * scale,
                "memory_gib": event.get("perf/memory_gib"),
                "data_wait": event["perf/data_wait_s"] / seconds,
                "step_s": seconds,
                "inner_s": inner,
                "ended_at_s": event["time"] - began,
                "loss": event["train/loss"],
            }
        )
    return steps


def their_steps(training: Training, place: Place, began: float) -> list[dict[str, Any]]:
    path = place.run_dir(training) / "result.json"
    if not path.exists() or path.stat().st_mtime < began:
        return []
    result = json.loads(path.read_text())
    peak, ended, steps = result["peak_flops"], result["began"] - began, []
    for step in result["steps"]:
        seconds = step["seconds"]
        ended += seconds
        available = seconds * training.gpus * peak if peak else None
        steps.append(
            {
                "tokens/s/gpu": step["tokens"] / seconds / training.gpus,
                "samples/s": step["samples"] / seconds,
                "mfu": available and step["flops"] / available,
                "mfu_unhalved": available and step["flops_unhalved"] / available,
                "memory_gib": result["memory_gib"],
                "data_wait": step["waited"] / seconds,
                "step_s": seconds,
                "ended_at_s": ended,
            }
        )
    return steps
