"""Where a run starts: at step 0, or exactly where a checkpoint left off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vidqa.cli import note
from vidqa.engine.checkpoint.state import load_state, read_trainer
from vidqa.engine.distributed import World
from vidqa.engine.prepare import Prepared
from vidqa.engine.problems import ENGINE_RESUME_MISMATCH
from vidqa.run_folder import RunFolder
from vidqa.spec import effective_batch, fingerprint


def trainer_facts(spec: Any, data: Prepared, world: World) -> dict[str, Any]:
    """What a checkpoint records besides its step. `order` decides which samples a step takes: it must not change."""
    loading = spec.train.train_policy
    return {
        "schema_version": 1,
        "spec_fingerprint": fingerprint(spec),
        "ranks": world.size,
        "order": {
            "data_fingerprint": data.fingerprint,
            "samples": len(data.train),
            "effective_batch": effective_batch(spec),
            "seed": loading.dataloader_seed,
            "shuffle": loading.dataloader_shuffle,
            "drop_last": loading.dataloader_drop_last,
        },
    }


def resume(asked: bool | str, run: RunFolder, facts: dict[str, Any], model: Any, optimizer: Any, world: World) -> int:
    """The first step to take. `asked` is the spec's train.resume: true is the newest checkpoint of this run (none yet:
    step 0, said aloud), a path is that checkpoint. Never starts again from the base weights in silence."""
    if not asked:
        return 0
    folder = _newest(run) if asked is True else Path(str(asked))
    if folder is None:
        if world.is_main:
            note(f"nothing to resume in {run.checkpoints}: starting at step 0")
        return 0
    if folder.name == "policy":
        folder = folder.parent
    trainer = read_trainer(folder)
    before, now = trainer["order"], facts["order"]
    changed = [f"{key}: {before.get(key)!r} -> {now[key]!r}" for key in now if before.get(key) != now[key]]
    if changed:
        raise ENGINE_RESUME_MISMATCH.error(folder, "the order of samples would change: " + ", ".join(changed))
    load_state(folder, model, optimizer, world)
    if world.is_main:
        run.forget_metrics_after(trainer["step"])
        note(f"resumed after step {trainer['step']} from {folder}")
    return trainer["step"]


def _newest(run: RunFolder) -> Path | None:
    return max(run.numbered(run.checkpoints), key=lambda folder: read_trainer(folder)["step"], default=None)
