"""cuDNN's attention kernels, planned while weights are read and not when a step first needs them.

For every shape that it has not met cuDNN plans a kernel forward and one backward, which takes a sixth of a second, and
all GPUs wait for the one that plans. The shapes of the first steps are known beforehand: each is called once, on zeros,
in the threads that will make the real calls, because plans belong to a thread.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from vidqa.budget.memory import Recompute
from vidqa.engine.batch.collate import Collator
from vidqa.engine.model.attention import attend
from vidqa.engine.schedule import Schedule

MOST_STEPS = 200  # whose packs are looked at
MOST_SHAPES = 128  # of the decoder, and of the vision tower
Call = tuple[int, int]  # count, length


def attention_calls(schedule: Schedule, collator: Collator) -> tuple[list[Call], list[Call]]:
    """What the decoder's attention and the vision tower's are called with in the first steps, on any rank; commonest
    first."""
    decoder, vision = Counter[Call](), Counter[Call]()
    samples = schedule.data.train
    for step in range(min(schedule.total, MOST_STEPS)):
        for pack in (pack for packs in schedule.steps.packs(step) for pack in packs):
            segments = collator.segments([samples[number] for number in pack])
            for calls, found in zip((decoder, vision), segments, strict=True):
                calls.update((count, length) for _, count, length in found)
    first, second = ([call for call, _ in calls.most_common(MOST_SHAPES)] for calls in (decoder, vision))
    return first, second


def plan_kernels(schedule: Schedule, collator: Collator, recompute: Recompute, model: Any) -> None:
    """Call attention once with every shape of the first steps, where cuDNN will do it."""
    device = schedule.world.device
    if device.type != "cuda" or schedule.spec.train.param_dtype != "bfloat16":
        return
    decoder, vision = attention_calls(schedule, collator)
    text, tower = model.config.text_config, model.config.vision_config
    heads = (text.num_attention_heads, text.num_key_value_heads, text.head_dim)
    for call in decoder:
        _plan(call, heads, device, causal=True, trains=True, again=recompute == "all")
    heads = (tower.num_heads, tower.num_heads, tower.hidden_size // tower.num_heads)
    trains = any(parameter.requires_grad for parameter in model.model.visual.parameters())
    for call in vision:
        _plan(call, heads, device, causal=False, trains=trains, again=recompute != "none")


def _plan(
    call: Call, heads: tuple[int, int, int], device: torch.device, *, causal: bool, trains: bool, again: bool
) -> None:
    """`again` says that backward computes forward again, in its own thread."""
    (count, length), (queries, keys, size) = call, heads
    once = partial(attend, segments=((0, count, length),), causal=causal)
    inputs = [
        torch.zeros(count * length, number, size, device=device, dtype=torch.bfloat16, requires_grad=trains)
        for number in (queries, keys, keys)
    ]
    attended = checkpoint(once, *inputs, use_reentrant=False) if again and trains else once(*inputs)
    if trains:
        attended.backward(torch.zeros_like(attended))
