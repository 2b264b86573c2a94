"""One optimizer step: forward and backward over a rank's batches, one exchange between ranks, one update."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from vidqa.core.problem import Problem
from vidqa.engine.data.dataloader import Step
from vidqa.engine.distributed import World
from vidqa.engine.loading.fsdp import Resharding
from vidqa.engine.objectives import Objective
from vidqa.engine.problems import ENGINE_NO_GRADIENT
from vidqa.engine.signals import StopRequest
from vidqa.engine.training.optimizer import clip_gradients, trained_by


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
    waited: float  # seconds of waiting for a batch
    saved: float  # operations of a vision tower whose features were read, over all ranks

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
    checked: bool = False  # whether every parameter that trains was seen to get a gradient

    def train_step(self, step: Step) -> StepOutcome:
        """One optimizer step. Its loss is the objective's sum over all micro-batches and ranks, divided by the count
        over all of them, and so does not depend on packing or the number of ranks. Raises ENGINE_NO_GRADIENT."""
        started, waited, problems = time.perf_counter(), 0.0, list[Problem]()
        names = self.objective.metrics
        largest = torch.zeros(len(self.objective.maxima), dtype=torch.float64, device=self.world.device)
        # Sum, count, ranks with a stop request, bad samples, operations saved, and the metrics.
        totals = torch.zeros(5 + len(names), dtype=torch.float64, device=self.world.device)
        saved = 0.0
        batches = iter(step.batches)
        for number in range(1, step.size + 1):
            self.resharding.begin(more_to_come=number < step.size)
            began_waiting = time.perf_counter()
            loaded = next(batches)
            waited += time.perf_counter() - began_waiting
            problems += loaded.problems
            saved += loaded.batch.cached.saved if loaded.batch.cached else 0.0
            sums = self.objective(self.model, loaded.batch)
            # FSDP takes the mean of gradients over ranks; times world.size it is their sum.
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
        totals[4] += saved
        dist.all_reduce(totals)
        if len(largest):
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        if not self.checked:  # also in a resumed run: its model was built anew
            check_gradients(self.model)
            self.checked = True
        # Samples that could not be decoded leave a smaller count than expected.
        scale = (step.expected / totals[1].clamp(min=1)).float()
        norm = clip_gradients(trained_by(self.optimizer), self.max_norm, scale)
        read = AsyncScalars(torch.cat([totals, largest, norm.double().view(1)]))
        self.optimizer.step()
        self.optimizer.zero_grad()
        # The only synchronisation of a step; meanwhile the device updates the weights.
        # A loss that is not finite ends the run before it saves.
        total, count, stop_requested, broken, saved, *rest, norm_value = read.wait()
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
            saved=saved,
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
    """After the first backward of a process every trainable parameter must have a gradient."""
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise ENGINE_NO_GRADIENT.error(
            without[0], f"{len(without)} trainable parameters got no gradient: {without[:5]}"
        )
