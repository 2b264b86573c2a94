"""A search on the tiny video task: what it finds beside the template, with re-runs and a test set that is read once.

    python benchmarks/study_tiny.py --out /tmp/study-tiny

20 trials, two at a time, on a CPU: the demo's clips, a model of a million parameters with random weights, 40 steps. The
template has the rate that suits a pretrained model, which is far too low for this one; the search does not know that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ledger import Ledger, arguments, table

ROOT = Path(__file__).resolve().parents[1]
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
    parser.add_argument("--algorithm", default="bayesian")
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    out, began = options.out.absolute(), time.monotonic()
    clips, steps, trials = (24, 2, 3) if options.tiny else (400, 40, options.trials)
    data, model = out / "data", out / "model"
    if not model.exists():
        python("-m", "vidqa.demo", "--out", data, "--clips", clips, "--seed", 0)
        python(
            "-m", "vidqa.engine.families.tiny_qwen3_vl", "--out", model, "--corpus", data / "corpus.txt", "--seed", 0
        )
    build("train", out / "train.toml", "--train-root", data / "train", model, {**TRAIN, "train.max_num_steps": steps})
    build("evaluate", out / "test.toml", "--eval-root", data / "eval", model, EVALUATE)
    study = out / f"study-{options.algorithm}"
    finals = ("--set", "finals.top=1", "--set", f"finals.seeds={[1] if options.tiny else [1, 2, 3]}")
    ranges = ("--range", "train.optm_lr=1e-6..1e-2:log", "--fix", "train.train_batch_per_replica=16")
    words = ("--algorithm", options.algorithm, "--trials", trials, "--concurrent", 2, *ranges, *finals)
    automl("plan", study, "--spec", out / "train.toml", "--test", out / "test.toml", *words)
    automl("start", study, "--wait")
    found = automl("report", study)["data"]
    ledger = Ledger("study_tiny", options)
    row = {name: found[name] for name in ("algorithm", "winner", "best_values", "hours", "trials")}
    row["minutes"] = round((time.monotonic() - began) / 60, 2)
    ledger.add({**row, "rows": found["table"], "comparison": found["comparison"]})
    print(table(found["table"]))


def build(action: str, out: Path, option: str, root: Path, model: Path, sets: dict[str, Any]) -> None:
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    where = ("--model", model, "--results-dir", out.parent / "runs")
    python("scripts/build_spec.py", action, option, root, *where, *words, "--out", out)


def automl(verb: str, study: Path, *words: object) -> dict[str, Any]:
    return json.loads(python("scripts/run_automl.py", verb, "--study", study, *words, "--json"))


def python(*words: object) -> str:
    typed = list(map(str, words))
    done = subprocess.run([sys.executable, *typed], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(typed)} ended with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
