"""Preference training on pairs from gaps, against supervised training on the same rows.

    python benchmarks/preference.py --out DIR            (a CPU is enough)

The demo's clips and its tiny model. After a short first training the model answers its training set; from wrong answers
`analyze_gaps.py` and `assemble_dataset.py --pairs` build pairs. From the same weights, with the same rows, steps and
learning rate, one training learns the right answers (sft), one the pairs (dpo), and one both (dpo with an sft weight).
All answer the same held-out clips, and compare.py says whether each is better than the first model and than sft.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("src", "workflow")]

from ledger import Ledger, arguments, table

from demo.commands import build, launch, python, script
from demo.recipe import EVALUATE, GAIN, TRAIN

HELD = ("train.train_policy.dataset.test_size", "validation.enable")
DPO = {"engine.objective": "dpo", "engine.dpo_beta": 0.1}
ARMS: dict[str, dict[str, Any]] = {"sft": {}, "dpo": DPO, "dpo and sft": {**DPO, "engine.dpo_sft_weight": 0.5}}


def main(options: argparse.Namespace) -> None:
    ledger, out = Ledger("preference", options), options.out
    data, model = out / "data", out / "model"
    python("workflow/demo/video_set.py", "--out", data, "--clips", options.clips, "--each", options.each, "--seed", 0)
    drawn = ("--corpus", data / "corpus.txt", "--seed", 0, "--gain", GAIN)
    python("-m", "vidqa.engine.families.tiny_qwen3_vl", "--out", model, *drawn)
    first = train(out / "first.toml", data / "train", model, {**TRAIN, "num_epochs": options.epochs})

    answers = answer(out / "train_answers.toml", first, data / "train")
    gaps, kpi = out / "gaps.parquet", data / "train"
    where = ("--kpi-ann-path", kpi / "annotations.json", "--kpi-media-path", kpi)
    script("analyze_gaps", "--results-dir", answers, "--gaps-parquet", gaps, *where)
    chosen = ("--base", kpi / "annotations.json", "--pairs", gaps, "--kpi", data / "eval", "--out", out / "pairs")
    assembled = json.loads(script("assemble_dataset", *chosen, "--json", read=True))["data"]

    plain = {key: value for key, value in TRAIN.items() if key not in HELD}
    plain |= {"num_epochs": options.more, "learning_rate": options.rate, "train.optm_warmup_steps": 0.1}
    measured = {"first": answer(out / "first_answers.toml", first, data / "eval")}
    for name, keys in ARMS.items():
        stem = name.replace(" ", "_")
        run = train(out / f"{stem}.toml", out / "pairs", first / "best", {**plain, **keys})
        measured[name] = answer(out / f"{stem}_answers.toml", run, data / "eval")
    for name, run in measured.items():
        accuracy = json.loads((run / "metrics.json").read_text())["accuracy"]
        ledger.add({"run": name, "accuracy": accuracy, "pairs": assembled["rows"]})
    ledger.conclude(
        [
            {"run": name, "against": other, "sentence": compared(measured[other], measured[name])}
            for name in ARMS
            for other in ("first", "sft")
            if name != other
        ]
    )
    print(table(ledger.rows), "", table(ledger.call["told"]), sep="\n")


def train(spec: Path, root: Path, model: Path, keys: dict[str, Any]) -> Path:
    build("train", spec, "--train-root", root, "--model", model, overrides=keys)
    return launch("train", spec)


def answer(spec: Path, run: Path, root: Path) -> Path:
    build("evaluate", spec, "--parent-run", run, "--eval-root", root, overrides=EVALUATE)
    return launch("evaluate", spec)


def compared(before: Path, after: Path) -> str:
    """The verdict of compare.py."""
    sentence: str = json.loads(script("compare", before, after, "--json", read=True))["data"]["sentence"]
    return sentence


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--clips", type=int, default=1200)
    parser.add_argument("--each", type=int, default=24, help="held-out clips of each kind")
    parser.add_argument("--epochs", type=int, default=5, help="of the first training")
    parser.add_argument("--more", type=int, default=3, help="epochs of each further one")
    parser.add_argument("--rate", type=float, default=1e-4, help="of each further one")
    options = parser.parse_args()
    if options.tiny:
        options.clips, options.each, options.epochs, options.more = 40, 2, 1, 1
    main(options)
