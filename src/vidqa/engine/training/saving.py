"""Checkpoints and exports of a training, the best export, and the proof that it loads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidqa.core.cli import note
from vidqa.core.files import remove, write_json
from vidqa.core.run_folder import EXPORT, TRAINER, RunFolder
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.dataloader import StepSchedule
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.export import format_for
from vidqa.engine.export._base import Trained
from vidqa.engine.export.best import LOSS, REWARD, Best, adopt_best, best_of, write_best
from vidqa.engine.export.proof import prove_loss
from vidqa.engine.memory import release_memory
from vidqa.engine.model import DTYPES
from vidqa.engine.problems import ENGINE_NOT_FINITE
from vidqa.engine.training.async_save import Background, PinnedSnapshot
from vidqa.engine.training.checkpoint import run_weights, save_state, sharded_parameters, training_state
from vidqa.engine.training.resume import Start
from vidqa.planning.samples import Sample


class Saver:
    """Saves checkpoints and exports by the spec's [train.ckpt]. Both of one step have the same name."""

    def __init__(
        self,
        run: RunFolder,
        schedule: StepSchedule[Any],
        collator: Collator,
        trainer: dict[str, Any],
        start: Start,
    ) -> None:
        """`start` is the state to continue from. The best earlier export stays the best until a better one comes."""
        self.run, self.schedule, self.collator, self.trainer = run, schedule, collator, trainer
        self.spec, self.world = spec, world = schedule.spec, schedule.world
        self.ckpt = spec.train.ckpt
        self.base = Path(spec.policy.model_name_or_path)
        self.background = Background(world)
        self.staging: PinnedSnapshot | None = None
        self.format = format_for(spec.policy.lora)
        self.dtype = DTYPES[spec.train.param_dtype]
        self.pending_eval = bool(start.trainer.get("owed"))
        self.best: Best | None = world.on_main(lambda: self._restore_best(start))
        self.validation: tuple[int, dict[str, float]] = (-1, {})
        self.proof_sample: tuple[Sample, list[np.ndarray]] | None = None

    def due(self, step: int) -> bool:
        """Whether `step` is saved; the last one always is."""
        last = step + 1 == self.schedule.total
        return last or self.schedule.due(step, self.ckpt.save_freq, self.ckpt.save_freq_in_epoch)

    def exports(self, step: int) -> bool:
        return self.ckpt.export_safetensors and self.due(step)

    def record_validation(self, step: int, values: dict[str, float]) -> None:
        """Store the validation metrics of the weights after `step`. Raises ENGINE_NOT_FINITE."""
        for name in (LOSS, REWARD):
            require_finite(values.get(name, 0.0), f"{name} after step {step + 1}")
        self.validation = (step, values)

    def after_step(
        self,
        step: int,
        model: Any,
        optimizer: torch.optim.Optimizer,
        *,
        stopping: bool = False,
        hurried: bool = False,
        resumed: bool = False,
    ) -> None:
        """Save the checkpoint and export due after `step`; a run that is `stopping` always saves a checkpoint. After a
        signal the run is `hurried` and saves nothing else: an export needs a validation first, and the resumed run
        (`resumed`) validates and exports. Waits for an earlier save to finish, not for its own copies or files. Raises
        ENGINE_NOT_FINITE, ENGINE_SAVE_FAILED."""
        exports = self.exports(step) and not hurried
        checkpoints = stopping or (self.ckpt.enable_checkpoint and self.due(step) and not resumed)
        if not (exports or checkpoints):
            self.background.poll()
            self._prepare(model, optimizer)
            return
        loss = self._trainer_loss(model)  # the step's own loss is that of the weights before the update
        require_finite(loss or 0.0, f"the weights after step {step + 1}")
        self._prepare(model, optimizer)
        self.background.finish()
        live = training_state(model, optimizer) if checkpoints else run_weights(model)
        name, parameters = self._name(step), sharded_parameters(model)
        facts, measured = {**self.trainer, "step": step + 1}, self.validation[1] if self.validation[0] == step else {}
        proof = {"trainer_loss": loss, "proof_sample": self.proof_sample[0].record.id if self.proof_sample else None}
        owed = hurried and (self.exports(step) or self.schedule.validates_after(step))
        staging = self.staging

        def save() -> None:
            tensors = staging.copy(live) if staging else live
            if exports:
                self._export(name, parameters, tensors, {**facts, **proof, "measured": measured})
            if checkpoints:
                self._checkpoint(name, tensors, {**facts, "owed": owed})

        if staging:
            staging.announce()
        self.background.start(save)
        if staging is None:
            self.background.finish()

    def _prepare(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Allocate the memory for snapshots after the first step; it takes seconds, in the background."""
        saves = self.ckpt.enable_checkpoint or self.ckpt.export_safetensors
        if self.staging or self.ckpt.save_mode == "sync" or not saves:
            return
        staging = self.staging = PinnedSnapshot(self.world.device)
        optimizer.register_step_pre_hook(lambda *_: staging.hold_update())
        tensors = training_state(model, optimizer) if self.ckpt.enable_checkpoint else run_weights(model)
        self.background.start(lambda: staging.reserve(tensors))

    def _name(self, step: int) -> str:
        epoch = self.schedule.epoch_ended_by(step)
        return f"epoch_{epoch}" if epoch and self.ckpt.save_freq_in_epoch else f"step_{step + 1}"

    def _checkpoint(self, name: str, tensors: Mapping[str, torch.Tensor], facts: dict[str, Any]) -> None:
        world = self.background.world
        save_state(self.run, world, name, tensors, facts)
        keep = {self.best.name} if self.best else set()
        world.on_main(lambda: self.run.prune(self.run.checkpoints, TRAINER, self.ckpt.max_keep, keep, facts["step"]))

    def _export(
        self, name: str, parameters: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], facts: dict[str, Any]
    ) -> None:
        """Write, check, publish: an export that fails its check is never published. Older exports are removed last, so
        that `best` leads to an export at any moment."""
        world = self.background.world
        lora, capped = self.spec.policy.lora, self.spec.custom.vision.cap_pixels_per_frame
        precision = self.spec.policy.quantization
        trained = Trained(self.run.exports, self.base, lora, self.dtype, parameters, tensors, capped, precision)
        folder = self.format.write(trained, name, world)

        def publish() -> None:
            self.format.check(folder, self.base)
            write_json(folder / EXPORT, facts)
            best = self.best
            if best and best.name == name and best.value is not None and not facts["measured"]:
                note(f"{name} is not exported: {best.metric} {best.value} was measured of the export of that name")
                remove(folder, owner=self.run.exports)
                return
            self.run.publish(folder)
            self.best = best_of(self.run, facts["step"])
            write_best(self.run, self.best)
            keep = {self.best.name} if self.best else set()
            self.run.prune(self.run.exports, EXPORT, self.ckpt.max_keep, keep, facts["step"])

        world.on_main(publish)

    def _restore_best(self, start: Start) -> Best | None:
        """The best export when the run starts: among its own exports, and those of the run that it resumes from if this
        one validates too. A kill may have come before best.json was written."""
        if start.folder and self.spec.validation.enable:
            adopt_best(self.run, start.folder.parent.parent, start.step)
        best = best_of(self.run, start.step)
        write_best(self.run, best)
        return best

    def _trainer_loss(self, model: Any) -> float | None:
        """The trainer's loss on the stored sample, computed on every rank (a sharded forward needs them all)."""
        if self.proof_sample is None:
            return None
        sample, frames = self.proof_sample
        batch = self.collator([0], [sample], [frames]).to(self.world.device)
        model.eval()
        with torch.no_grad():
            nll = model.packed(batch).double()
            total, count = self.world.context.sum(torch.stack([nll.sum(), nll.new_tensor(len(nll))])).tolist()
        model.train()
        return total / count

    def store_proof_sample(self, samples: Sequence[Sample], source: FrameSource) -> None:
        """Choose the sample whose loss every export must reproduce: the first that has media and can be decoded."""

        def choose() -> tuple[Sample, list[np.ndarray]] | None:
            first = chain((s for s in samples if s.plans), (s for s in samples if not s.plans))
            for sample in islice(first, 20):
                frames, problems = source.collect(source.request([sample]))
                if not problems and sample.supervised:
                    return sample, [np.array(array) for array in frames[0]]
            return None

        self.proof_sample = self.world.on_main(choose)

    def finish(self) -> str:
        """Publish the last checkpoint and prove the best export: reloaded, it has the trainer's loss. Returns a message
        with the result. Call it once the trainer's model is freed, so that there is room for the reloaded one."""
        self.background.finish()
        self.staging = None
        release_memory()
        return self.world.on_main(self._prove)

    def _prove(self) -> str:
        """Prove the best export and record the result in run.json; only a proved export has a proof.json."""
        if self.best is None:
            return ""
        folder = self.run.exports / self.best.name
        facts = json.loads((folder / EXPORT).read_text(encoding="utf-8"))
        if reason := self._unprovable(facts):
            self.run.update_run(export_proof={"export": folder.name, "proved": False, "reason": reason})
            write_json(folder / EXPORT, {**facts, "unproved": reason})
            return f"warning: the export {folder.name} is unproved: {reason}"
        assert self.proof_sample is not None
        planner, loss, device = self.collator.planner, facts["trainer_loss"], self.world.device
        proof = prove_loss(self.format, folder, self.base, loss, planner, *self.proof_sample, self.dtype, device)
        self.run.update_run(export_proof={"export": folder.name, "proved": True, **proof})
        return f"export proved: trainer {proof['trainer_loss']:.6f}, reloaded {proof['reloaded_loss']:.6f}"

    def _unprovable(self, facts: dict[str, Any]) -> str:
        """The reason why an export cannot be compared with the trainer; empty if it can."""
        if self.proof_sample is None or facts.get("trainer_loss") is None:
            return "no sample could be decoded to compare its loss"
        sample = self.proof_sample[0].record.id
        made_with = facts.get("proof_sample", sample)
        return "" if made_with == sample else f"the trainer's loss is of the sample {made_with}, not of {sample}"


def require_finite(loss: float, what: str) -> None:
    """Raise ENGINE_NOT_FINITE for a value that is NaN or infinite."""
    if not math.isfinite(loss):
        raise ENGINE_NOT_FINITE.error(what, f"the value is {loss}")
