"""Samples per step, steps per run, and the learning rate of each part of a model.

train.optm_lr is a number, a table or a list as in cosmos-rl. A table has the keys `vision` (the tower; cosmos-rl calls
it visual), `merger`, `decoder` (with embeddings and head), and `global` for parts without a key; without one, the
merger has the rate of the tower. A list is [decoder, vision], the two parts of a model in cosmos-rl.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import cast

from vidqa.core import actions
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec.models import GrpoSpec, Spec, TrainSpec
from vidqa.spec.problems import CONFLICT, VALUE

LEARNING_RATE = "train.optm_lr"
PARTS = ("decoder", "vision", "merger")
NAMES = {*PARTS, "visual", "global"}
Rates = float | list[float] | dict[str, float]


def data_ranks(spec: TrainSpec) -> int:
    """Number of packs computed at a time: the GPUs of one context group share a pack."""
    return spec.policy.parallelism.dp_shard_size * spec.policy.parallelism.dp_replicate_size


def effective_batch(spec: TrainSpec) -> int:
    """Samples per optimizer step over all data-parallel ranks; in GRPO questions, as its batch counts completions."""
    if isinstance(spec, GrpoSpec):
        return max(1, spec.train.train_batch_per_replica // spec.rollout.n_generation)
    return spec.train.train_batch_per_replica * data_ranks(spec)


def steps_per_epoch(spec: TrainSpec, train_samples: int) -> int:
    """Optimizer steps per epoch; the last partial batch counts unless it is dropped."""
    full, rest = divmod(train_samples, effective_batch(spec))
    return full if spec.train.train_policy.dataloader_drop_last or not rest else full + 1


def total_steps(spec: TrainSpec, train_samples: int) -> int:
    """Optimizer steps of the whole run."""
    steps = spec.train.epoch * steps_per_epoch(spec, train_samples)
    return steps if spec.train.max_num_steps is None else min(steps, spec.train.max_num_steps)


def warmup_steps(spec: TrainSpec, train_samples: int) -> int:
    """Optimizer steps of the learning rate warm-up; a fraction above 0 is at least one step."""
    total = total_steps(spec, train_samples)
    if spec.train.optm_warmup_epochs is not None:
        warmup = spec.train.optm_warmup_epochs * steps_per_epoch(spec, train_samples)
    elif isinstance(spec.train.optm_warmup_steps, float) and spec.train.optm_warmup_steps <= 1:
        warmup = spec.train.optm_warmup_steps * total
    else:
        warmup = spec.train.optm_warmup_steps or 0
    return min(total, max(1, round(warmup)) if warmup else 0)


def train_samples(spec: Spec) -> int | None:
    """Number of training records, without those held out by `test_size`; None if there are none or they cannot be read
    here. Samples that are too long, or whose media are broken, are found only by preflight."""
    declared = actions.action_for(spec)
    if not declared.trains or declared.sampling is None:
        return None
    from vidqa.data import open_source  # imports readers of tables and archives, which most scripts do not need

    train_set = cast(TrainSpec, spec).custom.train_dataset
    place = (train_set.annotation_path, train_set.media_path)
    try:
        source = open_source(*place)
        return _count(*place, declared.sampling.held_out(spec), source.fingerprint()) if source.is_annotated else None
    except (ProblemError, OSError):
        return None


@lru_cache(maxsize=64)
def _count(annotations: str, media: str, held_out: tuple[float, int] | None, fingerprint: str) -> int | None:
    """Count training records. The source's `fingerprint` is a key of the cache. Raises ProblemError."""
    from vidqa.data import check_records, open_source, split_by_video
    from vidqa.data.problems import ProblemCollector

    if held_out is None:
        collector = ProblemCollector(annotations)
        rows = sum(1 for _ in open_source(annotations, media).rows(collector))
        is_whole = not any(problem.severity == "error" for problem in collector.problems)
        return rows if rows and is_whole else None
    records, _ = check_records(annotations, media, keep_missing=True)
    return len(split_by_video(records, *held_out)[0]) or None


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to."""
    if ".visual." not in f".{name}":
        return "decoder"
    return "merger" if ".merger." in name or ".deepstack_merger_list." in name else "vision"


def _named_rates(rates: Rates) -> dict[str, float]:
    """The learning rates by name of the part; empty for a single number."""
    if isinstance(rates, list):
        return dict(zip(PARTS, rates, strict=False))
    named = dict(rates) if isinstance(rates, dict) else {}
    if "visual" in named:
        named.setdefault("vision", named.pop("visual"))
    return named


def rate_of(rates: Rates, part: str) -> float | None:
    """The peak learning rate of a part; None if the spec has none for it."""
    if isinstance(rates, int | float):
        return float(rates)
    named = _named_rates(rates)
    names = (part, "vision", "global") if part == "merger" else (part, "global")
    return next((named[name] for name in names if name in named), None)


def shape_problems(rates: Rates) -> Iterator[Problem]:
    """SPEC_VALUE for unknown names of parts, and for a list of other than two rates."""
    if isinstance(rates, list) and len(rates) != 2:
        remedy = "write [decoder, vision], or a table { vision = 1e-6, merger = 1e-5, decoder = 1e-5 }"
        yield VALUE.at(LEARNING_RATE, f"the list has {len(rates)} rates", remedy)
    for name in sorted(set(rates) - NAMES) if isinstance(rates, dict) else ():
        yield VALUE.at(
            f"{LEARNING_RATE}.{name}", f"{name} is not a part of a model", "use vision, merger, decoder or global"
        )


def part_problems(rates: Rates, trained: Iterable[str]) -> list[Problem]:
    """SPEC_CONFLICT for a rate of a part without trained parameters, SPEC_VALUE for a trained part without a rate;
    `trained` are the names of the trained parameters."""
    parts = {part_of(name) for name in trained}
    problems = []
    for part in _named_rates(rates):
        if part in PARTS and part not in parts:
            remedy = "remove its rate, or make it trainable (policy.freeze_pattern, policy.lora.target_modules)"
            problems.append(CONFLICT.at(f"{LEARNING_RATE}.{part}", f"{part} has no trainable parameters", remedy))
    without = [part for part in PARTS if part in parts and not rate_of(rates, part)]
    return problems + [VALUE.at(LEARNING_RATE, f"the trainable part {part} has no rate", "set one") for part in without]
