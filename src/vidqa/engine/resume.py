"""Where a run starts: at step 0, or exactly where a checkpoint left off."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vidqa.cli import note
from vidqa.engine.checkpoint.state import TRAINER, load_state, read_trainer
from vidqa.engine.distributed import World
from vidqa.engine.outcome import fingerprint_model
from vidqa.engine.prepare import Prepared, on_main
from vidqa.engine.problems import ENGINE_RESUME_MISMATCH
from vidqa.run_folder import RunFolder
from vidqa.spec import effective_batch, fingerprint


def trainer_facts(spec: Any, data: Prepared, model: Any, world: World) -> dict[str, Any]:
    """What a checkpoint records besides its step. `order` decides which samples a step takes, `weights` what the saved
    tensors mean: neither may change when a run goes on."""
    loading, lora = spec.train.train_policy, spec.policy.lora
    base = on_main(world, lambda: fingerprint_model(Path(spec.policy.model_name_or_path), None))
    trained = sorted((name, list(p.shape)) for name, p in model.named_parameters() if p.requires_grad)
    return {
        "schema_version": 1,
        "spec_fingerprint": fingerprint(spec),
        "ranks": world.size,
        "order": {
            "data_fingerprint": data.fingerprint,
            "samples": len(data.train),
            "tokens": sum(sample.length for sample in data.train),
            "effective_batch": effective_batch(spec),
            "seed": loading.dataloader_seed,
            "shuffle": loading.dataloader_shuffle,
            "drop_last": loading.dataloader_drop_last,
        },
        "weights": {
            "base_model": base["sha256_sampled"],
            "trained": hashlib.sha256(json.dumps(trained).encode()).hexdigest(),
            "lora": {key: value for key, value in lora.model_dump().items() if key != "lora_dropout"} if lora else None,
        },
    }


def resume(asked: bool | str, run: RunFolder, facts: dict[str, Any], model: Any, optimizer: Any, world: World) -> int:
    """The first step to take. `asked` is the spec's train.resume: true is the newest checkpoint of this run (none yet:
    step 0, said aloud), a path is that checkpoint. Never starts again from the base weights in silence."""
    folder = on_main(world, lambda: _checkpoint(asked, run))
    if folder is None:
        if world.is_main:
            run.forget_metrics_after(0)
        return 0
    trainer = read_trainer(folder)
    for part, what in (("order", "the order of samples"), ("weights", "what the saved weights mean")):
        before, now = trainer.get(part, {}), facts[part]
        changed = [f"{key}: {before.get(key)!r} -> {now[key]!r}" for key in now if before.get(key) != now[key]]
        if changed:
            raise ENGINE_RESUME_MISMATCH.error(folder, f"{what} would change: {', '.join(changed)}")
    load_state(folder, model, optimizer, world)
    if world.is_main:
        run.forget_metrics_after(trainer["step"])
        note(f"resumed after step {trainer['step']} from {folder}")
    return trainer["step"]


def _checkpoint(asked: bool | str, run: RunFolder) -> Path | None:
    """The checkpoint folder to start from, swept of what a kill left behind; None for a start at step 0."""
    run.sweep()
    if not asked:
        return None
    if asked is not True:
        folder = Path(str(asked))
        return folder.parent if folder.name == "policy" else folder
    complete = run.complete(run.checkpoints, TRAINER)
    if not complete:
        note(f"nothing to resume in {run.checkpoints}: starting at step 0")
    return complete[-1] if complete else None
