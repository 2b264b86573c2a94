"""Checks of answering: memory of the heaviest prefill, time, answer length, and the models that score free text."""

from __future__ import annotations

import heapq
import json
import math
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem
from vidqa.data.sources import file_of
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.cosmos_protocol import RETRY_TOKENS_STEP
from vidqa.evaluation.problems import METRIC_UNAVAILABLE
from vidqa.evaluation.user_scores import require_function
from vidqa.families import Sizes
from vidqa.families.weights import quantized_bytes
from vidqa.planning.budget.answering import (
    ROWS,
    AnsweringMemory,
    AnsweringSetup,
    Reading,
    answering_memory,
    answering_setup,
    readings,
)
from vidqa.planning.budget.memory import BYTES_OF, GIB, fits
from vidqa.planning.budget.speed import START_S, Gpu, flops_model
from vidqa.planning.prefix_sharing import max_tokens, workload
from vidqa.planning.samples import Sample
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.memory_checks import NOTHING_HELPS, memory_problems, usable_memory
from vidqa.preflight.model_checks import architecture_parameters
from vidqa.preflight.problems import ANSWER_LENGTH
from vidqa.spec.evaluate_tables import folder_keys, metric_models
from vidqa.spec.keys import value_at, with_values
from vidqa.spec.prompt_files import REASONING_TOKENS

# Groups of files of a text encoder's folder; one of each group must exist.
ENCODER_FILES = (
    ("config.json",),
    ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
    ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"),
)
MOST_SAMPLES = 20_000  # limit on the planned samples, the longest first; shorter ones take less memory
Change = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """The peak memory of one GPU, and the prefill that causes it."""

    memory: AnsweringMemory
    reading: Reading
    setup: AnsweringSetup


def memory(inputs: Inputs) -> list[Problem]:
    """Compare the peak of one GPU with the visible or declared memory of the GPUs."""
    if not inputs.declared_action.answering:
        raise Skip("nothing is trained or answered")
    sets = [inputs.usable(name) for name in inputs.planned]
    samples = [s for part in sets for s in heapq.nlargest(MOST_SAMPLES, part, key=lambda sample: sample.length)]
    if not samples:
        raise Skip("there is nothing to answer")
    (sizes, parameters), has_gib = model_of(inputs), usable_memory(inputs)

    def judged(run_spec: Any) -> Estimate:
        work = value_at(run_spec, inputs.declared_action.answering)
        return estimate(run_spec, work, sizes, parameters, samples, has_gib)

    present = judged(inputs.spec)
    inputs.facts["memory"] = _facts(present, has_gib)
    heaviest = present.reading
    details = (
        f"{present.memory.weights / GIB:.1f} are weights, {present.memory.cache / GIB:.1f} the cache; "
        f"{heaviest.prompts} prompts read together have {heaviest.tokens} tokens and {heaviest.patches} patches"
    )

    def remedy(limit: float) -> str:
        for change in _changes(inputs.declared_action.answering, present.setup):
            if fits(judged(with_values(inputs.spec, change)).memory.peak_gib, limit):
                return "set " + "; ".join(f"{key} = {json.dumps(value)}" for key, value in change.items())
        return NOTHING_HELPS

    return memory_problems(inputs, present.memory.peak_gib, details, remedy)


def estimate(
    run_spec: Any, work: Any, sizes: Sizes, parameters: int, samples: Sequence[Sample], has_gib: float | None
) -> Estimate:
    """Estimate the memory of answering with this spec; also used for every candidate change."""
    setup = answering_setup(run_spec, work, max_tokens(samples), RETRY_TOKENS_STEP * getattr(work, "retries", 0))
    estimates = (
        Estimate(answering_memory(sizes, parameters, setup, reading, has_gib), reading, setup)
        for reading in readings(setup, samples, run_spec.num_gpus)
    )
    return max(estimates, key=lambda one: one.memory.peak_gib)


def model_of(inputs: Inputs) -> tuple[Sizes, int]:
    """Sizes of the answering model, and its weights' bytes as a count of numbers in its precision. The native generator
    keeps 8-bit floats and 4-bit integers; other quantized weights are converted to model.dtype."""
    generator = value_at(inputs.spec, inputs.declared_action.answering).generator
    if generator == "native" and (stored_bytes := quantized_bytes(inputs.model_folder)):
        return inputs.sizes, stored_bytes // BYTES_OF[value_at(inputs.spec, "model.dtype")]
    return inputs.sizes, architecture_parameters(inputs.model_folder)


def _changes(table: str, setup: AnsweringSetup) -> Iterator[Change]:
    """Candidate changes, the cheapest first: the generator without padding, smaller batches, 16-bit numbers."""
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


def _facts(estimated: Estimate, has_gib: float | None) -> dict[str, Any]:
    memory, heaviest = estimated.memory, estimated.reading
    return {
        "peak_gib": round(memory.peak_gib, 1),
        "gpu_gib": has_gib,
        "weights_gib": round(memory.weights / GIB, 1),
        "cache_gib": round(memory.cache / GIB, 1),
        "prompts_read_together": heaviest.prompts,
        "heaviest_pack_tokens": heaviest.tokens,
        "heaviest_pack_patches": heaviest.patches,
    }


def metric_folders(inputs: Inputs) -> list[Problem]:
    """Check the folders of the models that score free text."""
    return _encoder_folders(inputs, metric_models(inputs.spec).values(), "no metric needs a model of its own")


def text_model(inputs: Inputs) -> list[Problem]:
    """Check the folder of the model that embeds questions."""
    return _encoder_folders(inputs, folder_keys(inputs.spec), "embed.text_model is empty")


def _encoder_folders(inputs: Inputs, keys: Collection[str], without: str) -> list[Problem]:
    if not keys:
        raise Skip(without)
    folders = {key: Path(os.path.expanduser(value_at(inputs.spec, key))) for key in keys}
    inputs.require_visible(*folders.values())
    problems = []
    for key, folder in folders.items():
        missing = (names for names in ENCODER_FILES if not any((folder / name).is_file() for name in names))
        if names := next(missing, None):
            problems.append(METRIC_UNAVAILABLE.at(key, f"{folder} contains none of {', '.join(names)}"))
    return problems


def scoring_function(inputs: Inputs) -> list[Problem]:
    """Check that the user's scoring function is defined in a Python file."""
    if not (function := str(value_at(inputs.spec, "metrics.functions"))):
        raise Skip("metrics.functions is empty")
    inputs.require_visible(Path(os.path.expanduser(file_of(function))))
    require_function(function)
    return []


# Measured with Qwen3-VL-2B on one H200 (benchmarks/results/generation.json).
PREFILL_MFU = 0.5  # share of the bf16 peak that prefills reach
STEP_READS = 1.2  # time of a decode step relative to reading the weights
SHORT = frozenset(("yes_no", "letter", "direction"))
MOST_SHORT = 0.9
FEWEST_TOKENS = 256  # a smaller limit is meant for answers without reasoning


def answering_time(inputs: Inputs, card: Gpu) -> dict[str, Any]:
    """Seconds of an evaluation or inference with the native generator: the prefills, and at most the decoding, if every
    answer has the maximum length; `again_s_at_most` if all `retries` give empty answers. A shared video is counted for
    every question about it."""
    how = value_at(inputs.spec, inputs.declared_action.answering or "")
    max_tokens, dtype = (value_at(inputs.spec, key) for key in ("generation.max_tokens", "model.dtype"))
    if how.generator != "native":
        raise Skip(f"the speed of {how.generator} was not measured")
    samples: Sequence[Sample] = [sample for name in inputs.planned for sample in inputs.usable(name)]
    if not samples:
        raise Skip("there is nothing to answer")
    sizes, parameters = model_of(inputs)
    whole = flops_model(sizes, vision_trains=True, decoder_trains=True)
    forward = whole.training_flops(workload((number,), samples) for number in range(len(samples))) / 3
    is_scored = getattr(how, "method", "generate") == "score"
    turns = 0 if is_scored else math.ceil(len(samples) / ROWS / inputs.processes)
    step_s = STEP_READS * parameters * BYTES_OF[dtype] / card.bandwidth
    reading_s = forward / (card.peak * PREFILL_MFU) / inputs.processes
    attempts = range(1, 1 + getattr(how, "retries", 0))
    again_s = sum(reading_s + turns * (max_tokens + RETRY_TOKENS_STEP * attempt) * step_s for attempt in attempts)
    return {
        "start_s": START_S,
        "reading_s": round(reading_s, 1),
        "writing_s_at_most": round(turns * max_tokens * step_s, 1),
        "again_s_at_most": round(again_s, 1),
        "max_tokens": max_tokens,
        "gpu": card.name,
    }


def answer_length(inputs: Inputs) -> list[Problem]:
    """Warn about a token limit between one-word answers and reasoning, if one-word answers are expected."""
    action = inputs.declared_action
    if not action.answering:
        raise Skip("nothing is answered")
    how, most = (value_at(inputs.spec, key) for key in (action.answering, "generation.max_tokens"))
    if getattr(how, "method", "generate") == "score" or not FEWEST_TOKENS < most < REASONING_TOKENS:
        return []
    expected = [record for record in inputs.records if record.answer]
    system_prompt = value_at(inputs.spec, "dataset.system_prompt")
    texts = (system_prompt, *(text for record in expected[:100] for text in (record.question, record.answer)))
    asks_to_think = any("think" in text for text in texts)
    short = sum(parse_expected(record.answer, record.question).kind in SHORT for record in expected)
    if not expected or asks_to_think or short < MOST_SHORT * len(expected):
        return []
    message = (
        f"{short} of {len(expected)} expected answers are yes, no or a letter, and an answer may have {most} tokens"
    )
    return [ANSWER_LENGTH.at("generation.max_tokens", message, severity="warning")]
