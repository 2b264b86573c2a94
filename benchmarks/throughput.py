"""Our training against the ordinary recipe, in one process tree on the same data: every row of the table, one result.

    python benchmarks/throughput.py --gpus 4 --row all --out DIR
    python benchmarks/throughput.py --gpus 4 --row all --out DIR --go-on     # rows missing in the last call
    python benchmarks/throughput.py --gpus 4 --row 1 --profile --out DIR     # the time of its steps by kernel

Rows are those of benchmarks/README.md. Every result is added to throughput.json at once, so that an interrupted call
leaves its measurements.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_times import summary
from ledger import Ledger, arguments, rounded, table
from processes import SKILL_ROOT, finish, start
from training import ADAPT, ALL_GPUS, SETS, Place, Training, as_tiny, launch, side_by_side, train

MIXED, LONG, EIGHT = SETS["1k-8k"], SETS["4k-8k"], SETS["8-questions"]
FEATURES = {"engine.keep_features": True, "engine.frame_cache_gb": 50.0}  # of 24 clips for each GPU: 4 GB
SHARED = {"engine.share_video_prefix": True}
# Settings that the careful recipe tries on one GPU; on several it takes the first.
CAREFUL_FULL, CAREFUL_LORA = ("8192-kept", "16384-kept", "16384"), ("8192-kept", "12288-kept", "16384")
TRAININGS = [
    Training("ours-16k-packs", "ours", "8b", ALL_GPUS, LONG, 6, 2, per_rank=16),
    Training("ours-full", "ours", "8b", ALL_GPUS, MIXED, 7, 3),
    Training("ordinary-full", "ordinary", "8b", ALL_GPUS, MIXED, 3, 1),
    Training("ordinary-full-packed", "ordinary", "8b", ALL_GPUS, MIXED, 4, 1, words=["--packed"]),
    Training("ours-lora", "ours", "8b", ALL_GPUS, MIXED, 8, 3, pack_tokens=24576, over=ADAPT),
    Training("ours-lora-features", "ours", "8b", ALL_GPUS, MIXED, 10, 4, pack_tokens=24576, over={**ADAPT, **FEATURES}),
    Training("ordinary-lora", "ordinary", "8b", ALL_GPUS, MIXED, 3, 1, words=["--lora"]),
    Training("careful-full", "ordinary", "8b", ALL_GPUS, MIXED, 4, 1, words=["--careful", *CAREFUL_FULL]),
    Training("careful-lora", "ordinary", "8b", ALL_GPUS, MIXED, 4, 1, words=["--lora", "--careful", *CAREFUL_LORA]),
    Training("ours-8-questions", "ours", "8b", ALL_GPUS, EIGHT, 6, 3, per_rank=16),
    Training("ours-8-questions-shared", "ours", "8b", ALL_GPUS, EIGHT, 6, 3, per_rank=16, over=SHARED),
    Training("ours-lora-1gpu", "ours", "8b", 1, MIXED, 8, 3, pack_tokens=24576, over=ADAPT),
    Training("ours-2b-1gpu", "ours", "2b", 1, MIXED, 8, 3),
    Training("ours-2b", "ours", "2b", ALL_GPUS, MIXED, 8, 3),
]
# Separate programs, by the runs that they measure.
PROGRAMS = {"data": ("processor each time", "ours, from the cache"), "saves": ("saves-full",)}
ENOUGH_S = 75  # with less time left, an 8B training would not reach its second step


@dataclass(frozen=True)
class Row:
    """A row of the table: its target, its runs, and the function from their figures to its value."""

    says: str
    unit: str
    must: float
    aim: float
    runs: tuple[str, ...]
    value: Callable[..., float | None]  # from the figures of `runs`, in order
    less: bool = False  # whether less is better

    def reached(self, value: float | None) -> str | None:
        if value is None:
            return None
        good = [value <= limit if self.less else value >= limit for limit in (self.aim, self.must)]
        return "aim" if good[0] else "must" if good[1] else "no"


def figure(key: str) -> Callable[..., float | None]:
    return lambda one: one.get(key)


def ratio(key: str) -> Callable[..., float | None]:
    return lambda ours, theirs: ours[key] / theirs[key] if key in ours and key in theirs else None


SPEED, WAIT, WAIT_FIRST = "tokens/s/gpu", "data_wait", "data_wait_first_epoch"
CACHED = ("ours, from the cache", "processor each time")
ROWS: dict[str, list[Row]] = {
    "1": [Row("full fine-tune, 4k-8k in 16k packs", "strict MFU", 0.50, 0.55, ("ours-16k-packs",), figure("mfu"))],
    "2": [Row("against the ordinary recipe", "x", 3.5, 4.5, ("ours-full", "ordinary-full"), ratio(SPEED))],
    "3": [Row("against it with packing", "x", 1.4, 1.6, ("ours-full", "ordinary-full-packed"), ratio(SPEED))],
    "careful": [
        Row("full against a careful user", "x", 1.0, 1.2, ("ours-full", "careful-full"), ratio(SPEED)),
        Row("LoRA against a careful user", "x", 1.0, 1.2, ("ours-lora", "careful-lora"), ratio(SPEED)),
    ],
    "4": [Row("8 questions a video", "x", 4, 6, ("ours-8-questions-shared", "ours-8-questions"), ratio("samples/s"))],
    "5": [
        Row("LoRA r16", SPEED, 13_000, 14_000, ("ours-lora",), figure(SPEED)),
        Row("the same, features kept", SPEED, 13_000, 14_000, ("ours-lora-features",), figure(SPEED)),
        Row("LoRA against PEFT in the recipe", "x", 4, 5, ("ours-lora", "ordinary-lora"), ratio(SPEED)),
    ],
    "6": [
        Row("waiting for data, first epoch", "of a step", 0.05, 0.02, ("ours-16k-packs",), figure(WAIT_FIRST), True),
        Row("waiting for data, later", "of a step", 0.01, 0.001, ("ours-16k-packs",), figure(WAIT), True),
    ],
    "7": [Row("samples/s/core against the processor", "x", 10, 20, CACHED, ratio("samples/s/core"))],
    "8": [Row("a checkpoint stalls a step", "s", 1.0, 0.5, ("saves-full",), figure("stall_s"), True)],
    "9": [
        Row("LoRA 8B, 1 to all GPUs, speed kept", "x", 0.93, 0.97, ("ours-lora", "ours-lora-1gpu"), ratio(SPEED)),
        Row("full 2B, 1 to all GPUs, speed kept", "x", 0.93, 0.97, ("ours-2b", "ours-2b-1gpu"), ratio(SPEED)),
    ],
    "10": [
        Row("start to first step, 8B", "s", 90, 45, ("ours-16k-packs",), figure("first_step_at_s"), True),
        Row("the same once compiled here", "s", 90, 45, ("ours-full",), figure("first_step_at_s"), True),
    ],
}


def command_line() -> argparse.Namespace:
    parser = arguments(__doc__, gpus=4, timeout=180)
    parser.add_argument("--row", nargs="+", default=["all"], choices=["all", *ROWS])
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything; what is left out is named")
    parser.add_argument("--profile", action="store_true", help="profile a step of our trainings, and measure nothing")
    parser.add_argument("--go-on", action="store_true", help="measure what is missing in the result file's last call")
    return parser.parse_args()


def measure_trainings(trainings: Sequence[Training], place: Place, ledger: Ledger, options: Any, until: float) -> None:
    for group in side_by_side(trainings, options.gpus):
        left = until - time.monotonic()
        if left < ENOUGH_S:
            print(f"no time left for {', '.join(one.name for one in group)}", flush=True)
            continue
        for row in train(group, place, options.set, min(left, options.timeout)):
            tell(row, ledger)


def profile_step(training: Training, place: Place, options: Any) -> dict[str, Any]:
    """Profile the last step on the first GPU: seconds by kind of kernel and by kernel."""
    training = replace(training, name=f"{training.name}-profiled", steps=training.drop + 1)
    trace = place.out / "runs" / f"{training.name}.json"
    engine = (str(SKILL_ROOT / "benchmarks" / "profiled_engine.py"), str(trace), str(training.steps - 1))
    started = launch(training, place, options.set, options.timeout, engine=engine)
    finish([started])
    if started.failure:
        return {"run": training.name, "gpus": training.gpus, "failed": started.failure}
    return {"run": training.name, "gpus": training.gpus, **summary(trace, place.model(training.shape))}


def measure_program(name: str, place: Place, ledger: Ledger, options: Any, until: float) -> None:
    """Run a separate program and add the rows of its result file."""
    left, results = until - time.monotonic(), place.out / "results"
    if left < ENOUGH_S:
        print(f"no time left for {name}.py", flush=True)
        return
    (results / f"{name}.json").unlink(missing_ok=True)
    words = ["--out", place.out, "--results", results, *["--tiny"] * options.tiny]
    if name == "saves":
        words += ["--gpus", options.gpus, "--timeout", left - 15, *(w for key in options.set for w in ("--set", key))]
    started = start([str(SKILL_ROOT / "benchmarks" / f"{name}.py"), *map(str, words)], place.out / f"{name}.log", left)
    finish([started])
    if started.failure:
        tell({"run": name, "failed": started.failure}, ledger)
        return
    for row in json.loads((results / f"{name}.json").read_text())[-1]["rows"]:
        tell(row, ledger)


def tell(row: Mapping[str, Any], ledger: Ledger) -> None:
    ledger.add(row)
    tables = [table(row[key]) for key in ("kinds", "kernels") if key in row]
    brief = {key: value for key, value in row.items() if key not in ("failed", "kinds", "kernels")}
    print(rounded(brief), *tables, *([row["failed"]] if "failed" in row else []), sep="\n", flush=True)


def judged(rows: Sequence[str], measured: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the table, from the figures of each run."""
    lines = []
    for number in rows:
        for row in ROWS[number]:
            value = row.value(*(measured.get(name, {}) for name in row.runs))
            line = {"row": number, "what": row.says, "unit": row.unit, "value": value, "must": row.must, "aim": row.aim}
            lines.append({**line, "reached": row.reached(value)})
    return lines


def main() -> None:
    options, began = command_line(), time.monotonic()
    rows = list(ROWS) if "all" in options.row else options.row
    place = Place(options.out.resolve())
    ledger = Ledger("throughput", options, go_on=options.go_on)
    missing = {name for number in rows for row in ROWS[number] for name in row.runs} - set(complete(ledger))
    trainings = [replace(one, gpus=one.gpus or options.gpus) for one in TRAININGS if one.name in missing]
    if options.tiny:
        trainings = [as_tiny(one, 3 if one.recipe == "ours" else 2) for one in trainings]
    place.make(trainings)
    print(f"models and clips: {time.monotonic() - began:.0f} s", flush=True)
    if options.profile:
        for training in (one for one in trainings if one.recipe == "ours"):
            tell(profile_step(training, place, options), ledger)
        return
    until = began + 60 * options.minutes
    measure_trainings(trainings, place, ledger, options, until)
    for name, runs in PROGRAMS.items():
        if missing.intersection(runs):
            measure_program(name, place, ledger, options, until)
    lines = judged(rows, {row["run"]: row for row in ledger.rows})
    ledger.conclude(lines)
    print(table([row for row in ledger.rows if "step_s" in row]), "", table(lines), sep="\n", flush=True)
    if left := missing - set(complete(ledger)):
        sys.exit(f"not measured, or not to the end: {', '.join(sorted(left))}")


def complete(ledger: Ledger) -> list[str]:
    return [row["run"] for row in ledger.rows if "failed" not in row]


if __name__ == "__main__":
    main()
