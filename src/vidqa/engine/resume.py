"""Where a run starts: at step 0, or exactly where a checkpoint left off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa.cli import note
from vidqa.continuing import MEANING, changes, order_facts, weights_facts, weights_hash
from vidqa.engine.checkpoint.state import TRAINER, load_state, read_trainer
from vidqa.engine.distributed import World
from vidqa.engine.prepare import Prepared, on_main
from vidqa.engine.problems import ENGINE_RESUME_MISMATCH
from vidqa.run_folder import RunFolder
from vidqa.spec import fingerprint


def trainer_facts(spec: Any, data: Prepared, model: Any, world: World) -> dict[str, Any]:
    """What a checkpoint records besides its step. What `vidqa.continuing` names may not change when a run goes on."""
    base = on_main(world, lambda: weights_hash(Path(spec.policy.model_name_or_path)))
    trained = [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
    return {
        "schema_version": 1,
        "spec_fingerprint": fingerprint(spec),
        "ranks": world.size,
        "order": order_facts(spec, data.train, data.fingerprint),
        "weights": weights_facts(spec, trained, base),
    }


@dataclass(frozen=True)
class Start:
    """The first step to take, from 0, and the checkpoint that it follows: its folder and what trainer.json says."""

    step: int = 0
    folder: Path | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)


def start_of(asked: bool | str, run: RunFolder, world: World) -> Start:
    """`asked` is the spec's train.resume: true is the newest checkpoint of this run (none yet: step 0, said aloud), a
    path is that checkpoint. Never starts again from the base weights in silence."""
    folder = on_main(world, lambda: _checkpoint(asked, run))
    if folder is None:
        return Start()
    trainer = read_trainer(folder)
    return Start(trainer["step"], folder, trainer)


def resume(start: Start, run: RunFolder, facts: dict[str, Any], model: Any, optimizer: Any, world: World) -> None:
    """Give model and optimizer the state of `start`. Raises ENGINE_RESUME_MISMATCH."""
    if start.folder:
        for part, what in MEANING.items():
            if changed := changes(start.trainer.get(part, {}), facts[part]):
                raise ENGINE_RESUME_MISMATCH.error(start.folder, f"{what} would change: {', '.join(changed)}")
        load_state(start.folder, start.step, model, optimizer, world)
    if world.is_main:
        run.forget_metrics_after(start.step)
        if start.folder:
            note(f"resumed after step {start.step} from {start.folder}")


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
