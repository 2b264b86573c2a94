"""From the start of torchrun to the end of the first optimizer step, with weights on local disk.

python benchmarks/start.py --gpus 4 --shape 8b --out /tmp/bench

Told apart by the files that a run leaves on its way: plan.json when the data is planned, run.json when the model is
loaded and sharded, metrics.jsonl after the first step. Run twice, the second has warm caches, as a user's second run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("src", "benchmarks")]

from ledger import RESULTS, Ledger, table
from processes import finish, start
from throughput import FULL, SETS, TINY_SETS, as_tiny
from training import Place, Training, command_of, our_steps


def measure(training: Training, place: Place, attempt: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each stretch and of the whole."""
    log = place.out / "runs" / f"{training.name}.log"
    command = command_of(training, place, options.set)
    started = start(command, log, options.timeout, range(training.gpus) if place.cuda else ())
    finish([started])
    run = place.run_dir(training) / "run"
    row: dict[str, Any] = {"shape": training.shape, "gpus": training.gpus, "attempt": attempt}
    steps = our_steps(training, place, started.began)
    if not steps:
        return {**row, "failed": started.failure}
    planned, loaded = ((run / name).stat().st_mtime - started.began for name in ("plan.json", "run.json"))
    first = steps[0]["ended_at_s"]
    return {
        **row,
        "programs and data plan s": planned,
        "weights s": loaded - planned,
        "first step s": first - loaded,
        "start to first step s": first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--shape", choices=["2b", "8b"], default="8b")
    parser.add_argument("--attempts", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our own specs")
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal, without GPUs too")
    options = parser.parse_args()
    place = Place(options.out.resolve(), TINY_SETS if options.tiny else SETS)
    training = Training("start", "ours", options.shape, options.gpus, "1k-8k", 1, 0, over=FULL)
    if options.tiny:
        training = as_tiny(training, steps=1)
    place.make([training.shape], [training.data])
    ledger = Ledger("start", options.results or (options.out / "results" if options.tiny else RESULTS))
    rows = []
    for attempt in range(1, options.attempts + 1):
        rows.append(measure(training, place, attempt, options))
        ledger.add(rows[-1])
    print(table([{key: value for key, value in row.items() if key != "failed"} for row in rows]))
    if failures := [row["failed"] for row in rows if "failed" in row]:
        sys.exit(failures[0])


if __name__ == "__main__":
    main()
