"""How many samples make a step, how many steps make a run: the arithmetic that everyone shares."""

from __future__ import annotations

from vidqa.spec.models import GrpoSpec, TrainSpec


def data_ranks(spec: TrainSpec) -> int:
    """How many packs are computed at a time: GPUs of one context share theirs."""
    return spec.policy.parallelism.dp_shard_size * spec.policy.parallelism.dp_replicate_size


def effective_batch(spec: TrainSpec) -> int:
    """Samples per optimizer step over all data-parallel ranks; in GRPO questions, as its batch counts completions."""
    if isinstance(spec, GrpoSpec):
        return max(1, spec.train.train_batch_per_replica // spec.rollout.n_generation)
    return spec.train.train_batch_per_replica * data_ranks(spec)


def steps_per_epoch(spec: TrainSpec, train_samples: int) -> int:
    """Optimizer steps per epoch; the last part batch counts unless it is dropped."""
    full, rest = divmod(train_samples, effective_batch(spec))
    return full if spec.train.train_policy.dataloader_drop_last or not rest else full + 1


def total_steps(spec: TrainSpec, train_samples: int) -> int:
    """Optimizer steps of the whole run."""
    steps = spec.train.epoch * steps_per_epoch(spec, train_samples)
    return steps if spec.train.max_num_steps is None else min(steps, spec.train.max_num_steps)


def warmup_steps(spec: TrainSpec, train_samples: int) -> int:
    """Optimizer steps over which the learning rate rises; a fraction above 0 is at least one step."""
    total = total_steps(spec, train_samples)
    if spec.train.optm_warmup_epochs is not None:
        warmup = spec.train.optm_warmup_epochs * steps_per_epoch(spec, train_samples)
    elif isinstance(spec.train.optm_warmup_steps, float) and spec.train.optm_warmup_steps <= 1:
        warmup = spec.train.optm_warmup_steps * total
    else:
        warmup = spec.train.optm_warmup_steps or 0
    return min(total, max(1, round(warmup)) if warmup else 0)
