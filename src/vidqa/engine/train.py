"""Fine-tuning, readable from top to bottom: plan, load, then step after step over packs, validate, save.

python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --spec spec.toml --run-dir RUN
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vidqa.core.run_folder import RunFolder
from vidqa.engine.data.collate import Collator, PairCollator
from vidqa.engine.data.dataloader import Dataloader, Schedule, open_dataloader
from vidqa.engine.data.planned_samples import check_steps, prepare_training, write_plan
from vidqa.engine.distributed import World
from vidqa.engine.families import family_of
from vidqa.engine.loading.load import SEEDS
from vidqa.engine.problems import ENGINE_NO_GRADIENT, ENGINE_NOT_FINITE
from vidqa.engine.progress import Progress, require_trackers
from vidqa.engine.signals import StopRequest
from vidqa.engine.training.learner import Meter
from vidqa.engine.training.objectives import SUPERVISED, Objective, Preference
from vidqa.engine.training.reference import load_reference
from vidqa.engine.training.resume import Start, start_of
from vidqa.engine.training.trainer import Trainer, build_learner, choose_memory_policy, start_world
from vidqa.engine.training.validate import Validator
from vidqa.engine.training.warmup import make_ready
from vidqa.planning.pairs import PairSample, learns_pairs
from vidqa.planning.samples import training_planner
from vidqa.spec.models import TrainSpec


def train(spec: TrainSpec, run: RunFolder, objective: Objective | None = None) -> int:
    """Train by `spec` and write into `run`. Without `objective` the spec decides: DPO for pairs, else cross entropy on
    answers. Returns 0, or 6 when a signal stopped the run (state saved, resumable)."""
    objective = objective or (Preference(spec.engine) if learns_pairs(spec) else SUPERVISED)
    stop, folder = StopRequest(), Path(spec.policy.model_name_or_path)
    world = start_world(spec)

    # Every rank plans the same samples and the same steps.
    planner = training_planner(spec, folder)
    data = prepare_training(spec, planner, world, run)
    check_steps(spec, data)
    schedule = Schedule(spec, data, world, choose_memory_policy(spec, folder, data, world))
    start = start_of(spec.train.resume, run, world)
    world.on_main(lambda: write_plan(run, data, schedule.facts()))
    world.on_main(lambda: require_trackers(spec.logging))

    # Opened before the model is loaded, so that videos are decoded while weights are read.
    with open_dataloader(schedule, planner, objective.token_values, start.step) as loader:
        return Training(run, schedule, start, loader, objective, stop).run_to_end(run)


class Training(Trainer[TrainSpec]):
    """A training on answers (SFT) or on pairs of answers (DPO): the model, the steps, validation and saving."""

    def __init__(
        self,
        run: RunFolder,
        schedule: Schedule,
        start: Start,
        loader: Dataloader,
        objective: Objective,
        stop: StopRequest,
    ) -> None:
        spec, data, world = schedule.spec, schedule.data, schedule.world
        learner = build_learner(
            schedule,
            start,
            stop,
            objective,
            lambda model: make_ready(model, schedule, loader.collator, loader.calls, start.step),
        )
        check_vision_has_media(learner.model, has_media=any(sample.plans for sample in data.train))
        proof_samples, proof_collator = data.validation or data.train, loader.collator
        validation_collator = loader.collator
        if isinstance(loader.collator, PairCollator):
            assert isinstance(objective, Preference)
            load_reference(objective, learner.model, schedule, start, loader.collator, loader.source, run)
            # Reference log-probabilities are indexed by pair number: validation pairs follow the training pairs.
            validation_collator = loader.collator.behind(len(data.train))
            # The proof of an export compares a cross entropy loss, so it uses only the chosen answer of each pair.
            proof_collator = Collator(loader.collator.planner, loader.collator.sizes, world.device.type)
            proof_samples = [pair.halves(b"")[0] for pair in proof_samples if isinstance(pair, PairSample)]
        super().__init__(run, schedule, start, learner, proof_collator, loader.source, proof_samples)
        self.steps = loader.steps
        self.validator: Validator | None = None
        if spec.validation.enable and data.validation:
            services = (loader.source, world, self.bad_samples, learner.resharding, objective)
            self.validator = Validator(spec, data.validation, validation_collator, *services)
        self.meter = Meter(spec, learner.model, schedule, world)

    def free(self) -> None:
        super().free()
        self.validator = None

    def run_steps(self, progress: Progress) -> bool:
        """Take the remaining steps. Returns False if a signal stopped the run; its state is saved then."""
        spec, schedule, learner = self.spec, self.schedule, self.learner
        if self.validator and spec.validation.val_before_train and self.first == 0:
            progress.log(0, self.validator.measure(learner.model), line="before training")
        if self.saver.pending_eval:
            self._conclude(self.first - 1, progress, resumed=True)
        for step in self.steps:
            rate = self.schedule_rate(step.number)
            seed_dropout(spec.train.seed or 0, step.number, self.world)
            outcome = learner.train_step(step)
            if outcome.any_broken:
                self.bad_samples.report(outcome.problems)
            if not outcome.is_finite:
                message = f"loss {outcome.loss}, gradient norm {outcome.grad_norm}"
                raise ENGINE_NOT_FINITE.error(f"step {step.number + 1}", message)
            stopping = outcome.stop_requested and step.number + 1 < schedule.total
            saves = stopping or self.saver.due(step.number)
            self.meter.step(step.number, outcome, rate, progress, saves=saves)
            self._conclude(step.number, progress, stopping=stopping)
            if stopping:
                self.saver.background.finish()
                progress.say(f"stopped after step {step.number + 1}; resume with train.resume = true")
                return False
        return True

    def _conclude(self, step: int, progress: Progress, *, stopping: bool = False, resumed: bool = False) -> None:
        """Validate, and save a checkpoint or export, if due after `step`. A run that is `stopping` has no time for a
        validation: the run that continues it (`resumed`) validates, and then exports, before its first step."""
        saver = self.saver
        if self.validator and not stopping and (self.schedule.validates_after(step) or saver.exports(step)):
            values = self.validator.measure(self.learner.model)
            saver.record_validation(step, values)
            progress.log(step + 1, values, line="  ".join(f"{k} {v:.4f}" for k, v in values.items()))
        self.save(step, progress, stopping=stopping, hurried=stopping, resumed=resumed)


def check_vision_has_media(model: Any, *, has_media: bool) -> None:
    """Raise ENGINE_NO_GRADIENT if parameters of the vision tower train on data without a video or image."""
    vision = family_of(model).trained_vision(model)
    if vision and not has_media:
        remedy = 'set policy.freeze_pattern = ["visual"], or train on videos or images'
        raise ENGINE_NO_GRADIENT.error(vision[0], "the vision tower is trainable, but no sample has media", remedy)


def seed_dropout(seed: int, step: int, world: World) -> None:
    """Seed dropout by step and rank alone, so that a resumed run draws the same masks as an uninterrupted one."""
    torch.manual_seed((seed * 1_000_003 + step * world.size + world.rank) % SEEDS)
