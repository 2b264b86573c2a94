"""Questions and completions of reinforcement learning: as samples, in memory, and in time.

The completions of a question are a group: they share its prompt, which is in a pack once. A rollout needs on each GPU,
beside the trainer, a second set of weights and the KV cache of its completions. The seconds of a step follow from the
FLOPs of its updates and prefills, and from the bytes that decode steps read.
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
MAX_QUESTIONS = 2_000  # limit on the questions of an estimate; the others are alike
PREFILL_MFU = 0.45  # of prefills
DECODE_SLOWDOWN = 1.3  # time of a decode step relative to reading the weights and the rows' cache


def prompt_planner(spec: GrpoSpec, model_folder: Path) -> Planner:
    """The planner of a GrpoSpec's questions: prompts that end where the answer begins. Raises MODEL_QUANTIZED."""
    require_plain_weights(model_folder, "training begins with")
    mode = spec.custom.train_dataset.response_mode
    return Planner(model_folder, spec.custom.vision, Prompting(spec.custom.system_prompt, mode, for_generation=True))


@dataclass(frozen=True, slots=True, eq=False)
class CompletionSample(Sample):
    """A prompt followed by one completion. `token_ids` int32 [S] are those of both, the last `completion` of them the
    completion's, of which all or none are supervised. All but the last token of the prompt is the prefix that the group
    shares. `values` are float32 [S] by name, for the objective."""

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
    """The sample of a completion. `values` are float32 [C] of its tokens; `group` is a unique name in a step."""
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
    """Samples for estimates of memory and time: each question with `size` completions of `answer` tokens each."""
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
    """Shape of a rollout: `rows` completions are drawn at a time; a prompt with its completion has at most `longest`
    tokens; the cache has `pages` pages, those of a prompt shared by its group."""

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
    # The last, partly filled page of its prompt is copied for each completion.
    pages = groups * -(-longest_prompt // PAGE) + rows * (-(-answer // PAGE) + 2)
    width = -(-(longest_prompt + most) // PAGE)
    return RolloutShape(rows, longest_prompt + most, max(pages, width) + 1)


@dataclass(frozen=True)
class RolloutMemory:
    """Bytes on each GPU, during the whole run."""

    weights: float
    cache: float
    logits: float
    reference: float = 0.0

    @property
    def gib(self) -> float:
        return (self.weights + self.cache + self.logits + self.reference) / GIB


def rollout_memory(spec: GrpoSpec, model: ParamCounts, shape: RolloutShape) -> RolloutMemory:
    """The memory of rollouts beside the trained `model`. Full training with KL divergence adds a sharded reference."""
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
    """Parameters of the rollout model: those of the trained one without its adapters."""
    return model.every.every - (model.every.trained if spec.policy.lora is not None else 0)


def update_packing(spec: GrpoSpec, questions: Sequence[Sample], ranks: int, device_type: str) -> Packing:
    """The packs of updates if all completions have the maximum length."""
    looked_at = questions[:MAX_QUESTIONS]
    completions = longest_completions(looked_at, spec.rollout.n_generation, spec.rollout.max_response_length)
    batch = min(len(completions), effective_batch(spec) * spec.rollout.n_generation)
    steps_of = partial(Steps, spec, completions, ranks, device_type, batch=batch)
    return Packing(steps_of, min(total_steps(spec, len(questions)), max(1, len(completions) // batch)))


@dataclass(frozen=True)
class StepTime:
    """Seconds of the two parts of a step, for completions of `answer` tokens on average."""

    rollout_s: float
    update_s: float
    answer: int

    @property
    def seconds(self) -> float:
        return self.rollout_s + self.update_s


def step_time(
    spec: GrpoSpec, model: ParamCounts, questions: Sequence[Sample], flops: FlopsModel, card: Gpu, mfu: float
) -> StepTime:
    """The time of one step on `data_ranks` GPUs. Completions are assumed to have half of the maximum length."""
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
