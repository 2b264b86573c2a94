"""Kills training at random moments, resumes it, and checks after every kill that nothing that was published is lost.

    python tests/engine/kill_loop.py --kills 50          # about a minute per kill on a busy pair of cores

A tiny model trains under torchrun on two ranks and saves a checkpoint and an export after every step, so that nearly
always something is being written. After a kill the newest published checkpoint must load, be no older than it was, and
every published export must be whole. A run that ends must have the losses of one that nobody killed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from forked import Started
from safetensors.torch import load_file
from tiny_world import engine_command, losses, run_engine, tiny_data, tiny_model, tiny_spec
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

RANKS = 2
LONGEST_S = 4.0  # between the first published step of an attempt and its kill
EARLY, EARLY_S = 0.2, 20.0  # the share of kills that come before, and how long after the start
START_LIMIT_S = 300.0
SAVED = {
    "policy.parallelism.dp_shard_size": RANKS,
    "train.train_batch_per_replica": 3,
    "train.optm_lr": 1e-4,
    "train.epsilon": 1e-6,
    "train.ckpt.save_freq": 1,
    "train.ckpt.save_freq_in_epoch": 0,
    "train.ckpt.max_keep": 2,
}


@dataclass
class Place:
    """A model, its data, and the losses of the run that nobody killed."""

    folder: Path
    model: Path
    data: Path
    steps: int
    expected: list[float]

    def spec(self, name: str, **over: object) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        table = {**SAVED, "train.max_num_steps": self.steps, "train.epoch": self.steps, **over}
        return tiny_spec(folder, self.model, self.data, table)


def prepare(folder: Path, steps: int) -> Place:
    place = Place(folder, tiny_model(folder), tiny_data(folder, clips=3), steps, [])
    spec = place.spec("reference", **{"train.ckpt.enable_checkpoint": False, "train.ckpt.export_safetensors": False})
    run_engine("train", spec, folder / "reference/run", RANKS, timeout=600)
    place.expected = losses(folder / "reference/run")
    return place


def kill_all(place: Place, kills: int, seed: int, longest_s: float = LONGEST_S, early_s: float = EARLY_S) -> list[int]:
    """The newest published step at each of `kills` kills. A run that reaches its end is followed by another."""
    chance, found, attempt = random.Random(seed), [], 0
    run = place.folder / "run_0"
    while len(found) < kills:
        before = newest(run)
        process = start(place, run)
        if chance.random() < EARLY:  # while it loads, sweeps or resumes
            ended = ends_within(process, chance.uniform(0, early_s))
        else:
            came = wait_for_progress(run, process, before)
            ended = not came or ends_within(process, chance.uniform(0, longest_s))
        if ended:
            finish(place, run, process)
            attempt += 1
            run = place.folder / f"run_{attempt}"
            continue
        before = newest(run)
        kill_tree(process)
        found.append(check_published(run, before))
        print(f"kill {len(found)} of {kills}: newest published step {found[-1]}", flush=True)
    finish(place, run, start(place, run))
    return found


def start(place: Place, run: Path) -> Started:
    spec = place.spec(run.name + "_spec", **{"train.resume": True})
    with (place.folder / f"{run.name}.log").open("ab") as log:
        command = engine_command("train", spec, run, RANKS)
        return Started(command, stdout=log, stderr=log, start_new_session=True)


def wait_for_progress(run: Path, process: Started, before: int) -> bool:
    """Until a checkpoint newer than `before` is published; False when the run ended by itself first."""
    deadline = time.monotonic() + START_LIMIT_S
    while newest(run) <= before:
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            kill_tree(process)
            raise SystemExit(f"no checkpoint came after step {before}; see {run}.log")
        time.sleep(0.01)
    return True


def ends_within(process: Started, seconds: float) -> bool:
    """Whether the process ended by itself within `seconds`."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def finish(place: Place, run: Path, process: Started) -> None:
    """Let a run reach its end; it must have learned what the uninterrupted one did."""
    if process.wait(600):
        raise SystemExit(f"the run ended with {process.returncode}; see {run}.log")
    got = losses(run)
    if len(got) != len(place.expected) or any(
        not math.isclose(a, b, rel_tol=1e-5) for a, b in zip(got, place.expected, strict=True)
    ):
        raise SystemExit(f"losses differ from the uninterrupted run's:\n{got}\n{place.expected}")
    proof = json.loads((run / "best/proof.json").read_text())
    print(f"run of {len(got)} steps ended with the losses of the uninterrupted one; proof {proof}", flush=True)


def published(folder: Path, facts: str) -> dict[int, Path]:
    """What has a published name below `folder`, by the step that its facts file names."""
    found = {}
    for path in folder.glob("step_*"):
        try:
            found[json.loads((path / facts).read_text())["step"]] = path
        except FileNotFoundError:  # it is being pruned
            continue
    return found


def newest(run: Path) -> int:
    return max(published(run / "checkpoints", "trainer.json"), default=0)


def check_published(run: Path, before: int) -> int:
    """After a kill: everything that has a name is whole. Returns the newest checkpoint's step."""
    checkpoints = published(run / "checkpoints", "trainer.json")
    if max(checkpoints, default=0) < before:
        raise SystemExit(f"published checkpoints {sorted(checkpoints)}, and step {before} was there before")
    if not checkpoints:
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        dcp_to_torch_save(checkpoints[max(checkpoints)] / "policy", Path(scratch) / "whole.pt")
        state = torch.load(Path(scratch) / "whole.pt", weights_only=True)
    if not state or not all(tensor.isfinite().all() for tensor in state.values()):
        raise SystemExit(f"step {max(checkpoints)} does not hold finite tensors")
    for export in published(run / "safetensors", "export.json").values():
        if not all(tensor.isfinite().all() for tensor in load_file(export / "model.safetensors").values()):
            raise SystemExit(f"{export} is not whole")
    if (run / "best").is_symlink() and not (run / "best/model.safetensors").exists():
        raise SystemExit(f"best leads nowhere: {os.readlink(run / 'best')}")
    return max(checkpoints)


def kill_tree(process: Started) -> None:
    """SIGKILL for a process and all below it, stopped first so that none starts another meanwhile."""
    doomed = [process.pid]
    for pid in doomed:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(pid, signal.SIGSTOP)
            doomed += children(pid)
    for pid in doomed:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def children(pid: int) -> list[int]:
    """The processes that any thread of `pid` started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps of every run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="kill-loop-") as folder:
        found = kill_all(prepare(Path(folder), options.steps), options.kills, options.seed)
    print(f"{len(found)} kills, none lost a published checkpoint; newest steps {found}")


if __name__ == "__main__":
    main()
