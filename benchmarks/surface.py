"""Record a table of real tiny trainings for search.py: every combination of three keys, its loss at every sixth step.

    python benchmarks/surface.py --out DIR        # 108 trainings; a call goes on where the last one stopped
    python benchmarks/search.py --out DIR --surface DIR/surface.parquet

The task is the demo's: short synthetic clips, a model of a million parameters with random weights, one process without
a GPU, two trainings at a time. `loss` is that of clips that do not train. The rate stays constant after its warm-up, so
that a training that ends early is the beginning of a longer one. A row: the keys, `step`, `loss`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("src", "tests", "workflow")]

import forked
import pandas as pd
from demo.recipe import TRAIN
from ledger import arguments
from processes import finish, start
from tiny_world import engine_command

from vidqa.contract.environment import adopt
from vidqa.contract.files import write_text
from vidqa.contract.run_folder import read_metrics
from vidqa.spec import Layer, dump, resolve
from vidqa.spec.layers import parse_value

GRID = {
    "train.optm_lr": [1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2],
    "train.train_batch_per_replica": [4, 8, 16],
    "train.optm_grad_norm_clip": [0.1, 1.0, 10.0],
}
OWN = {
    "num_epochs": 100,
    "train.optm_decay_type": "none",
    "train.optm_warmup_steps": 4,
    "train.train_policy.dataset.test_size": 0.16,
    "train.ckpt.enable_checkpoint": False,
    "train.ckpt.export_safetensors": False,
}
STEPS, EVERY, CLIPS, AT_A_TIME = 54, 6, 200, 2
LIMIT_S = 900


def points(tiny: bool) -> Iterator[dict[str, Any]]:
    for values in product(*(list(options)[: 1 if tiny else None] for options in GRID.values())):
        yield dict(zip(GRID, values, strict=True))


def trained(out: Path, number: int, point: Mapping[str, Any], steps: int) -> list[dict[str, Any]]:
    """The rows of one training, which is not repeated where it is there."""
    run = out / "runs" / f"{number:03}"
    if not (run / "done").exists():
        demo = {key: parse_value(value) if isinstance(value, str) else value for key, value in TRAIN.items()}
        place = {
            "custom.train_dataset.annotation_path": str(out / "data/train/annotations.json"),
            "custom.train_dataset.media_path": str(out / "data/train"),
            "policy.model_name_or_path": str(out / "model"),
            "train.max_num_steps": steps,
            "validation.freq": min(EVERY, steps),
        }
        batch = {"mini_batch": min(16, point["train.train_batch_per_replica"])}
        layers = [Layer("demo", demo), Layer("own", {**OWN, **place}), Layer("point", {**point, **batch})]
        write_text(run / "spec.toml", dump(resolve("train", layers).spec))
        done = forked.run(engine_command("train", run / "spec.toml", run), timeout=LIMIT_S)
        if done.returncode:
            raise SystemExit(f"{point}: {done.stderr[-3000:]}")
        (run / "done").touch()
    measured = [each for each in read_metrics(run / "metrics.jsonl") if "val/avg_loss" in each]
    return [{**point, "step": each["step"], "loss": each["val/avg_loss"]} for each in measured]


def main() -> None:
    options = arguments(__doc__).parse_args()
    out = options.out.resolve()
    adopt({"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")})
    if not (out / "model").exists():
        tiny = ("-m", "vidqa.engine.families.tiny_qwen3_vl", "--corpus", str(out / "data/corpus.txt"))
        for words in (
            ("workflow/demo/video_set.py", "--out", str(out / "data"), "--clips", str(24 if options.tiny else CLIPS)),
            (*tiny, "--out", str(out / "model")),
        ):
            program = start(["-P", *words], out / "made.log", LIMIT_S)
            finish([program])
            if program.failure:
                sys.exit(program.failure)
    rows: list[dict[str, Any]] = []
    steps = 6 if options.tiny else STEPS
    asked = list(enumerate(points(options.tiny)))
    trained(out, *asked[0], steps)  # alone: it starts the process that all of them fork from
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for found in pool.map(lambda each: trained(out, *each, steps), asked):
            rows += found
            pd.DataFrame(rows).to_parquet(out / "surface.parquet")
            print(found[-1], flush=True)


if __name__ == "__main__":
    main()
