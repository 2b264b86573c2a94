"""The start of a run: at step 0, or exactly after a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vidqa.core.cli import note
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder, checkpoint_folder
from vidqa.engine.data.planned_samples import Prepared
from vidqa.engine.distributed import World
from vidqa.engine.training.checkpoint import inspect, load_state
from vidqa.planning.problems import RESUME_MISMATCH, RESUME_NO_CHECKPOINT
from vidqa.planning.resume_compat import compare, order_facts, spec_facts, weights_facts, weights_hash
from vidqa.spec import fingerprint
from vidqa.spec.models import TrainSpec
from vidqa.spec.resolve import ADAPTER_FOLDER


@dataclass(frozen=True)
class Start:
    """The first step to take, from 0, and its checkpoint: the folder and trainer.json."""

    step: int = 0
    folder: Path | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def first_adapter(self, spec: TrainSpec) -> str | None:
        """The initial adapter of the training: the spec's; in a resumed run, the one that the checkpoint records."""
        if self.folder:
            return self.trainer.get("spec", {}).get(ADAPTER_FOLDER)
        return None if spec.policy.lora is None else spec.policy.lora.lora_path


def trainer_facts(spec: TrainSpec, data: Prepared, model: Any, start: Start, world: World) -> dict[str, Any]:
    """The facts that a checkpoint records for `planning.resume_compat` to compare on a resume."""
    base = world.on_main(lambda: weights_hash(Path(spec.policy.model_name_or_path)))
    trained = [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
    return {
        "schema_version": 1,
        "spec_fingerprint": fingerprint(spec),
        "spec": spec_facts(spec) | ({ADAPTER_FOLDER: start.first_adapter(spec)} if spec.policy.lora else {}),
        "ranks": world.size,
        "order": order_facts(spec, data.train, data.fingerprint),
        "weights": weights_facts(spec, trained, base),
    }


def start_of(resume_from: bool | str, run: RunFolder, world: World) -> Start:
    """Find the start of a run. `resume_from` is the spec's train.resume: true is the newest complete checkpoint of this
    run (without one, step 0), a path is that checkpoint."""
    skipped: list[str] = []
    for folder in world.on_main(lambda: _checkpoints(resume_from, run)):
        try:
            trainer = inspect(folder, world)
            return Start(trainer["step"], folder, trainer)
        except ProblemError as damaged:
            if resume_from is not True:
                raise
            skipped.append(f"{folder.name}: {damaged.problems[0].message}")
            world.note(f"skipped the checkpoint {skipped[-1]}")
    if skipped:
        raise RESUME_NO_CHECKPOINT.error(run.checkpoints, f"no checkpoint is complete: {'; '.join(skipped)}")
    return Start()


def resume(start: Start, run: RunFolder, facts: dict[str, Any], model: Any, optimizer: Any, world: World) -> None:
    """Load the state of `start` into model and optimizer, and report changed settings. Raises RESUME_MISMATCH."""
    differences: list[str] = []
    if start.folder:
        names, base = (name for name, _ in model.named_parameters()), Path(facts["spec"]["policy.model_name_or_path"])
        refused, differences = compare(start.folder, start.trainer, facts, base, names)
        if refused:
            raise RESUME_MISMATCH.error(start.folder, "; ".join(refused))
        # A step of reinforcement learning may have several optimizer updates.
        load_state(start.folder, start.trainer.get("updates", start.step), model, optimizer, world)
    if world.is_main:
        last = start.step if start.folder else -1  # step 0 is measured again
        reached = run.forget_metrics_after(last, owed=bool(start.trainer.get("owed")))
        for name in run.set_aside_after(start.step):
            note(f"set aside the checkpoint {name}: this run continues from step {start.step}")
        if start.folder:
            note(f"resumed after step {start.step} from {start.folder}")
            if differences:
                note(f"with other values than the checkpoint was trained with: {', '.join(differences)}")
            run.add_resume({"from": str(start.folder.resolve()), "step": start.step, "changed": differences})
        elif reached:
            note(f"no checkpoint is left of the attempt before, which reached step {reached}: starting at step 0")
            run.add_resume({"from": None, "step": 0, "lost": reached})


def _checkpoints(resume_from: bool | str, run: RunFolder) -> list[Path]:
    """The checkpoint folders to try, in order; none means step 0. Removes partial files of a killed run."""
    run.sweep()
    if not resume_from:
        return []
    if resume_from is not True:
        return [checkpoint_folder(str(resume_from))]
    return run.newest_checkpoints()
