"""Speed and losses of training with matrix products in 8-bit floats: one training in bf16, then in fp8.

    python benchmarks/float8.py --gpus 4 --out DIR

All take the same steps on the same samples from the same weights. The baseline is another training in bf16 with
smaller packs: its losses differ only by rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

from ledger import Ledger, arguments, table
from training import ALL_GPUS, SETS, Place, Training, as_tiny, train

SHOWN = ("run", "tokens/s/gpu", "mfu", "memory_gib", "step_s", "recompute", "speed", "loss_off_mean", "loss_off_most")


def run(name: str, pack_tokens: int = 16384, **fp8: Any) -> Training:
    """Eight steps on all GPUs; the first two warm up."""
    over = {"train.optm_lr": 1e-5, **{f"train.fp8.{key}": value for key, value in fp8.items()}}
    return Training(name, "ours", "8b", ALL_GPUS, SETS["4k-8k"], 8, 2, pack_tokens=pack_tokens, over=over)


RUNS = [
    run("bf16"),
    run("fp8-rowwise", enable_fp8=True, quant_recipe="rowwise"),
    run("fp8-tensorwise", enable_fp8=True, quant_recipe="tensorwise"),
    run("bf16-packs-of-12k", pack_tokens=12288),
]


def beside(row: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The speed of a training relative to the plain one, and the differences of its losses, relative to the plain
    losses, over the steps that both have taken: a training over its time limit has taken fewer."""
    off = [abs(ours - theirs) / theirs for ours, theirs in zip(row["losses"], plain["losses"], strict=False)]
    return {"speed": row["tokens/s/gpu"] / plain["tokens/s/gpu"], "loss_off_mean": mean(off), "loss_off_most": max(off)}


def main() -> None:
    parser = arguments(__doc__, gpus=4)
    parser.add_argument("--shape", choices=["8b", "8b-third"], default="8b", help="a third of the layers fits one GPU")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in RUNS], help="all by default")
    options = parser.parse_args()
    place, ledger = Place(options.out.resolve()), Ledger("float8", options)
    runs = [
        replace(one, gpus=options.gpus, shape=options.shape)
        for one in RUNS
        if not options.only or one.name in options.only
    ]
    runs = [as_tiny(one, 3) for one in runs[:2]] if options.tiny else runs
    place.make(runs)
    plain: dict[str, Any] = {}  # the first row, whose losses are not rounded
    for training in runs:
        (row,) = train([training], place, options.set, options.timeout)
        if "failed" not in row:
            plain = plain or row
            row |= beside(row, plain)
        ledger.add(row)
        print(ledger.rows[-1], flush=True)
    print(table([{key: row.get(key) for key in SHOWN} for row in ledger.rows]))
    if failures := [row["failed"] for row in ledger.rows if "failed" in row]:
        sys.exit(failures[0])


if __name__ == "__main__":
    main()
