"""What reinforcement learning is tested with: a tiny model, questions about clips, and a GRPO run in this process.

spec = rl_spec(folder, world, {"train.epoch": 2})
run = rl_here(spec, folder / "run")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from in_process import events, one_rank, stopped_in
from tiny_world import tiny_data, tiny_model

from vidqa.core.run_folder import RunFolder
from vidqa.engine.rl import train as program
from vidqa.spec import Layer, dump, load, resolve

# Dense, and nothing that a random model gives is right or wrong: the share of odd token ids.
ODD = "def odd(text, record, token_ids, finish_reason):\n    return sum(t % 2 for t in token_ids) / len(token_ids)\n"

# Every update is that of step 0: two of a rollout, whose old log-probabilities are computed apart, and no weight moves.
UNCHANGED = {"train.optm_lr": 1e-30, "train.train_policy.mu_iterations": 2, "train.train_policy.kl_beta": 0.1}


def require_unchanged(run: Path) -> None:
    """Of a run with UNCHANGED: ratios of exactly 1 and a divergence from the reference of exactly 0, in every step."""
    expected = {"train/ratio": 1.0, "train/ratio_difference_max": 0.0, "train/kl": 0.0}
    measured = {key: events(run, key) for key in (*expected, "train/rollout_difference_max")}
    assert all(set(measured[key].values()) == {value} for key, value in expected.items()), measured


def rl_model(folder: Path, **options: Any) -> tuple[Path, Path]:
    """(model, data root) of one world."""
    (folder / "reward.py").write_text(ODD, encoding="utf-8")
    return tiny_model(folder, **options), tiny_data(folder, clips=4)


def rl_spec(folder: Path, world: tuple[Path, Path], overrides: dict[str, Any] | None = None) -> Path:
    """A TOML file for GRPO in float32: 4 questions of 4 completions a step."""
    model, root = world
    table = {
        "policy.model_name_or_path": str(model),
        "policy.model_max_length": 4096,
        "custom.train_dataset.annotation_path": str(root / "annotations.json"),
        "custom.train_dataset.media_path": str(root),
        "custom.vision.nframes": 4,
        "train.output_dir": str(folder / "out"),
        "train.param_dtype": "float32",
        "train.train_batch_per_replica": 16,
        "train.epoch": 1,
        "train.optm_lr": 1e-3,
        "train.optm_warmup_steps": 0,
        "train.train_policy.dataloader_num_workers": 1,
        "train.train_policy.reward_function": [f"{model.parent / 'reward.py'}:odd"],
        "rollout.n_generation": 4,
        "rollout.max_response_length": 8,
        "engine.frame_cache_dir": str(root.parent / "cache"),
        "engine.pack_tokens": 400,
        "engine.stop.truncated_above": 1.0,
        **(overrides or {}),
    }
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "spec.toml"
    path.write_text(dump(resolve("grpo", [Layer("test", table)]).spec), encoding="utf-8")
    return path


def rl_here(spec: Path, run: Path, *, stop_after: int | None = None) -> Path:
    """Carry out a GRPO spec in this process; `stop_after` sends SIGTERM in that step, from 1."""
    with one_rank(), stopped_in(stop_after):
        run.mkdir(exist_ok=True, parents=True)
        program.train(load(spec, "grpo"), RunFolder(run))
    return run
