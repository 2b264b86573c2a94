"""Our training beside the ordinary recipe, in one process tree on the same data: speed, MFU, memory, waiting.

    python benchmarks/throughput.py --gpus 4 --row all --out /tmp/bench      # rows 1 2 3 5 6 9; --row 4 for one row

Rows are those of benchmarks/README.md. Models (random weights of real shapes) and clips are made on the first call and
found again below --out. Every result is added to results/throughput.json as soon as it is there, so that a run that is
cut off leaves what it measured. --tiny rehearses everything in a minute on a CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("src", "benchmarks")]

from ledger import RESULTS, Ledger, rounded, table
from training import LORA, Place, Training, train
from video_set import SetShape

FULL = {"engine.recompute": "none"}
ADAPT = {**LORA, **FULL}
SETS = {
    "1k-8k": SetShape(96, (5, 40)),
    "4k-8k": SetShape(64, (20, 40)),
    "8-questions": SetShape(32, (20, 40), questions=8),
}
TINY_SETS = {
    "1k-8k": SetShape(12, (2, 6), width=96, height=64),
    "4k-8k": SetShape(12, (4, 6), width=96, height=64),
    "8-questions": SetShape(4, (4, 6), questions=4, width=96, height=64),
}
SHARED = {"engine.share_video_prefix": True}
FULL_MIXED = Training("ours-full", "ours", "8b", 0, "1k-8k", 8, 3, over=FULL)
LORA_MIXED = Training("ours-lora", "ours", "8b", 0, "1k-8k", 8, 3, whole=True, over=ADAPT)
EIGHT = Training("ours-8-questions", "ours", "8b", 0, "8-questions", 6, 3, per_rank=16, over=FULL)
TRAININGS = [
    Training("ours-16k-packs", "ours", "8b", 0, "4k-8k", 8, 3, over=FULL),
    FULL_MIXED,
    Training("ordinary-full", "ordinary", "8b", 0, "1k-8k", 3, 1),
    Training("ordinary-full-packed", "ordinary", "8b", 0, "1k-8k", 4, 1, words=["--packed"]),
    LORA_MIXED,
    Training("ordinary-lora", "ordinary", "8b", 0, "1k-8k", 3, 1, words=["--lora"]),
    EIGHT,
    replace(EIGHT, name="ours-8-questions-shared", over={**FULL, **SHARED}),
    replace(LORA_MIXED, name="ours-lora-1gpu", gpus=1),
    Training("ours-2b-1gpu", "ours", "2b", 1, "1k-8k", 8, 3, over=FULL),
    Training("ours-2b", "ours", "2b", 0, "1k-8k", 8, 3, over=FULL),
]


@dataclass(frozen=True)
class Row:
    """A row of the table: what is to be reached, from which trainings, and how it is told from their figures."""

    says: str
    unit: str
    must: float
    aim: float
    runs: tuple[str, ...]
    value: Callable[..., float | None]  # the figures of `runs`, in order
    less: bool = False  # is better

    def reached(self, value: float | None) -> str | None:
        if value is None:
            return None
        good = [value <= limit if self.less else value >= limit for limit in (self.aim, self.must)]
        return "aim" if good[0] else "must" if good[1] else "no"


def figure(key: str) -> Callable[..., float | None]:
    return lambda one: one.get(key)


def ratio(key: str) -> Callable[..., float | None]:
    return lambda ours, theirs: ours[key] / theirs[key]


SPEED = "tokens/s/gpu"
WAIT_FIRST = figure("data_wait_first_epoch")
ROWS: dict[str, list[Row]] = {
    "1": [Row("full fine-tune, 4k-8k in 16k packs", "strict MFU", 0.50, 0.55, ("ours-16k-packs",), figure("mfu"))],
    "2": [Row("against the ordinary recipe", "x", 3.5, 4.5, ("ours-full", "ordinary-full"), ratio(SPEED))],
    "3": [Row("against it with packing", "x", 1.4, 1.6, ("ours-full", "ordinary-full-packed"), ratio(SPEED))],
    "4": [Row("8 questions a video", "x", 4, 6, ("ours-8-questions-shared", "ours-8-questions"), ratio("samples/s"))],
    "5": [
        Row("LoRA r16", SPEED, 13_000, 14_000, ("ours-lora",), figure(SPEED)),
        Row("LoRA against PEFT in the recipe", "x", 4, 5, ("ours-lora", "ordinary-lora"), ratio(SPEED)),
    ],
    "6": [
        Row("waiting for data, first epoch", "of a step", 0.05, 0.02, ("ours-16k-packs",), WAIT_FIRST, less=True),
        Row("waiting for data, later", "of a step", 0.01, 0.001, ("ours-16k-packs",), figure("data_wait"), less=True),
    ],
    "9": [
        Row("LoRA 8B, 1 to all GPUs, speed kept", "x", 0.93, 0.97, ("ours-lora", "ours-lora-1gpu"), ratio(SPEED)),
        Row("full 2B, 1 to all GPUs, speed kept", "x", 0.93, 0.97, ("ours-2b", "ours-2b-1gpu"), ratio(SPEED)),
    ],
}
ALL = ("1", "2", "3", "5", "6", "9")


def groups_of(trainings: Sequence[Training], gpus: int) -> list[list[Training]]:
    """In their order, as many side by side as there are GPUs for."""
    groups: list[list[Training]] = []
    for training in trainings:
        if groups and sum(one.gpus for one in groups[-1]) + training.gpus <= gpus:
            groups[-1].append(training)
        else:
            groups.append([training])
    return groups


def as_tiny(training: Training, steps: int | None = None) -> Training:
    """The same on a model of a million parameters: a few steps, small packs."""
    steps = steps or (3 if training.recipe == "ours" else 2)
    return replace(training, shape="tiny", steps=steps, drop=min(1, steps - 1), per_rank=2, pack_tokens=600)


def measure(groups: Sequence[Sequence[Training]], place: Place, ledger: Ledger, options: Any) -> dict[str, dict]:
    """The figures of every training that there was time for."""
    until, found = time.monotonic() + 60 * options.minutes, {}
    for group in groups:
        left = until - time.monotonic()
        if left < 30 and not options.tiny:
            print(f"no time left for {', '.join(one.name for one in group)}", flush=True)
            continue
        limits = {one.name: min(left, options.timeout) for one in group}
        for row in train(group, place, limits, options.set):
            found[row["run"]] = row
            ledger.add(row)
            brief = {key: value for key, value in row.items() if key != "failed"}
            print(rounded(brief), *([row["failed"]] if "failed" in row else []), sep="\n", flush=True)
    return found


def judged(rows: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table's rows that could be told."""
    lines = []
    for number in rows:
        for row in ROWS[number]:
            figures = [found.get(name, {}) for name in row.runs]
            told = row.value(*figures) if all("step_s" in one for one in figures) else None
            line = {"row": number, "what": row.says, "unit": row.unit, "value": told, "must": row.must, "aim": row.aim}
            lines.append({**line, "reached": row.reached(told)})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--row", nargs="+", default=["all"], choices=["all", *ROWS])
    parser.add_argument("--out", type=Path, required=True, help="models, clips, runs and logs")
    parser.add_argument("--results", type=Path, help="folder of throughput.json; benchmarks/results unless --tiny")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our own specs")
    parser.add_argument("--timeout", type=float, default=180, help="seconds that one training may take")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of them; what is left out is named")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal, without GPUs too")
    options = parser.parse_args()
    rows = list(dict.fromkeys(one for word in options.row for one in (ALL if word == "all" else [word])))
    place = Place(options.out.resolve(), TINY_SETS if options.tiny else SETS)
    names = {name for number in rows for row in ROWS[number] for name in row.runs}
    trainings = [replace(one, gpus=one.gpus or options.gpus) for one in TRAININGS if one.name in names]
    trainings = [as_tiny(one) for one in trainings] if options.tiny else trainings
    started = time.monotonic()
    place.make(list(dict.fromkeys(t.shape for t in trainings)), list(dict.fromkeys(t.data for t in trainings)))
    print(f"models and clips: {time.monotonic() - started:.0f} s", flush=True)
    options.minutes -= (time.monotonic() - started) / 60
    folder = options.results or (options.out / "results" if options.tiny else RESULTS)
    found = measure(groups_of(trainings, options.gpus), place, Ledger("throughput", folder), options)
    told = [{k: v for k, v in row.items() if k != "failed"} for row in found.values()]
    print(table(told), "", table(judged(rows, found)), sep="\n", flush=True)
    if any("failed" in row for row in found.values()) or len(found) < len(trainings):
        sys.exit(1)


if __name__ == "__main__":
    main()
