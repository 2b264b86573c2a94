"""The samples of every step by rank and micro-step, and what is due after it."""

from __future__ import annotations

from typing import Any

from vidqa.engine.data.planned_samples import Prepared
from vidqa.engine.distributed import World
from vidqa.planning.budget.memory import MemoryPolicy
from vidqa.planning.packing import Steps
from vidqa.spec import effective_batch, steps_per_epoch, total_steps, warmup_steps
from vidqa.spec.models import TrainSpec


class StepSchedule:
    """The number of steps of a run, and what is due after each."""

    spec: Any  # a TrainSpec, or a GrpoSpec

    def __init__(self, spec: TrainSpec, data: Prepared, world: World, policy: MemoryPolicy) -> None:
        self.spec, self.data, self.world, self.policy = spec, data, world, policy
        self.total = total_steps(spec, len(data.train))
        self.warmup = warmup_steps(spec, len(data.train))
        self.steps_per_epoch = steps_per_epoch(spec, len(data.train))

    def epoch_ended_by(self, step: int) -> int | None:
        """The number of the epoch (from 1) that ends with this step."""
        done, rest = divmod(step + 1, self.steps_per_epoch)
        return done if rest == 0 else None

    def due(self, step: int, every_steps: int, every_epochs: int) -> bool:
        """Whether something that happens every so many steps or epochs happens after `step`."""
        epoch = self.epoch_ended_by(step)
        by_epoch = bool(every_epochs and epoch and epoch % every_epochs == 0)
        return by_epoch or bool(every_steps and (step + 1) % every_steps == 0)

    def validates_after(self, step: int) -> bool:
        validation = self.spec.validation
        return step + 1 == self.total or self.due(step, validation.freq, validation.freq_in_epoch)

    def facts(self) -> dict[str, Any]:
        """The entries of plan.json about steps."""
        return {
            "total_steps": self.total,
            "steps_per_epoch": self.steps_per_epoch,
            "warmup_steps": self.warmup,
            "effective_batch": effective_batch(self.spec),
        }


class Schedule(StepSchedule):
    """The steps of a supervised training: a function of the spec, the planned samples and, where the spec leaves the
    size of packs open, of the memory policy."""

    spec: TrainSpec

    def __init__(self, spec: TrainSpec, data: Prepared, world: World, policy: MemoryPolicy) -> None:
        super().__init__(spec, data, world, policy)
        self.steps = Steps(spec, data.train, world.data_ranks, world.device.type, policy.pack_tokens)
        self.order, self.units = self.steps.order, self.steps.units

    def packs(self, step: int) -> list[list[int]]:
        """The micro-steps of a step that this rank takes part in, each a list of sample numbers, those of one unit
        together."""
        return self.steps.packs(step)[self.world.data_rank]

    def supervised(self, step: int) -> int:
        """Supervised tokens of the whole step, over all ranks."""
        return sum(self.data.train[i].supervised for i in self.order.step(step))

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "pack_tokens": self.steps.budget if self.spec.engine.packing else None,
            "micro_steps_of_first_step": len(self.packs(0)),
        }
