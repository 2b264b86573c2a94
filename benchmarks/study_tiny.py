"""Searches on the tiny video task: what they find beside the template, with re-runs and a test set that is read once.

    python benchmarks/study_tiny.py --out /tmp/study-tiny --together 3

20 trials, two at a time, on a CPU: the demo's clips, a model of a million parameters with random weights, 40 steps. The
template has the rate that suits a pretrained model, which is far too low for this one; the search does not know that.
A seed is that of clips, weights and search. asha has twice as many trials: most of them end after 4 steps, and all
together have fewer than half the steps of 20 whole ones. With `--together 3` three studies run side by side, on six
cores. A call goes on with the studies of an earlier one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import forked
from commands import build, demo, script, tiny_model
from ledger import Ledger, arguments, table

from vidqa.contract.environment import OF_THE_ENGINE, adopt, python_path
from vidqa.automl.study import history_of

TIMES_TRIALS = {"asha": 2}
VISION = {"nframes": 8, "total_pixels": 4 * 32 * 32}
TRAIN = {
    **{f"custom.vision.{key}": value for key, value in VISION.items()},
    "train.max_num_steps": 40,
    "train.train_batch_per_replica": 16,
    "train.train_policy.mini_batch": 16,
    "train.param_dtype": "float32",
    "train.compile": "false",
    "train.train_policy.dataloader_num_workers": 1,
    "train.train_policy.dataset.test_size": 0.15,
    "validation.enable": "true",
    "policy.model_gradient_checkpointing": "false",
    "logging.log_interval": 10,
}
EVALUATE = {
    **{f"vision.{key}": value for key, value in VISION.items()},
    "model.dtype": "float32",
    "generation.max_tokens": 8,
    "evaluation.batch_size": 64,
    "num_gpus": 1,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--algorithms", nargs="+", default=["bayesian", "random", "asha"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--together", type=int, default=1, help="studies at one time, each with two trials at one time")
    parser.add_argument("--final-seeds", nargs="*", type=int, default=[1, 2, 3], help="none: no re-runs, no test set")
    options = parser.parse_args()
    out, ledger = options.out.absolute(), Ledger("study_tiny", options)
    adopt({"VIDQA_STATE_DIR": str(out / "state"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    adopt({"PYTHONPATH": python_path(ROOT / "src"), **OF_THE_ENGINE})
    asked = list(product(options.algorithms, options.seeds))
    clips, steps = (24, 3) if options.tiny else (400, 40)
    with ThreadPoolExecutor(options.together) as pool:
        list(pool.map(lambda seed: made(out / f"seed-{seed}", clips, steps, seed), options.seeds))
        for row in pool.map(lambda each: searched(out, *each, options), asked):
            ledger.add(row)
            print(table(row.get("rows", [row])), flush=True)
            ledger.conclude([told(each) for each in ledger.rows])
    print(table(ledger.call["told"]))


def searched(out: Path, algorithm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One study, begun or gone on with, and what came of it."""
    began = time.monotonic()
    steps, trials = (3, 3) if options.tiny else (40, options.trials * TIMES_TRIALS.get(algorithm, 1))
    place, study = out / f"seed-{seed}", out / f"seed-{seed}" / algorithm
    finals = ("--set", "finals.top=1", "--set", f"finals.seeds={options.final_seeds[: 1 if options.tiny else None]}")
    rungs = ("--set", f"steps.shortest={max(1, steps // 9)}", "--set", f"steps.longest={steps}")
    ranges = ("--range", "train.optm_lr=1e-6..1e-2:log", "--fix", "train.train_batch_per_replica=16")
    words = ("--algorithm", algorithm, "--set", f"seed={seed}", "--trials", trials, "--concurrent", 2)
    if not (study / "journal.jsonl").exists():
        test = ("--test", place / "test.toml") if options.final_seeds else ()
        automl("plan", study, "--spec", place / "train.toml", *test, *words, *rungs, *ranges, *finals)
    carry_out(study)
    found, history = automl("report", study), history_of(study)[0]
    row = {"seed": seed, "algorithm": algorithm, "trials": found["trials"], "hours": found["hours"]}
    row["states"] = dict(Counter(each.state for each in history.trials))
    row["steps"] = sum(each.measured[-1].steps for each in history.trials if each.measured)
    row["best"] = min(each.objective for each in history.trials if each.state == "complete" and each.measured)
    row["minutes"] = round((time.monotonic() - began) / 60, 2)
    if not options.final_seeds:
        return row
    return {**row, **{name: found[name] for name in ("winner", "best_values", "comparison")}, "rows": found["table"]}


def told(row: dict[str, Any]) -> dict[str, Any]:
    """One line of the table: what was spent, and what winner and template reach in re-runs and on the test set."""
    line = {key: row[key] for key in ("algorithm", "seed", "trials", "steps", "best", "minutes")}
    for who in ("template", "winner"):
        for each in row.get("rows", []):
            if each["who"] == who:
                line |= {f"{who} again": each["mean"], f"{who} on the test set": mean(each["test"])}
    return line


def carry_out(study: Path) -> None:
    """Work on the study to its end. Its controller and jobs fork from one process that has imported the engine: of the
    20 s of a processor that a trial of 40 steps takes, 15 would be imports."""
    words = [sys.executable, "-P", "-m", "vidqa.automl", "--study", str(study), "--json"]
    with (study / "controller.log").open("ab") as log:
        if forked.Started(words, stdout=log, stderr=log, cwd=ROOT).wait():
            sys.exit(f"{study} did not come to its end: {study / 'controller.log'}")


def made(place: Path, clips: int, steps: int, seed: int) -> None:
    """Clips, weights and specs of a seed, where they are not there yet."""
    data, model = place / "data", place / "model"
    if (place / "test.toml").exists():
        return
    demo(data, seed, clips=clips)
    tiny_model(model, data, seed)
    train, where = {**TRAIN, "train.max_num_steps": steps}, ("--model", model, "--results-dir", place / "runs")
    build("train", place / "train.toml", train, "--train-root", data / "train", *where)
    build("evaluate", place / "test.toml", EVALUATE, "--eval-root", data / "eval", *where)


def automl(verb: str, study: Path, *words: object) -> dict[str, Any]:
    return script("run_automl", verb, "--study", study, *words)


if __name__ == "__main__":
    main()
