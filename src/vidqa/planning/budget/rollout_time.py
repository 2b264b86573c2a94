"""Seconds of a GRPO step from the work of its updates and prompts, and from what decode steps read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vidqa.planning.budget.answering import cache_bytes_per_token
from vidqa.planning.budget.flops import FlopsModel
from vidqa.planning.budget.gpus import Gpu
from vidqa.planning.budget.memory import BYTES_OF, ParamCounts
from vidqa.planning.budget.rollouts import base_parameters, rollout_shape
from vidqa.planning.packing.prefix_sharing import max_tokens, workload
from vidqa.planning.rollouts import longest_completions
from vidqa.planning.samples import Sample
from vidqa.spec import data_ranks, effective_batch
from vidqa.spec.models import GrpoSpec

PREFILL_MFU = 0.45  # of reading prompts
DECODE_SLOWDOWN = 1.3  # a decode step against reading its weights and its rows' cache
MOST_QUESTIONS = 2_000  # whose work is summed; the others are like them


@dataclass(frozen=True)
class StepTime:
    """Seconds of the two parts of a step, where completions have `answer` tokens on average."""

    rollout_s: float
    update_s: float
    answer: int

    @property
    def seconds(self) -> float:
        return self.rollout_s + self.update_s


def step_time(
    spec: GrpoSpec, model: ParamCounts, questions: Sequence[Sample], flops: FlopsModel, card: Gpu, mfu: float
) -> StepTime:
    """Of one step on `data_ranks` GPUs. Completions are taken to be half as long as they may be."""
    some, size = questions[:MOST_QUESTIONS], spec.rollout.n_generation
    answer = max(1, spec.rollout.max_response_length // 2)
    batch, ranks = effective_batch(spec), data_ranks(spec)
    completions = longest_completions(some, size, answer)
    groups = [tuple(range(start, start + size)) for start in range(0, len(completions), size)]
    update = flops.training_flops(workload(group, completions) for group in groups) / len(some) * batch
    prompts = flops.training_flops(workload((number,), some) for number in range(len(some))) / len(some) * batch / 3
    rows = rollout_shape(spec, max_tokens(some)).rows
    compute = BYTES_OF[spec.train.param_dtype]
    prompt = sum(question.length for question in some) / len(some)
    cache = rows * (prompt + answer / 2) * cache_bytes_per_token(model.sizes, compute)
    decode_s = DECODE_SLOWDOWN * (base_parameters(spec, model) * compute + cache) / card.bandwidth
    rounds = -(-batch * size // ranks // rows)
    rollout_s = prompts / (card.peak * PREFILL_MFU * ranks) + rounds * answer * decode_s
    return StepTime(rollout_s, update / (card.peak * mfu * ranks), answer)
