"""One optimizer step: forward and backward over a rank's batches, one all-reduce, one update; and the metrics of
steps."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from vidqa.core.problem import Problem
from vidqa.data.problems import EMPTY
from vidqa.engine.data.dataloader import Schedule, Step
from vidqa.engine.distributed import World
from vidqa.engine.families import family_of
from vidqa.engine.loading.fsdp import Resharding
from vidqa.engine.problems import CHECK_LOG, ENGINE_NO_GRADIENT
from vidqa.engine.progress import Progress
from vidqa.engine.signals import StopRequest
from vidqa.engine.training.objectives import Objective
from vidqa.engine.training.optimizer import clip_gradients, trained_by
from vidqa.planning.budget.speed import FlopsModel, gpu_peak_flops
from vidqa.planning.prefix_sharing import workload
from vidqa.spec.models import TrainSpec


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of one optimizer step over all ranks; times and `problems` (bad samples) are this rank's."""

    loss: float  # mean over the objective's count
    metrics: Mapping[str, float]
    maxima: Mapping[str, float]
    grad_norm: float
    count: int
    stop_requested: bool
    any_broken: bool
    problems: list[Problem]
    seconds: float
    waited: float  # seconds of waiting for batches
    saved_flops: float  # FLOPs of the vision tower that cached features saved, over all ranks

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(kw_only=True)
class Learner:
    """A sharded model with its optimizer and objective. `max_norm` bounds the gradient's norm (0: no bound)."""

    model: Any
    resharding: Resharding
    optimizer: torch.optim.Optimizer
    objective: Objective
    max_norm: float
    world: World
    stop: StopRequest
    checked: bool = False  # whether all trainable parameters were checked for a gradient

    def train_step(self, step: Step) -> StepOutcome:
        """Take one optimizer step. Its loss is the objective's sum over all micro-batches and ranks, divided by the
        count over all of them, and so does not depend on packing or the number of ranks. Raises ENGINE_NO_GRADIENT."""
        started, problems = time.perf_counter(), list[Problem]()
        waited = saved_flops = 0.0
        names = self.objective.metrics
        largest = torch.zeros(len(self.objective.maxima), dtype=torch.float64, device=self.world.device)
        # Sum, count, ranks with a stop request, bad samples, saved FLOPs, and the metrics.
        totals = torch.zeros(5 + len(names), dtype=torch.float64, device=self.world.device)
        batches = iter(step.batches)
        for number in range(1, step.size + 1):
            self.resharding.begin(more_to_come=number < step.size)
            began_waiting = time.perf_counter()
            loaded = next(batches)
            waited += time.perf_counter() - began_waiting
            problems += loaded.problems
            saved_flops += loaded.batch.cached.saved_flops if loaded.batch.cached else 0.0
            sums = self.objective(self.model, loaded.batch)
            # FSDP averages gradients over ranks; times world.size this is their sum.
            (sums.sum * (self.world.size / step.expected)).backward()
            totals[0] += sums.sum.detach()
            totals[1] += sums.count
            for place, name in enumerate(names, 5):
                totals[place] += sums.metrics[name].detach()
            for place, name in enumerate(self.objective.maxima):
                if (values := sums.maxima[name]).numel():
                    largest[place] = torch.maximum(largest[place], values.amax())
        totals[2] += self.stop.signal_name is not None
        totals[3] += len(problems)
        totals[4] += saved_flops
        dist.all_reduce(totals)
        if len(largest):
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        if not self.checked:  # also in a resumed run: its model is a new object
            check_gradients(self.model)
            self.checked = True
        # Samples that could not be decoded make the count smaller than expected.
        scale = (step.expected / totals[1].clamp(min=1)).float()
        norm = clip_gradients(trained_by(self.optimizer), self.max_norm, scale)
        read = AsyncScalars(torch.cat([totals, largest, norm.double().view(1)]))
        self.optimizer.step()
        self.optimizer.zero_grad()
        # The only synchronisation of a step; meanwhile the device updates the weights.
        # A loss that is not finite ends the run before it saves.
        total, count, stop_requested, broken, saved_flops, *rest, norm_value = read.wait()
        metrics, maxima = rest[: len(names)], rest[len(names) :]
        return StepOutcome(
            loss=total / max(count, 1),
            metrics={name: value / max(count, 1) for name, value in zip(names, metrics, strict=True)},
            maxima=dict(zip(self.objective.maxima, maxima, strict=True)),
            grad_norm=norm_value,
            count=int(count),
            stop_requested=bool(stop_requested),
            any_broken=bool(broken),
            problems=problems,
            seconds=time.perf_counter() - started,
            waited=waited,
            saved_flops=saved_flops,
        )


class AsyncScalars:
    """Asynchronous device-to-host copy of a float64 vector [M]. `wait` blocks on this copy alone, not on later kernels
    of the stream."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)
        self._copied = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None

    def wait(self) -> list[float]:
        if self._copied is not None:
            self._copied.synchronize()
        return self._values.tolist()


def check_gradients(model: Any) -> None:
    """Raise ENGINE_NO_GRADIENT if a trainable parameter has no gradient after a backward pass."""
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise ENGINE_NO_GRADIENT.error(
            without[0], f"{len(without)} trainable parameters got no gradient: {without[:5]}"
        )


def peak_flops(device: torch.device) -> float | None:
    """Peak FLOP/s of the device in bf16; None if unknown (a CPU, an unlisted GPU)."""
    return gpu_peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def flops_of(model: Any, spec: TrainSpec) -> FlopsModel:
    """The FLOPs model of a model that trains as a TrainSpec or a GrpoSpec says."""
    family = family_of(model)
    vision_trains = bool(family.trained_vision(model))
    return family.flops(model.config, vision_trains=vision_trains, decoder_trains=spec.policy.lora is None)


class Meter:
    """Logs loss, the objective's metrics and timings every `logging.log_interval` steps and where a run can resume."""

    def __init__(self, spec: TrainSpec, model: Any, schedule: Schedule, world: World) -> None:
        self.interval, self.schedule, self.world = spec.logging.log_interval, schedule, world
        self.flops, self.peak = flops_of(model, spec), peak_flops(world.device)
        self._reset()

    def _reset(self) -> None:
        self.seconds = self.waited = self.work = self.work_whole = 0.0
        self.count = self.tokens = self.steps = 0
        self.metrics = defaultdict[str, float](float)

    def step(self, step: int, outcome: StepOutcome, rate: float, progress: Progress, *, saves: bool = False) -> None:
        """Add the outcome of a step; log every `logging.log_interval` steps and where the run `saves`. Raises
        DATA_EMPTY after an epoch of which nothing could be decoded."""
        works = [workload(unit, self.schedule.data.train) for unit in self.schedule.units(step)]
        self.count += outcome.count
        for name, value in {"loss": outcome.loss, **outcome.metrics}.items():
            self.metrics[name] += value * outcome.count
        self.tokens += sum(work.tokens for work in works)
        self.work += self.flops.training_flops(works) - outcome.saved_flops
        self.work_whole += self.flops.training_flops(works, halved=False) - outcome.saved_flops
        self.seconds += outcome.seconds
        self.waited += outcome.waited
        self.steps += 1
        if not self.count:  # all samples were left out: there is no loss yet
            if self.steps >= min(self.schedule.steps_per_epoch, self.schedule.total):
                raise EMPTY.error(f"step {step + 1}", "no training sample could be decoded", CHECK_LOG)
            return
        if (step + 1) % self.interval and not saves:
            return
        values = {
            **{f"train/{name}": total / self.count for name, total in self.metrics.items()},
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
