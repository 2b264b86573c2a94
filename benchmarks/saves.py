"""The stall of a training step by a checkpoint of the full state, written in the background.

    python benchmarks/saves.py --gpus 4 --out DIR [--shape 2b] [--lora]

A checkpoint is due after every eighth step. The run is ended when the first is published and some steps were taken
after it, or when the second is due: one checkpoint of 8B is 100 GB of disk.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from ledger import Ledger, arguments, table
from processes import POLL_S, Started, kill_tree
from training import ADAPT, Place, Training, as_tiny, launch, our_steps
from video_set import SetShape

EVERY = 8  # steps from one checkpoint to the next
CLIPS = SetShape(24, (20, 20))  # of one length, so that steps differ only in the save
AFTER = 3  # steps after the published checkpoint
WARM = 4  # steps at the start that no median includes


def run_until_saved(training: Training, place: Place, sets: list[str], limit_s: float) -> Started:
    """Start the training, and end it with all its processes once there are enough measurements."""
    started = launch(training, place, sets, limit_s)
    published, taken_then = checkpoint_of(training, place), None
    try:
        while started.process.poll() is None and time.time() - started.began < started.limit_s:
            time.sleep(POLL_S)
            steps = len(our_steps(training, place, started.began))
            if taken_then is None and (published / "trainer.json").exists():
                taken_then = steps
            if steps >= 2 * EVERY - 1 or (taken_then is not None and steps >= taken_then + AFTER):
                break
    finally:
        if started.process.poll() is None:
            kill_tree(started.process)
    return started


def checkpoint_of(training: Training, place: Place) -> Path:
    return place.run_dir(training) / "run" / "checkpoints" / f"step_{EVERY}"


def stall_of(training: Training, place: Place, began: float) -> dict[str, Any]:
    """The longest step since the save, against the median of the steps before it."""
    steps = our_steps(training, place, began)
    path = checkpoint_of(training, place)
    row: dict[str, Any] = {"run": training.name, "gpus": training.gpus, "steps": len(steps)}
    if len(steps) <= EVERY:
        return {**row, "failed": f"{len(steps)} steps were taken and the checkpoint is due after {EVERY}"}
    before = [step["step_s"] for step in steps[WARM:EVERY]]
    during = [step["step_s"] for step in steps[EVERY:]]  # a save costs time after the end of its step
    done = path / "trainer.json"
    facts = json.loads(done.read_text()) if done.exists() else {}
    written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if facts else 0
    return {
        **row,
        "stall_s": max(during) - median(before),
        "median_step_before_s": median(before),
        "longest_step_before_s": max(before),
        "longest_early_step_s": max(step["step_s"] for step in steps[1:WARM]),  # host memory is allocated there
        "median_step_while_writing_s": median(during),
        "published_after_s": done.stat().st_mtime - began - steps[EVERY - 1]["ended_at_s"] if facts else None,
        "GB": written / 1e9 if facts else None,
    }


def main() -> None:
    parser = arguments(__doc__, gpus=4, timeout=300)
    parser.add_argument("--shape", choices=["2b", "8b"], default="8b")
    parser.add_argument("--lora", action="store_true", help="adapters alone")
    options = parser.parse_args()
    place = Place(options.out.resolve())
    name, over = ("saves-lora", ADAPT) if options.lora else ("saves-full", {})
    saved = {
        "train.ckpt.enable_checkpoint": True,
        "train.ckpt.save_mode": "async",
        "train.ckpt.save_freq": EVERY,
        "train.ckpt.save_freq_in_epoch": 0,
        "train.ckpt.max_keep": 1,
        **over,
    }
    steps = 50 * EVERY
    training = Training(name, "ours", options.shape, options.gpus, CLIPS, steps, 0, over=saved)
    training = as_tiny(training, steps) if options.tiny else training
    place.make([training])
    started = run_until_saved(training, place, options.set, options.timeout)
    row = stall_of(training, place, started.began)
    Ledger("saves", options).add(row)
    print(table([row]))
    shutil.rmtree(place.run_dir(training) / "run" / "checkpoints", ignore_errors=True)
    if "failed" in row:
        sys.exit(started.log.read_text(errors="replace")[-3000:])


if __name__ == "__main__":
    main()
