"""Questions and completions of reinforcement learning: as samples, in memory, and in time.

The completions of a question are a group: all have its prompt in common, which stands in a pack once. A rollout holds
on each GPU beside the trainer a second set of weights, and the cache of its completions. The seconds of a step follow
from the work of its updates and prompts, and from what decode steps read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from vidqa.families import require_plain_weights
from vidqa.planning.budget.answering import CAPTURED, FLOAT, PAGE, cache_bytes_per_token
from vidqa.planning.budget.autotune import Packing
from vidqa.planning.budget.memory import BYTES_OF, GIB
from vidqa.planning.budget.params import ParamCounts
from vidqa.planning.budget.speed import FlopsModel, Gpu
from vidqa.planning.packing import Steps
from vidqa.planning.prefix_sharing import max_tokens, workload
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.spec import data_ranks, effective_batch, total_steps
from vidqa.spec.models import GrpoSpec

MAX_ROWS = 256  # completions that a GPU draws at a time
MAX_QUESTIONS = 2_000  # whose packs or work an estimate is of; the others are like them
PREFILL_MFU = 0.45  # of reading prompts
DECODE_SLOWDOWN = 1.3  # a decode step against reading its weights and its rows' cache


def prompt_planner(spec: GrpoSpec, model_folder: Path) -> Planner:
    """The planner of a GrpoSpec's questions: prompts that end where the answer begins. Raises MODEL_QUANTIZED."""
    require_plain_weights(model_folder, "training begins with")
    mode = spec.custom.train_dataset.response_mode
    return Planner(model_folder, spec.custom.vision, Prompting(spec.custom.system_prompt, mode, for_generation=True))


@dataclass(frozen=True, slots=True, eq=False)
class CompletionSample(Sample):
    """A prompt with one completion behind it. `token_ids` int32 [S] are those of both, the last `completion` of them
    the completion's, of which all or none are supervised. All but the last token of the prompt is the prefix that the
    group shares. `values` are float32 [S] by name, for the objective."""

    token_ids: np.ndarray = field(kw_only=True)
    completion: int = field(kw_only=True)
    values: Mapping[str, np.ndarray] = field(kw_only=True)


def completion_sample(
    question: Sample,
    prompt_ids: np.ndarray,
    completion_ids: Sequence[int],
    group: str,
    *,
    trains: bool,
    values: Mapping[str, np.ndarray],
) -> CompletionSample:
    """`values` are float32 [C] of the completion's tokens; a group has a name of its own in its step."""
    padding, count = np.zeros(len(prompt_ids), np.float32), len(completion_ids)
    return CompletionSample(
        question.record,
        question.plans,
        question.prompting,
        len(prompt_ids) + count,
        count if trains else 0,
        len(prompt_ids) - 1,
        group.encode(),
        token_ids=np.concatenate([prompt_ids, np.array(completion_ids, np.int32)]),
        completion=count,
        values={name: np.concatenate([padding, value.astype(np.float32)]) for name, value in values.items()},
    )


def longest_completions(questions: Sequence[Sample], size: int, answer: int) -> list[Sample]:
    """For estimates of memory and time: each question as a group of `size` completions of `answer` tokens each."""
    return [
        Sample(
            question.record,
            question.plans,
            question.prompting,
            question.length + answer,
            answer,
            question.length - 1,
            f"{number}".encode(),
        )
        for number, question in enumerate(questions)
        for _ in range(size)
    ]


@dataclass(frozen=True)
class RolloutShape:
    """`rows` completions are drawn at a time, whose prompts and completions have at most `longest` tokens together;
    `pages` hold them, the pages of a prompt shared by its group."""

    rows: int
    longest: int
    pages: int


def rollout_shape(spec: GrpoSpec, longest_prompt: int) -> RolloutShape:
    """The shape of a GrpoSpec's rollouts on each rank."""
    size, answer = spec.rollout.n_generation, spec.rollout.max_response_length
    most = max(answer, spec.validation.max_response_length or 0) if spec.validation.enable else answer
    questions = -(-effective_batch(spec) // data_ranks(spec))
    groups = max(1, min(questions, MAX_ROWS // size))
    rows = groups * size
    # A completion has the last, part page of its prompt in a page of its own.
    pages = groups * -(-longest_prompt // PAGE) + rows * (-(-answer // PAGE) + 2)
    width = -(-(longest_prompt + most) // PAGE)
    return RolloutShape(rows, longest_prompt + most, max(pages, width) + 1)


@dataclass(frozen=True)
class RolloutMemory:
    """Bytes on each GPU, from the beginning to the end of a run."""

    weights: float
    cache: float
    logits: float
    reference: float = 0.0

    @property
    def gib(self) -> float:
        return (self.weights + self.cache + self.logits + self.reference) / GIB


def rollout_memory(spec: GrpoSpec, model: ParamCounts, shape: RolloutShape) -> RolloutMemory:
    """Beside the trained `model`. A full training with a KL divergence holds the reference, too, sharded."""
    compute, count, sizes = BYTES_OF[spec.train.param_dtype], base_parameters(spec, model), model.sizes
    has_reference = spec.train.train_policy.kl_beta > 0 and spec.policy.lora is None
    captured = sum({min(rows, shape.rows) for rows in CAPTURED if rows <= shape.rows} | {shape.rows})
    return RolloutMemory(
        weights=count * compute,
        cache=shape.pages * PAGE * cache_bytes_per_token(sizes, compute),
        logits=captured * sizes.text.vocabulary * FLOAT,
        reference=has_reference * count * compute / spec.policy.parallelism.dp_shard_size,
    )


def base_parameters(spec: GrpoSpec, model: ParamCounts) -> int:
    """The parameters of the rollout model: those of the trained one without its adapters."""
    return model.every.every - (model.every.trained if spec.policy.lora is not None else 0)


def update_packing(spec: GrpoSpec, questions: Sequence[Sample], ranks: int, device_type: str) -> Packing:
    """The packs of updates whose completions are all as long as they may be."""
    looked_at = questions[:MAX_QUESTIONS]
    completions = longest_completions(looked_at, spec.rollout.n_generation, spec.rollout.max_response_length)
    batch = min(len(completions), effective_batch(spec) * spec.rollout.n_generation)
    steps_of = partial(Steps, spec, completions, ranks, device_type, batch=batch)
    return Packing(steps_of, min(total_steps(spec, len(questions)), max(1, len(completions) // batch)))


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
    some, size = questions[:MAX_QUESTIONS], spec.rollout.n_generation
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
