"""Record a table of real tiny trainings for search.py: every combination of four keys, its accuracy at every rung.

    python benchmarks/surface.py --out DIR        # 54 trainings; a call goes on where the last one stopped
    python benchmarks/search.py --out DIR --surface DIR/surface.parquet

The task is the demo's: short synthetic clips, a model of a million parameters with random weights, one process without
a GPU. `accuracy` is that of generated answers about clips that do not train. A row: the keys, `step`, `accuracy`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import pandas as pd
from ledger import arguments
from processes import finish, start

from vidqa.contract.files import write_text
from vidqa.contract.run_folder import read_metrics
from vidqa.demo.recipe import TRAIN
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.layers import parse_value

GRID = {
    "train.optm_lr": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
    "train.train_batch_per_replica": [8, 16, 32],
    "train.optm_decay_type": ["cosine", "linear", "none"],
}
STEPS, EVERY, CLIPS, ANSWERED = 162, 6, 600, 64
LIMIT_S = 900
ENGINE = ("-P", "-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", "1", "-m", "vidqa.engine")


def points(tiny: bool) -> Iterator[dict[str, Any]]:
    for values in product(*(list(options)[: 1 if tiny else None] for options in GRID.values())):
        yield dict(zip(GRID, values, strict=True))


def trained(out: Path, name: str, point: Mapping[str, Any], steps: int) -> list[dict[str, Any]]:
    """The rows of one training, which is not repeated where it is there."""
    run = out / "runs" / name
    if not (run / "done").exists():
        overrides = {key: parse_value(value) if isinstance(value, str) else value for key, value in TRAIN.items()}
        own = {
            "custom.train_dataset.annotation_path": str(out / "data/train/annotations.json"),
            "custom.train_dataset.media_path": str(out / "data/train"),
            "policy.model_name_or_path": str(out / "model"),
            "dp_shard_size": 1,
            "mini_batch": 8,
            "num_epochs": 100,
            "train.max_num_steps": steps,
            "train.train_policy.dataset.test_size": ANSWERED,
            "validation.freq": EVERY if steps == STEPS else steps,
            "engine.validation_generate": ANSWERED,
            "engine.validation_max_tokens": 8,
            "train.ckpt.enable_checkpoint": False,
        }
        spec = resolve(
            "train", [Layer("demo", {**overrides, "batch_size": 8}), Layer("own", own), Layer("point", dict(point))]
        ).spec
        write_text(run / "spec.toml", dump(spec))
        training = start(
            [*ENGINE, "train", "--spec", str(run / "spec.toml"), "--run-dir", str(run)],
            run / "log",
            LIMIT_S,
        )
        finish([training])
        if training.failure:
            sys.exit(f"{name}: {training.failure}")
        (run / "done").touch()
    measured = [each for each in read_metrics(run / "metrics.jsonl") if "val/accuracy" in each]
    return [{**point, "step": each["step"], "accuracy": each["val/accuracy"]} for each in measured]


def main() -> None:
    options = arguments(__doc__).parse_args()
    out = options.out.resolve()
    if not (out / "model").exists():
        made = [
            ["-m", "vidqa.demo", "--out", str(out / "data"), "--clips", str(60 if options.tiny else CLIPS)],
            [
                "-m",
                "vidqa.engine.families.tiny_qwen3_vl",
                "--out",
                str(out / "model"),
                "--corpus",
                str(out / "data/corpus.txt"),
            ],
        ]
        for command in made:
            program = start(["-P", *command], out / "made.log", LIMIT_S)
            finish([program])
            if program.failure:
                sys.exit(program.failure)
    rows = []
    for number, point in enumerate(points(options.tiny)):
        rows += trained(out, f"{number:03}", point, 6 if options.tiny else STEPS)
        pd.DataFrame(rows).to_parquet(out / "surface.parquet")
        print(point, f"{rows[-1]['accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
