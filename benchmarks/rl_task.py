"""GRPO on a tiny video task, on a CPU: three seeds, with control runs that must learn nothing.

    python benchmarks/rl_task.py --out /tmp/rl-task --together 2

The task of workflow/rl: clips of four colors, multiple choice. SFT teaches the format and to see, with letters drawn at
random, so GRPO starts at chance, 0.25. A seed determines clips, weights, questions and draws. Cases:

    rewarded   GRPO on the right references
    shuffled   references permuted between records: rewards that say nothing about the video
    black      the right references, and every clip black
    skewed     80 % of the records have the letter A; engine.balance = "none"
    balanced   the same records; engine.balance = "label", as in the first three

`held out` is the sampled accuracy (temperature 1) on other clips, with each letter right for a quarter: it is the
balanced accuracy. A call reuses the runs of an earlier one.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import product, repeat
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("src", "tests", "workflow")]

import forked
import numpy as np
from commands import sets, tiny_model
from ledger import Ledger, arguments, table
from tiny_world import engine_command

from demo.recipe import GAIN, RL, RL_CLIPS, RL_SFT
from demo.rl_set import write_rl_set
from demo.scenes import SIDE
from vidqa.core.environment import adopt
from vidqa.core.files import write_json, write_text
from vidqa.core.run_folder import read_metrics
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.layers import parse_set
from vidqa.video.encode import write_h264

CASES = {"rewarded": "train", "shuffled": "shuffled", "black": "black", "skewed": "skewed", "balanced": "skewed"}
STEPS, WINDOW = 200, 20  # steps of GRPO; steps averaged in a point of a curve
TINY_SFT_STEPS = 50  # of SFT in a rehearsal: rewards vary after it, or GRPO would end
SHARE = 0.8  # share of the records of `skewed` with the letter A
LIMIT_S = 3000
HELD_OUT = {
    "validation.enable": True,
    "validation.val_before_train": True,
    "validation.temperature": 1.0,
    "engine.stop.validation_below_start": False,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--together", type=int, default=1, help="trainings at one time, each on one core")
    options = parser.parse_args()
    adopt({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    out, steps, ledger = options.out.absolute(), 2 if options.tiny else STEPS, Ledger("rl_task", options)
    with ThreadPoolExecutor(options.together) as pool:
        list(pool.map(lambda seed: prepare(out / f"seed-{seed}", seed, steps), options.seeds))
        cases, seeds = zip(*product(options.cases, options.seeds), strict=True)
        folders = [out / f"seed-{seed}" for seed in seeds]
        for row in pool.map(refined, folders, cases, seeds, repeat(steps)):
            ledger.add(row)
            lines = [summary(case, ledger.rows) for case in dict.fromkeys(row["case"] for row in ledger.rows)]
            ledger.conclude(lines)
            print(table(lines), flush=True)


def prepare(place: Path, seed: int, steps: int) -> None:
    """Write clips, the sets of all cases, weights, and their SFT, if they are missing."""
    data = place / "data"
    if not (place / "model" / "processor_config.json").exists():
        write_rl_set(data, RL_CLIPS, seed)
        write_cases(data, random.Random(seed))
        tiny_model(place / "model", data, seed, GAIN)
    values = {"policy.model_name_or_path": place / "model", "train.seed": seed, **data_keys("train", data / "sft")}
    train("train", place / "sft", RL_SFT, values, RL_SFT["train.max_num_steps"] if steps == STEPS else TINY_SFT_STEPS)


def write_cases(data: Path, rng: random.Random) -> None:
    """Write the training sets of the controls, beside the right one, and a held-out set of black clips."""
    records = json.loads((data / "train" / "annotations.json").read_text())
    for folder in ("shuffled", "black", "skewed", "black-eval"):
        (data / folder).mkdir()
    answers = [answer_of(record) for record in records]
    rng.shuffle(answers)
    shuffled = [with_answer(record, answer) for record, answer in zip(records, answers, strict=True)]
    write_json(data / "shuffled" / "annotations.json", shuffled)
    frequent = [record for record in records if "<answer>A<" in answer_of(record)]
    others = [record for record in records if record not in frequent]
    count = round(len(frequent) * (1 - SHARE) / SHARE)
    write_json(data / "skewed" / "annotations.json", rng.sample([*frequent, *others[:count]], len(frequent) + count))
    for folder, source in (("black", "train"), ("black-eval", "eval")):
        frames = np.zeros((20, SIDE, SIDE, 3), np.uint8)
        write_h264(data / folder / "black.mp4", frames, Fraction(10), "ultrafast", crf=20, threads=1)
        real = json.loads((data / source / "annotations.json").read_text())
        black = [{**record, "video": "black.mp4", "video_fps": 10} for record in real]
        write_json(data / folder / "annotations.json", black)


def answer_of(record: Mapping[str, Any]) -> str:
    return record["conversations"][1]["value"]


def with_answer(record: Mapping[str, Any], answer: str) -> dict[str, Any]:
    return {**record, "conversations": [record["conversations"][0], {"from": "gpt", "value": answer}]}


def data_keys(split: str, folder: Path, media: Path | None = None) -> dict[str, object]:
    keys = {"annotation_path": folder / "annotations.json", "media_path": media or folder}
    return {f"custom.{split}_dataset.{name}": path for name, path in keys.items()}


def refined(place: Path, case: str, seed: int, steps: int) -> dict[str, Any]:
    """Run GRPO of one case and seed; returns its curves: means over WINDOW steps, by the step with which they end."""
    data, run = place / "data", place / case
    values = {
        **{key: value for key, value in RL_SFT.items() if key.startswith("custom.")},
        "policy.model_name_or_path": place / "sft" / "best",
        **data_keys("train", data / CASES[case], data / ("black" if case == "black" else "train")),
        **data_keys("val", data / ("black-eval" if case == "black" else "eval")),
        "custom.val_dataset.response_mode": RL_SFT["custom.train_dataset.response_mode"],
        **HELD_OUT,
        "validation.freq": max(1, steps // 4),
        "num_epochs": 100,
        "engine.balance": "none" if case == "skewed" else "label",
        "train.train_policy.dataloader_seed": seed,
        "rollout.seed": seed,
    }
    seconds = train("grpo", run, RL, values, steps)
    events = read_metrics(run / "metrics.jsonl")
    row: dict[str, Any] = {"case": case, "seed": seed, "seconds": seconds}
    for name in ("accuracy", "format"):
        curve = [event[f"reward/{name}"] for event in events if f"reward/{name}" in event]
        row[name] = {
            str(min(first + WINDOW, steps)): mean(curve[first : first + WINDOW]) for first in range(0, steps, WINDOW)
        }
    row["held out"] = {str(event["step"]): event["val/accuracy"] for event in events if "val/accuracy" in event}
    return row


def train(action: str, run: Path, recipe: Mapping[str, Any], values: Mapping[str, Any], steps: int) -> float:
    """Run a training in `run` unless it is complete, and return its duration in seconds."""
    if not (run / "seconds.json").exists():
        shutil.rmtree(run, ignore_errors=True)
        own = {
            **values,
            "train.max_num_steps": steps,
            "train.output_dir": run,
            "train.ckpt.save_freq": steps,
            "engine.frame_cache_dir": run.parent / "frames",
        }
        own = {key: str(value) if isinstance(value, Path) else value for key, value in own.items()}
        layers = [parse_set(sets(recipe)[1::2], "recipe"), Layer("own", own)]
        write_text(run / "asked.toml", dump(resolve(action, layers).spec))
        began = time.monotonic()
        done = forked.run(engine_command(action, run / "asked.toml", run), timeout=LIMIT_S)
        if done.returncode:
            raise SystemExit(f"{run}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
        write_json(run / "seconds.json", time.monotonic() - began)
    return json.loads((run / "seconds.json").read_text())


def summary(case: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table: the first and last values of each seed."""
    mine = [row for row in rows if row["case"] == case]

    def ends(name: str, last: bool) -> str:
        return " ".join(f"{list(row[name].values())[-1 if last else 0]:.2f}" for row in mine)

    return {
        "case": case,
        "seeds": " ".join(str(row["seed"]) for row in mine),
        "held out, start": ends("held out", False),
        "held out, end": ends("held out", True),
        "sampled, end": ends("accuracy", True),
        "format, start": ends("format", False),
        "format, end": ends("format", True),
        "seconds": round(mean(row["seconds"] for row in mine)),
    }


if __name__ == "__main__":
    main()
