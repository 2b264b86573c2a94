"""How often answers are the same in bf16 on a model that has learned to answer the demo's questions.

    python benchmarks/trained_agreement.py --out DIR [--shape 8b --gpus 2]

Random weights cannot show it: their likeliest tokens lie so close that rounding decides. So a model of real sizes is
made at random, trained in full on the demo's clips, and asked about its evaluation set by every generator
(scripts/parity.py). 8B shapes are trained on two GPUs of 141 GB; with --tiny it is a small model on the CPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from commands import build, script, sets
from ledger import Ledger, arguments
from shapes import write_random_model

SKILL_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SKILL_ROOT / "src"), str(SKILL_ROOT / "workflow")]

from demo.clips import write_demo_set
from demo.recipe import TRAIN, VISION

from vidqa.contract.run_folder import read_metrics

LEARN = {
    "num_epochs": 5,
    "learning_rate": 2e-4,
    "train.train_policy.dataloader_num_workers": 8,
    "train.optm_warmup_steps": 50,
    "train.ckpt.enable_checkpoint": "false",
    "train.ckpt.save_freq_in_epoch": 5,  # the last export is enough
}
BATCH = 64  # questions, on all GPUs
LR_8B = 1.5e-4
DIFFERENT = 5  # what parity.py ends with where answers differ: here a result, too


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shape", default="2b", choices=["2b", "reason1-3b", "8b"])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--clips", type=int, default=3000)
    parser.add_argument("--epochs", type=int, help="5 by default")
    options = parser.parse_args()
    out, device = options.out.absolute(), "cuda" if torch.cuda.is_available() else "cpu"
    shape, clips = ("tiny", 12) if options.tiny else (options.shape, options.clips)
    data, model = out / f"demo-{clips}", out / f"trained-{shape}"
    if not (data / "corpus.txt").exists():
        write_demo_set(data, clips, seed=0)
    if not (model / "processor_config.json").exists():
        write_random_model(shape, model, (data / "corpus.txt").read_text().splitlines(), device)
    dtype = "float32" if options.tiny else "bfloat16"
    over = {**TRAIN, **LEARN, "train.param_dtype": dtype, "train.compile": str(not options.tiny).lower()}
    over |= {"batch_size": BATCH // options.gpus, "mini_batch": BATCH // options.gpus, "dp_shard_size": options.gpus}
    over |= {"learning_rate": LR_8B} if options.shape == "8b" else {}
    over |= {"num_epochs": options.epochs} if options.epochs else {}
    over |= {"num_epochs": 1, "batch_size": 8, "mini_batch": 8} if options.tiny else {}
    spec = out / f"train-{shape}.toml"
    where = ("--train-root", data / "train", "--model", model, "--results-dir", out / "runs")
    build("train", spec, over, *where)
    run = script("launch", "train", "--spec", spec, "--platform", "local", "--wait")["run_dir"]
    # Answers that agree say something where the model has learned which are right: then this is near 0.
    loss = [event["val/avg_loss"] for event in read_metrics(Path(run) / "metrics.jsonl") if "val/avg_loss" in event][-1]
    asked = ("--annotations", data / "eval" / "annotations.json", "--media", data / "eval")
    values = {**{f"vision.{key}": value for key, value in VISION.items()}, "generation.max_tokens": 8}
    values |= {"model.dtype": dtype, "inference.limit": 1000}
    compared = ("--model", run, *asked, "--generators", "native,transformers", *sets(values))
    found = script("parity", *compared, codes=(0, DIFFERENT))
    told = {"run": f"{shape} trained on {clips} clips, {dtype}", "training_gpus": options.gpus, "validation_loss": loss}
    row = {**told, **found}
    Ledger("trained_agreement", options).add(row)
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
