"""Training on a card of 24 GiB: bases in 4 and 8 bits, 8-bit moments, offload; against the ordinary QLoRA recipe.

    python benchmarks/small_card.py --out DIR
    python benchmarks/small_card.py --only nf4 --out DIR --go-on      # lanes by parts of their names
    python benchmarks/small_card.py --out DIR --rehearse              # on a CPU, with a tiny model

A large card is limited by engine.gpu_memory_gib. The lane `8b-full-offload` takes 78 GiB of it and about 110 GiB of
host memory (in one process: on a host with several GPUs, one of them). The ordinary recipe is transformers, PEFT and
bitsandbytes as in their guides; its memory is measured, not limited. `longest` trains one sample of about as many
tokens as its name says at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ledger import Ledger, arguments, table
from policies import LONG, MEMORY, SPEED, complete_row, fits_here
from training import ADAPT, SETS, Place, Training, as_tiny, train
from video_set import SetShape

LIMIT_GIB, WHOLE_GIB = 24.0, 78.0  # the latter of a card of 80 GB
SHOWN = ("run", SPEED, "mfu", *MEMORY, "step_s", "pack_tokens", "memory_policy", "failed")
NF4, FP8 = {"policy.quantization": "nf4"}, {"policy.quantization": "fp8"}
EIGHT = {"train.optm_name": "AdamW8bit"}
OFFLOAD = {"train.fsdp_offload": True, "policy.model_max_length": 2**16}  # packs may be as long
FREE = {"engine.recompute": "auto", "engine.pack_tokens": None}
STEPS, DROP = 6, 3
# Seconds of one video that make a sample of about as many tokens; 630 s are 128k tokens.
LONGEST = {"16k": 80, "32k": 160}


def lane(
    name: str, shape: str, data: SetShape, over: Mapping[str, Any], *, limit: float | None = LIMIT_GIB
) -> Training:
    per_rank = 1 if name.startswith("longest") else 8
    steps, drop = (3, 1) if "offload" in name else (STEPS, DROP)
    return Training(
        name, "ours", shape, 1, data, steps, drop, per_rank, over={**FREE, "engine.gpu_memory_gib": limit, **over}
    )


def lanes() -> list[Training]:
    """All lanes, the most important first in case time runs out."""
    ordinary = Training("8b-nf4-ordinary", "ordinary", "8b", 1, SETS["1k-8k"], 3, 1, 8, words=("--lora", "--nf4"))
    long_sets = {name: SetShape(2, (seconds, seconds), width=736) for name, seconds in LONGEST.items()}
    return [
        lane("8b-nf4", "8b", SETS["1k-8k"], {**ADAPT, **NF4}),
        ordinary,
        lane("8b-fp8", "8b", SETS["1k-8k"], {**ADAPT, **FP8}),
        lane("2b-full-8bit", "2b", SETS["1k-8k"], EIGHT),
        lane("2b-full-8bit-offload", "2b", SETS["1k-8k"], {**EIGHT, **OFFLOAD}),
        lane("8b-full-offload", "8b", SETS["4k-8k"], {**EIGHT, **OFFLOAD}, limit=WHOLE_GIB),
        *(lane(f"longest-{name}", "8b", data, {**ADAPT, **NF4, **LONG}) for name, data in long_sets.items()),
    ]


def summary(rows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each lane with the error of its prediction, and relative to the ordinary recipe if that was measured."""
    lines = []
    theirs = rows.get("8b-nf4-ordinary", {}).get(SPEED)
    for name, row in rows.items():
        line = {key: row.get(key) for key in ("run", SPEED, "mfu", "predicted_gib", "memory_gib", "failed")}
        if row.get("predicted_gib") and row.get("memory_gib"):
            line["error"] = f"{row['predicted_gib'] / row['memory_gib'] - 1:+.1%}"
        if name == "8b-nf4" and theirs and row.get(SPEED):
            line["against_ordinary"] = row[SPEED] / theirs
        lines.append(line)
    return lines


def small(training: Training) -> Training:
    """The lane on a tiny model."""
    tiny = as_tiny(training, 3 if training.recipe == "ours" else 2)
    return replace(tiny, over={**training.over, "engine.pack_tokens": 2048})


def main() -> None:
    parser = arguments(__doc__, gpus=1, timeout=280)
    parser.add_argument("--rehearse", dest="tiny", action="store_true", help="the same as --tiny")
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of the lanes; all by default")
    parser.add_argument("--go-on", action="store_true", help="make what is missing in the result file's last call")
    options = parser.parse_args()
    place, ledger = Place(options.out.resolve()), Ledger("small_card", options, go_on=options.go_on)
    there = {row["run"] for row in ledger.rows if "failed" not in row}
    runs = [one for one in lanes() if not options.only or any(part in one.name for part in options.only)]
    runs = [small(one) if options.tiny else one for one in runs if one.name not in there]
    place.make(runs)
    for training in runs:
        if not fits_here(training, place):
            ledger.add({"run": training.name, "failed": "predicted not to fit"})
            continue
        (row,) = train([training], place, options.set, options.timeout)
        ours = training.recipe == "ours" and "failed" not in row
        ledger.add(complete_row(training, row, place) if ours else row)
        print({key: ledger.rows[-1].get(key) for key in SHOWN}, flush=True)
        ledger.conclude(summary({row["run"]: row for row in ledger.rows}))
    print(table(summary({row["run"]: row for row in ledger.rows})))
    if failures := [row["failed"] for row in ledger.rows if "failed" in row]:
        sys.exit(str(failures[0]))


if __name__ == "__main__":
    main()
