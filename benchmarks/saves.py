"""How long a checkpoint of the full state, written in the background, stalls a training step.

python benchmarks/saves.py --gpus 4 --shape 8b --out /tmp/bench

Short steps, one checkpoint after every --every of them. The run is ended when the first checkpoint is published and
some steps were taken after it, or when the second is due: one checkpoint of 8B is 100 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("src", "benchmarks")]

from ledger import RESULTS, Ledger, table
from processes import POLL_S, Started, kill_tree, start
from throughput import ADAPT, FULL, SETS, TINY_SETS, as_tiny
from training import Place, Training, command_of, our_steps

AFTER = 3  # steps that are to follow the published checkpoint
WARM = 4  # steps at the start that no median counts


def run_until_saved(training: Training, place: Place, every: int, options: argparse.Namespace) -> Started:
    """Start the training, and end it with all its processes when enough was seen."""
    log = place.out / "runs" / f"{training.name}.log"
    command = command_of(training, place, options.set)
    started = start(command, log, options.timeout, range(training.gpus) if place.cuda else ())
    published, taken_then = checkpoint_of(training, place, every), None
    try:
        while started.process.poll() is None and time.time() - started.began < started.limit_s:
            time.sleep(POLL_S)
            taken = len(our_steps(training, place, started.began))
            if taken_then is None and (published / "trainer.json").exists():
                taken_then = taken
            if taken >= 2 * every - 1 or (taken_then is not None and taken >= taken_then + AFTER):
                break
    finally:
        if started.process.poll() is None:
            kill_tree(started.process)
    return started


def checkpoint_of(training: Training, place: Place, step: int) -> Path:
    return place.run_dir(training) / "run" / "checkpoints" / f"step_{step}"


def stall_of(training: Training, place: Place, every: int, began: float) -> dict[str, Any]:
    """The longest step from the save on against the median of the steps before it."""
    steps = our_steps(training, place, began)
    path = checkpoint_of(training, place, every)
    row: dict[str, Any] = {"run": training.name, "gpus": training.gpus, "steps": len(steps)}
    if len(steps) <= every:
        return {**row, "failed": f"{len(steps)} steps were taken and the checkpoint is due after {every}"}
    ordinary = median(step["step_s"] for step in steps[WARM:every])
    during = steps[every:]  # what a save costs falls between the end of its step and the end of the next
    done = path / "trainer.json"
    facts = json.loads(done.read_text()) if done.exists() else {}
    written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if facts else 0
    return {
        **row,
        "median step s": ordinary,
        "longest step s": max(step["step_s"] for step in during),
        "stall s": max(step["step_s"] for step in during) - ordinary,
        "median step while writing s": median(step["step_s"] for step in during),
        "published after s": done.stat().st_mtime - began - steps[every - 1]["ended_at_s"] if facts else None,
        "GB": written / 1e9 if facts else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--shape", choices=["2b", "8b"], default="8b")
    parser.add_argument("--lora", action="store_true", help="adapters alone")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our own specs")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal, without GPUs too")
    options = parser.parse_args()
    place = Place(options.out.resolve(), TINY_SETS if options.tiny else SETS)
    saved = {
        "train.ckpt.enable_checkpoint": True,
        "train.ckpt.save_mode": "async",
        "train.ckpt.save_freq": options.every,
        "train.ckpt.save_freq_in_epoch": 0,
        "train.ckpt.max_keep": 1,
        **(ADAPT if options.lora else FULL),
    }
    name = f"saves-{'lora' if options.lora else 'full'}"
    training = Training(
        name, "ours", options.shape, options.gpus, "1k-8k", 1000, 0, per_rank=2, whole=options.lora, over=saved
    )
    if options.tiny:
        training = as_tiny(training, steps=1000)
    place.make([training.shape], [training.data])
    started = run_until_saved(training, place, options.every, options)
    row = stall_of(training, place, options.every, started.began)
    ledger = Ledger("saves", options.results or (options.out / "results" if options.tiny else RESULTS))
    ledger.add(row)
    print(table([row]))
    shutil.rmtree(place.run_dir(training) / "run" / "checkpoints", ignore_errors=True)
    if "failed" in row:
        sys.exit(started.log.read_text(errors="replace")[-3000:])


if __name__ == "__main__":
    main()
