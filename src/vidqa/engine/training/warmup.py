"""Warm-up while weights are read: kernels planned, functions compiled, ranks connected, memory mapped.

For every new shape cuDNN plans a kernel for forward and one for backward, which takes a sixth of a second, and
all GPUs wait for the one that plans. The shapes of the first steps are known beforehand: each is called once, on zeros,
in the threads of the real calls, because plans belong to a thread. Then one micro-step like the first one,
with any values of the weights, runs torch.compile and connects the ranks. Last the allocator maps the memory that
the run is predicted to need: within a step every GPU would wait for each of its pieces. Nothing else is kept.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from vidqa.engine.data.collate import Collator
from vidqa.engine.data.dataloader import MOST_SHAPES, Calls, Schedule
from vidqa.engine.distributed import World
from vidqa.engine.families import family_of
from vidqa.engine.families._base import Heads
from vidqa.engine.memory import share_of_gpu, use_device
from vidqa.engine.model.attention import attend_zeros
from vidqa.planning.budget.activation_checkpointing import Recompute
from vidqa.planning.budget.memory import GIB
from vidqa.planning.budget.memory_constants import CONSTANTS

PIECE_BYTES = 256 * 1024**2


def make_ready(model: Any, schedule: Schedule, collator: Collator, calls: Calls, step: int) -> None:
    """Warm up before `step`, the first one of this run."""
    plan_kernels(calls, schedule.policy.recompute, model, schedule.world)
    warm_up(model, schedule, collator, step)
    if schedule.policy.peak_gib:
        map_memory(schedule.policy.peak_gib, schedule.world.device)


def plan_kernels(calls: Calls, recompute: Recompute, model: Any, world: World) -> None:
    """Call attention once with every shape, forward and backward. PyTorch's thread for backward plans the kernel of one
    shape while this one plans that of the next."""
    family = family_of(model)
    (queries, keys, width), vision = family.attention_heads(model.config)
    decoder = Heads(queries // world.context.size, keys // world.context.size, width)
    towers = [
        (decoder, True, True, recompute.decoder),
        (vision, False, bool(family.trained_vision(model)), recompute.vision),
    ]
    with ThreadPoolExecutor(1, "kernels", use_device, (world.device,)) as waiting:
        backward = waiting.submit(lambda: None)
        for shapes, (heads, causal, trains, layers) in zip(calls, towers, strict=True):
            for call in shapes[:MOST_SHAPES]:
                again = layers.layer > 0
                attended = attend_zeros(call, heads, world.device, causal=causal, trains=trains, again=again)
                backward.result()  # no more than two shapes have memory at a time
                if trains:
                    backward = waiting.submit(attended.backward, torch.zeros_like(attended))
        backward.result()


def warm_up(model: Any, schedule: Schedule, collator: Collator, step: int) -> None:
    """Run forward and backward with the shapes of this rank's first pack of `step`, black frames and no labels."""
    if step == schedule.total:
        return
    numbers = schedule.packs(step)[0]
    samples = [schedule.data.train[number] for number in numbers]
    batch = collator(numbers, samples, [[None] * len(sample.plans) for sample in samples])
    model.packed(batch.to(schedule.world.device)).sum().backward()  # also reshards units that were gathered early
    model.zero_grad()


def map_memory(peak_gib: float, device: torch.device) -> None:
    """Let the allocator map the GPU memory that `fits` requires for a predicted peak, or as much as is free and
    allowed: pieces are tensors for a moment, and stay mapped. Only with expandable segments, in which a tensor may lie
    across pieces. Does nothing if all of that is mapped."""
    free, total = torch.cuda.mem_get_info(device)
    mapped = torch.cuda.memory_reserved(device)
    allowed = share_of_gpu(device) * total
    most = min(peak_gib * (1 + CONSTANTS.error) * GIB, mapped + free - CONSTANTS.outside_gib * GIB, allowed)
    if mapped + PIECE_BYTES > most or not any(part["is_expandable"] for part in torch.cuda.memory_snapshot()):
        return
    pieces = []
    with suppress(torch.OutOfMemoryError):  # another process took it meanwhile
        while torch.cuda.memory_reserved(device) + PIECE_BYTES <= most:
            pieces.append(torch.empty(PIECE_BYTES, dtype=torch.uint8, device=device))
    pieces.clear()
    torch.cuda.reset_peak_memory_stats(device)  # the peak must not include the pieces
