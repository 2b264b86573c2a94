"""Kill reinforcement learning at random moments, resume it, and compare it with an uninterrupted run.

    python benchmarks/rl_kills.py --out /tmp/rl-kills

A tiny model trains under torchrun on two ranks, with a checkpoint after every step. One recipe trains all of it,
drops groups of equal rewards and draws further questions (DAPO); the other trains adapters with a KL divergence and
permuted options. SIGKILL hits the whole job, or torchrun alone, whose ranks end with it. A run that ends must have the
metrics of every step (except times), the files of rollouts and the weights of the uninterrupted run, bit by bit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("src", "tests", "tests/engine")]

from forked import Started
from kill_loop import ends_within, kill_tree, newest, wait_for_progress
from ledger import Ledger, arguments, table
from rl_world import rl_model, rl_spec
from tiny_world import engine_command, run_engine

from vidqa.core.environment import adopt
from vidqa.core.run_folder import METRICS, read_metrics, rollout_files

RANKS, STEPS, TINY_STEPS = 2, 30, 8
EARLY, EARLY_S = 0.25, 6.0  # the share of kills while a run loads or resumes, and the seconds that this takes
LONGEST_S = 5.0  # seconds between the first published step of an attempt and its kill
END_S = 600.0
REWARD = (  # equal in most groups of half of the questions: DAPO draws further ones
    "def odd(text, record, token_ids, finish_reason):\n"
    "    if int(record.id[1:]) % 2:\n        return float(token_ids[0] % 16 == 0)\n"
    "    return sum(token % 2 for token in token_ids) / len(token_ids)\n"
)
RECIPES: dict[str, dict[str, Any]] = {
    "dapo": {"train.train_policy.variant": "dapo", "train.train_policy.max_retry_for_on_policy": 3},
    "lora": {
        "policy.lora": {},
        "policy.lora.lora_dropout": 0.0,
        "train.train_policy.kl_beta": 0.05,
        "engine.shuffle_options": True,
    },
}


@dataclass(frozen=True)
class Place:
    """A model with its data below `folder`, and the steps of every run."""

    folder: Path
    world: tuple[Path, Path]
    steps: int

    def spec(self, name: str, recipe: str, ranks: int = RANKS) -> Path:
        root = self.world[1]
        table = {
            "policy.parallelism.dp_shard_size": ranks,
            "train.max_num_steps": self.steps,
            "train.epoch": self.steps,
            "train.ckpt.save_freq": 1,
            "train.ckpt.save_freq_in_epoch": 0,
            "train.ckpt.max_keep": 2,
            "train.resume": True,
            "custom.val_dataset.annotation_path": str(root / "annotations.json"),
            "custom.val_dataset.media_path": str(root),
            "validation.enable": True,
            "validation.freq": 5,
            **RECIPES[recipe],
        }
        return rl_spec(self.folder / f"{name}_spec", self.world, table)


def prepare(folder: Path, steps: int) -> Place:
    folder.mkdir(parents=True, exist_ok=True)
    world = rl_model(folder)
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    return Place(folder, world, steps)


def whole(place: Place, recipe: str) -> Path:
    """The run folder of an uninterrupted run."""
    run = place.folder / f"whole-{recipe}"
    run_engine("grpo", place.spec(run.name, recipe), run, RANKS, timeout=END_S)
    return run


def killed(place: Place, name: str, recipe: str, most: int, chance: random.Random) -> tuple[Path, list[int]]:
    """Run with up to `most` kills and then to the end; returns its folder, and the newest published step at each
    kill."""
    run, steps = place.folder / name, list[int]()
    spec = place.spec(name, recipe)
    while True:
        process = start(spec, run)
        if len(steps) == most:
            end(process, run)
            return run, steps
        if chance.random() < EARLY:
            ended = ends_within(process, chance.uniform(0, EARLY_S))
        else:
            came = wait_for_progress(run, process, newest(run))
            ended = not came or ends_within(process, chance.uniform(0, LONGEST_S))
        if ended:
            end(process, run)
            return run, steps
        if chance.random() < 0.5:
            kill_tree(process)
        else:
            process.send_signal(signal.SIGKILL)
            process.wait()
            wait_for_ranks(run)
        steps.append(newest(run))


def start(spec: Path, run: Path) -> Started:
    with run.with_suffix(".log").open("ab") as log:
        return Started(engine_command("grpo", spec, run, RANKS), stdout=log, stderr=log, start_new_session=True)


def end(process: Started, run: Path) -> None:
    if process.wait(END_S):
        raise SystemExit(f"the run ended with {process.returncode}; see {run.with_suffix('.log')}")


def wait_for_ranks(run: Path) -> None:
    """Wait until no process works in the run folder: ranks end with a torchrun that was killed."""
    deadline = time.monotonic() + 30
    while any(str(run).encode() in words for words in commands()):
        if time.monotonic() > deadline:
            raise SystemExit(f"ranks of {run} outlive their torchrun by half a minute")
        time.sleep(0.05)


def commands() -> list[bytes]:
    """The command line of every process."""
    problems = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            problems.append(path.read_bytes())
        except OSError:  # it has ended
            continue
    return problems


def differences(run: Path, other: Path) -> dict[str, bool]:
    """Whether metrics, rollouts and weights of two runs are equal, bit by bit."""
    return {
        "same_metrics": metrics_of(run) == metrics_of(other),
        "same_rollouts": [path.read_bytes() for path in rollout_files(run)]
        == [path.read_bytes() for path in rollout_files(other)],
        "same_weights": weights_of(run) == weights_of(other),
    }


def metrics_of(run: Path) -> list[Mapping[str, Any]]:
    """All events of metrics.jsonl without times and speeds."""
    return [
        {key: value for key, value in event.items() if key != "time" and not key.startswith("perf/")}
        for event in read_metrics(run / METRICS)
    ]


def weights_of(run: Path) -> dict[str, bytes]:
    newest_export = max(run.glob("safetensors/step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    return {path.name: path.read_bytes() for path in newest_export.glob("*.safetensors")}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    adopt({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    chance = random.Random(options.seed)
    left, steps = (3, TINY_STEPS) if options.tiny else (options.kills, STEPS)
    place, ledger = prepare(options.out.absolute(), steps), Ledger("rl_kills", options)
    reference = {recipe: whole(place, recipe) for recipe in RECIPES}
    recipes = list(RECIPES)
    while left > 0:
        recipe = recipes[len(ledger.rows) % len(recipes)]
        began = time.monotonic()
        most = min(left, -(-options.kills // len(recipes)))
        run, kills = killed(place, f"killed-{len(ledger.rows)}-{recipe}", recipe, most, chance)
        left -= len(kills)
        same = differences(run, reference[recipe])
        row = {"recipe": recipe, "steps": steps, "kills": len(kills), "newest_steps": kills, **same}
        ledger.add({**row, "s": time.monotonic() - began})
        print(row, flush=True)
    print(table(ledger.rows))
    if not all(row[name] for row in ledger.rows for name in row if name.startswith("same_")):
        raise SystemExit("a run that was killed is not the run that nobody killed")


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
