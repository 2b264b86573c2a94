"""The numbers of a training run: averaged losses, speed, waiting for data, and utilisation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from vidqa.engine.data.schedule import Schedule
from vidqa.engine.distributed import World
from vidqa.engine.families import family_of
from vidqa.planning.budget.speed import gpu_peak_flops
from vidqa.planning.prefix_sharing import workload
from vidqa.spec.models import TrainSpec


def peak_flops(device: torch.device) -> float | None:
    """The device's peak in bf16, or None when it is not known (a CPU, an unlisted GPU)."""
    return gpu_peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


class Meter:
    """Reports every `logging.log_interval` steps: the loss and the objective's metrics, times per step."""

    def __init__(self, spec: TrainSpec, model: Any, schedule: Schedule, world: World) -> None:
        self.interval, self.schedule, self.world = spec.logging.log_interval, schedule, world
        family, full = family_of(model), spec.policy.lora is None
        vision_trains = bool(family.trained_vision(model))
        self.flops = family.flops(model.config, vision_trains=vision_trains, decoder_trains=full)
        self.peak = peak_flops(world.device)
        self._reset()

    def _reset(self) -> None:
        self.loss_sum = self.seconds = self.waited = self.work = self.work_whole = 0.0
        self.count = self.tokens = self.steps = 0
        self.metrics = Counter[str]()

    def step(self, step: int, outcome: Any, rate: float, progress: Any) -> None:
        """Add the outcome of a step (a `learner.StepOutcome`), and log every `logging.log_interval` steps."""
        works = [workload(unit, self.schedule.data.train) for unit in self.schedule.units(step)]
        self.loss_sum += outcome.loss * outcome.count
        self.count += outcome.count
        for name, value in outcome.metrics.items():
            self.metrics[name] += value * outcome.count
        self.tokens += sum(work.tokens for work in works)
        self.work += self.flops.training_flops(works) - outcome.saved
        self.work_whole += self.flops.training_flops(works, halved=False) - outcome.saved
        self.seconds += outcome.seconds
        self.waited += outcome.waited
        self.steps += 1
        if (step + 1) % self.interval and step + 1 != self.schedule.total:
            return
        values = {
            "train/loss": self.loss_sum / max(self.count, 1),
            **{f"train/{name}": total / max(self.count, 1) for name, total in self.metrics.items()},
            "train/grad_norm": outcome.grad_norm,
            "train/lr": rate,
            "perf/step_s": self.seconds / self.steps,
            "perf/data_wait_s": self.waited / self.steps,
            "perf/tokens_per_s": self.tokens / self.seconds,
            "perf/tokens_per_s_per_rank": self.tokens / self.seconds / self.world.size,
        }
        if self.peak:
            available = self.seconds * self.world.size * self.peak
            values["perf/mfu"] = self.work / available
            values["perf/mfu_attention_not_halved"] = self.work_whole / available
            values["perf/memory_gib"] = torch.cuda.max_memory_allocated() / 1024**3
        self._reset()
        progress.log(step + 1, values, line=f"loss {values['train/loss']:.4f}  {values['perf/step_s']:.2f} s/step")
