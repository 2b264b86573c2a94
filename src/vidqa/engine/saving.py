"""What is saved when: checkpoints, exports, the best one, and the proof that it loads."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.checkpoint.background import Background
from vidqa.engine.checkpoint.export import EXPORT, Exporter, prove_structure
from vidqa.engine.checkpoint.proof import prove_loss
from vidqa.engine.checkpoint.staging import Staging
from vidqa.engine.checkpoint.state import own_weights, save_state, sharded_parameters, training_state
from vidqa.engine.model.load import DTYPES
from vidqa.engine.prepare import on_main
from vidqa.engine.problems import ENGINE_NOT_FINITE
from vidqa.engine.schedule import Schedule
from vidqa.files import write_json, write_link
from vidqa.run_folder import TRAINER, RunFolder
from vidqa.samples import Sample


@dataclass(frozen=True)
class Best:
    """best.json: which export is best, by which metric ("latest" where nothing was measured)."""

    metric: str
    value: float | None
    step: int
    name: str
    avg_loss: float | None = None

    def beats(self, other: Best) -> bool:
        """More accuracy wins, then less loss; where the two cannot be compared, the newer one (this) does."""
        if self.metric != other.metric or self.value is None or other.value is None:
            return True
        if self.metric == "val/accuracy" and self.value != other.value:
            return self.value > other.value
        return (self.avg_loss or 0.0) < (other.avg_loss or 0.0)


class Saver:
    """Saves after steps as the spec's [train.ckpt] says. A checkpoint and an export of one step share their name."""

    def __init__(
        self,
        run: RunFolder,
        schedule: Schedule,
        collator: Collator,
        trainer: dict[str, Any],
        first: int,
    ) -> None:
        """`first` is the step that the run starts at: what was best later than that is to be found again."""
        self.run, self.schedule, self.collator, self.trainer = run, schedule, collator, trainer
        self.spec, self.world = spec, world = schedule.spec, schedule.world
        self.ckpt = spec.train.ckpt
        self.base = Path(spec.policy.model_name_or_path)
        self.background = Background(world)
        self.staging: Staging | None = None
        self.exporter = Exporter(run, self.base, spec.policy, spec.train)
        self.best = _read_best(run, first)
        self.judged: tuple[int, dict[str, float]] = (-1, {})
        self.proof_sample: tuple[Sample, list[np.ndarray]] | None = None

    def due(self, step: int) -> bool:
        """Whether `step` is saved; the last one always is."""
        last = step + 1 == self.schedule.total
        return last or self.schedule.due(step, self.ckpt.save_freq, self.ckpt.save_freq_in_epoch)

    def exports(self, step: int) -> bool:
        return self.ckpt.export_safetensors and self.due(step)

    def judge(self, step: int, values: dict[str, float]) -> None:
        """Remember what validation said of the weights after `step`. Raises ENGINE_NOT_FINITE."""
        require_finite(values["val/avg_loss"], f"validation after step {step + 1}")
        self.judged = (step, values)

    def after_step(self, step: int, model: Any, optimizer: torch.optim.Optimizer, *, stopping: bool) -> None:
        """Save what is due after `step`; a run that is about to stop saves its state in any case. The step waits for
        an earlier save that still writes, not for copies or files."""
        exports = self.exports(step)
        checkpoints = stopping or (self.ckpt.enable_checkpoint and self.due(step))
        if not (exports or checkpoints):
            self.background.poll()
            self._prepare(model, optimizer)
            return
        loss = self._trainer_loss(model) if exports else None
        if loss is not None:
            require_finite(loss, f"the weights after step {step + 1}")
        self._prepare(model, optimizer)
        self.background.finish()
        live = training_state(model, optimizer) if checkpoints else own_weights(model)
        name, parameters = self._name(step), sharded_parameters(model)
        facts, measured = {**self.trainer, "step": step + 1}, self.judged[1] if self.judged[0] == step else {}
        staging = self.staging

        def save() -> None:
            tensors = staging.copy(live) if staging else live
            if exports:
                self._export(name, parameters, tensors, {**facts, "trainer_loss": loss}, measured)
            if checkpoints:
                self._checkpoint(name, tensors, facts)

        if staging:
            staging.announce()
        self.background.start(save)
        if staging is None:
            self.background.finish()

    def _prepare(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """After the first step, take the memory that saves are copied to; it takes seconds, which nobody waits for."""
        wanted = self.ckpt.enable_checkpoint or self.ckpt.export_safetensors
        if self.staging or self.ckpt.save_mode == "sync" or not wanted:
            return
        staging = self.staging = Staging(self.world.device)
        optimizer.register_step_pre_hook(lambda *_: staging.hold_update())
        tensors = training_state(model, optimizer) if self.ckpt.enable_checkpoint else own_weights(model)
        self.background.start(lambda: staging.reserve(tensors))

    def _name(self, step: int) -> str:
        epoch = self.schedule.epoch_ended_by(step)
        return f"epoch_{epoch}" if epoch and self.ckpt.save_freq_in_epoch else f"step_{step + 1}"

    def _checkpoint(self, name: str, tensors: Mapping[str, torch.Tensor], facts: dict[str, Any]) -> None:
        world = self.background.world
        save_state(self.run, world, name, tensors, facts)
        kept = {self.best.name} if self.best else set()
        on_main(world, lambda: self.run.prune(self.run.checkpoints, TRAINER, self.ckpt.max_keep, kept, facts["step"]))

    def _export(
        self,
        name: str,
        parameters: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
        facts: dict[str, Any],
        measured: dict[str, float],
    ) -> None:
        """Write, check, publish: an export that is not the model never gets a name. The older ones go last, so that
        `best` leads somewhere at any moment. `measured` is what validation said of these weights."""
        world = self.background.world
        folder = self.exporter.write(name, parameters, tensors, world)

        def publish() -> None:
            prove_structure(folder, self.base, lora=self.spec.policy.lora is not None)
            write_json(folder / EXPORT, facts)
            self.run.publish(folder)
            self.best = self._better(facts["step"], name, measured)
            write_json(self.run.path / "best.json", vars(self.best))
            write_link(self.run.path / "best", f"{self.run.exports.name}/{self.best.name}")
            self.run.prune(self.run.exports, EXPORT, self.ckpt.max_keep, {self.best.name}, facts["step"])

        on_main(world, publish)

    def _better(self, step: int, name: str, measured: dict[str, float]) -> Best:
        """The better of the best so far and the export `name`."""
        metric = next((m for m in ("val/accuracy", "val/avg_loss") if m in measured), "latest")
        best = Best(metric, measured.get(metric), step, name, measured.get("val/avg_loss"))
        return best if self.best is None or best.beats(self.best) else self.best

    def _trainer_loss(self, model: Any) -> float | None:
        """The trainer's loss on the stored sample, computed on every rank (a sharded forward needs them all)."""
        if self.proof_sample is None:
            return None
        sample, frames = self.proof_sample
        batch = self.collator([0], [sample], [frames]).to(self.world.device)
        model.eval()
        with torch.no_grad():
            loss = model(batch).mean().item()
        model.train()
        return loss

    def store_proof_sample(self, samples: list[Sample], source: FrameSource) -> None:
        """Choose the sample whose loss every export must reproduce: the first that has media and can be decoded."""

        def choose() -> tuple[Sample, list[np.ndarray]] | None:
            for sample in sorted(samples, key=lambda s: not s.plans)[:20]:
                frames, problems = source.collect(source.request([sample]))
                if not problems and sample.supervised:
                    return sample, [np.array(array) for array in frames[0]]
            return None

        self.proof_sample = on_main(self.world, choose)

    def finish(self) -> dict[str, Any] | None:
        """Publish the last checkpoint and prove the best export: reloaded, it has the trainer's loss. Call it when the
        trainer's model is no longer held, so that there is room for the reloaded one."""
        self.background.finish()
        self.staging = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

        def prove() -> dict[str, Any] | None:
            if not (self.best and self.proof_sample):
                return None
            folder = self.run.exports / self.best.name
            loss = json.loads((folder / EXPORT).read_text(encoding="utf-8"))["trainer_loss"]
            base = self.base if self.spec.policy.lora is not None else None
            dtype = DTYPES[self.spec.train.param_dtype]
            return prove_loss(folder, base, loss, self.collator.planner, *self.proof_sample, dtype, self.world.device)

        return on_main(self.world, prove)


def require_finite(loss: float, of: str) -> None:
    """Raises ENGINE_NOT_FINITE for a loss that is NaN or infinite."""
    if not math.isfinite(loss):
        raise ENGINE_NOT_FINITE.error(of, f"the loss is {loss}")


def _read_best(run: RunFolder, first: int) -> Best | None:
    path = run.path / "best.json"
    best = Best(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    return best if best and best.step <= first and (run.exports / best.name).is_dir() else None
