"""Answering: whether the heaviest batch of prompts fits into a GPU, and which change helps if not; whether the models
that score free text are there."""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.contract.problem import Problem, ProblemError
from vidqa.dataset.sources import file_of
from vidqa.evaluation.cosmos_protocol import LONGER
from vidqa.evaluation.problems import METRIC_MODEL
from vidqa.evaluation.user_scores import require_function
from vidqa.families import family_of
from vidqa.families.quantization import kept_bytes
from vidqa.families.sizes import Sizes
from vidqa.planning.budget.answering import (
    PREDICTED,
    AnsweringMemory,
    AnsweringSetup,
    Reading,
    answering_memory,
    answering_setup,
    readings,
)
from vidqa.planning.budget.memory import BYTES_OF, GIB, fits
from vidqa.planning.packing.prefix_sharing import max_tokens
from vidqa.planning.samples import Sample
from vidqa.preflight._base import Check, Context, Skip
from vidqa.preflight.gpu_memory import NOTHING_HELPS, too_much, usable_memory
from vidqa.spec.evaluate_tables import metric_models
from vidqa.spec.keys import value_at, with_values

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
MOST_SAMPLES = 20_000  # the longest ones; the others take less
Change = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """The peak memory of one GPU, and the batch that causes it."""

    memory: AnsweringMemory
    reading: Reading
    setup: AnsweringSetup


def memory(context: Context) -> list[Problem]:
    """Compare the peak of one GPU with the memory of the GPUs, found or declared."""
    if not context.declared_action.answering:
        raise Skip("nothing is trained or answered")
    generator = value_at(context.spec, context.declared_action.answering).generator
    if generator not in PREDICTED:
        raise Skip(f"what {generator} takes of a GPU is its own to say")
    samples = [sample for name in context.planned for sample in _longest(context.usable(name))]
    if not samples:
        raise Skip("there is nothing to answer")
    sizes, parameters = model_of(context)
    has_gib = usable_memory(context)

    def judged(run_spec: Any) -> Estimate:
        return estimate(
            run_spec, value_at(run_spec, context.declared_action.answering), sizes, parameters, samples, has_gib
        )

    found = judged(context.spec)
    context.facts["memory"] = _facts(found, has_gib)
    heaviest = found.reading
    details = (
        f"{found.memory.weights / GIB:.1f} are weights, {found.memory.cache / GIB:.1f} the cache; {heaviest.prompts} "
        f"prompts read together have {heaviest.tokens} tokens and {heaviest.patches} patches"
    )

    def remedy(limit: float) -> str:
        for change in _changes(context.declared_action.answering, found.setup):
            if fits(judged(with_values(context.spec, change)).memory.peak_gib, limit):
                return "set " + "; ".join(f"{key} = {json.dumps(value)}" for key, value in change.items())
        return NOTHING_HELPS

    return too_much(context, found.memory.peak_gib, details, remedy)


def estimate(
    run_spec: Any, work: Any, sizes: Sizes, parameters: int, samples: Sequence[Sample], has_gib: float | None
) -> Estimate:
    """Memory of answering with this spec; every candidate change is judged by it."""
    setup = answering_setup(run_spec, work, max_tokens(samples), LONGER * getattr(work, "retries", 0))
    each = (
        Estimate(answering_memory(sizes, parameters, setup, reading, has_gib), reading, setup)
        for reading in readings(setup, samples, run_spec.num_gpus)
    )
    return max(each, key=lambda one: one.memory.peak_gib)


def _longest(samples: Sequence[Sample]) -> list[Sample]:
    return heapq.nlargest(MOST_SAMPLES, samples, key=lambda sample: sample.length)


def model_of(context: Context) -> tuple[Sizes, int]:
    """Sizes of the model that answers, and the numbers of its precision that its weights take. The native generator
    keeps 8-bit floats and 4-bit integers; other quantized weights become numbers of model.dtype."""
    folder = context.processor_folder
    family, sizes = family_of(folder), family_of(folder).sizes_of(folder)
    generator = value_at(context.spec, context.declared_action.answering).generator
    count = sum(tensor.numel for tensor in family.tensors(sizes))
    if generator == "native" and (kept := kept_bytes(folder, count)):
        return sizes, kept // BYTES_OF[value_at(context.spec, "model.dtype")]
    return sizes, count


def _changes(table: str, setup: AnsweringSetup) -> Iterator[Change]:
    """Changes, cheapest first: the generator without padding, smaller batches, 16-bit numbers."""
    native: Change = {f"{table}.generator": "native"}
    smaller: Change = {}
    if setup.generator == "native":
        smaller = {f"{table}.generator": "transformers"}
    else:
        yield native
    size = setup.batch
    while size > 1:
        size //= 2
        smaller = {**smaller, f"{table}.batch_size": size}
        yield smaller
    if setup.compute == BYTES_OF["float32"]:
        half: Change = {"model.dtype": "bfloat16"}
        yield from (half, {**half, **native}, {**half, **smaller})


def _facts(found: Estimate, has_gib: float | None) -> dict[str, Any]:
    memory, heaviest = found.memory, found.reading
    return {
        "peak_gib": round(memory.peak_gib, 1),
        "gpu_gib": has_gib,
        "weights_gib": round(memory.weights / GIB, 1),
        "cache_gib": round(memory.cache / GIB, 1),
        "prompts_read_together": heaviest.prompts,
        "heaviest_pack_tokens": heaviest.tokens,
        "heaviest_pack_patches": heaviest.patches,
    }


def metric_folders(context: Context) -> list[Problem]:
    """The folders of the models that score free text."""
    keys = metric_models(context.spec)
    if not keys:
        raise Skip("no metric needs a model of its own")
    folders = {key: Path(os.path.expanduser(value_at(context.spec, key))) for key in keys.values()}
    context.require_seen(*folders.values())
    problems = []
    for key, folder in folders.items():
        if not (folder / "config.json").is_file():
            problems.append(METRIC_MODEL.at(key, f"there is no {folder / 'config.json'}"))
        elif not any((folder / name).is_file() for name in WEIGHTS):
            problems.append(METRIC_MODEL.at(key, f"{folder} holds none of {', '.join(WEIGHTS)}"))
    return problems


def scoring_function(context: Context) -> list[Problem]:
    """The user's function that scores answers: its file is Python and names it."""
    if not (function := str(value_at(context.spec, "metrics.functions"))):
        raise Skip("metrics.functions is empty")
    context.require_seen(Path(os.path.expanduser(file_of(function))))
    try:
        require_function(function)
    except ProblemError as wrong:
        return wrong.problems
    return []


CHECKS = (
    Check("model", "models of metrics", metric_folders, ("spec",)),
    Check("spec", "scoring function", scoring_function, ("spec",)),
)
