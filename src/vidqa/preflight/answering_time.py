"""Answering: how long it takes, and whether the most tokens of an answer fit the answers that are expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vidqa.contract.problem import Problem
from vidqa.evaluation.answers import parse_expected
from vidqa.evaluation.cosmos_protocol import LONGER
from vidqa.planning.budget.answering import ROWS
from vidqa.planning.budget.flops import flops_model
from vidqa.planning.budget.gpus import Gpu
from vidqa.planning.budget.memory import BYTES_OF
from vidqa.planning.budget.mfu import START_S
from vidqa.planning.packing.prefix_sharing import workload
from vidqa.planning.samples import Sample
from vidqa.preflight._base import Context, Skip
from vidqa.preflight.answering_checks import model_of
from vidqa.preflight.problems import ANSWER_LENGTH
from vidqa.spec.keys import value_at
from vidqa.spec.prompt_files import REASONING_TOKENS

# Measured with Qwen3-VL-2B on one H200 (benchmarks/results/generation.json).
PREFILL_MFU = 0.5  # share of the bf16 peak that reading prompts reaches
STEP_READS = 1.2  # a decode step takes this many times the reading of the weights
SHORT = frozenset(("yes_no", "letter", "direction"))
MOST_SHORT = 0.9
FEWEST_TOKENS = 256  # a limit below it is meant for answers alone


def answering_time(context: Context, card: Gpu) -> dict[str, Any]:
    """Seconds of an evaluation or inference with the native generator: to read the prompts, and at most to write the
    answers, where each has as many tokens as it may; `again_s_at_most` where all of `retries` attempts stay empty.
    Shared videos are counted for every question about them."""
    how = value_at(context.spec, context.declared_action.answering or "")
    max_tokens, dtype = (value_at(context.spec, key) for key in ("generation.max_tokens", "model.dtype"))
    if how.generator != "native":
        raise Skip(f"the speed of {how.generator} was not measured")
    samples: Sequence[Sample] = [sample for name in context.planned for sample in context.usable(name)]
    if not samples:
        raise Skip("there is nothing to answer")
    sizes, parameters = model_of(context)
    whole = flops_model(sizes, vision_trains=True, decoder_trains=True)
    forward = whole.training_flops(workload((number,), samples) for number in range(len(samples))) / 3
    is_scored = getattr(how, "method", "generate") == "score"
    turns = 0 if is_scored else math.ceil(len(samples) / ROWS / context.processes)
    step_s = STEP_READS * parameters * BYTES_OF[dtype] / card.bandwidth
    reading_s = forward / (card.peak * PREFILL_MFU) / context.processes
    attempts = range(1, 1 + getattr(how, "retries", 0))
    again_s = sum(reading_s + turns * (max_tokens + LONGER * attempt) * step_s for attempt in attempts)
    return {
        "start_s": START_S,
        "reading_s": round(reading_s, 1),
        "writing_s_at_most": round(turns * max_tokens * step_s, 1),
        "again_s_at_most": round(again_s, 1),
        "max_tokens": max_tokens,
        "gpu": card.name,
    }


def answer_length(context: Context) -> list[Problem]:
    """Whether the limit is one for reasoning though answers of one word are expected, and too small a one for it."""
    action = context.declared_action
    if not action.answering:
        raise Skip("nothing is answered")
    how, most = (value_at(context.spec, key) for key in (action.answering, "generation.max_tokens"))
    if getattr(how, "method", "generate") == "score" or not FEWEST_TOKENS < most < REASONING_TOKENS:
        return []
    expected = [record for record in context.records if record.answer]
    system_prompt = value_at(context.spec, "dataset.system_prompt")
    asks_to_think = any("think" in text for text in (system_prompt, *_texts_of(expected)))
    short = sum(parse_expected(record.answer, record.question).kind in SHORT for record in expected)
    if not expected or asks_to_think or short < MOST_SHORT * len(expected):
        return []
    message = (
        f"{short} of {len(expected)} expected answers are yes, no or a letter, and an answer may have {most} tokens"
    )
    return [ANSWER_LENGTH.at("generation.max_tokens", message, severity="warning")]


def _texts_of(records: Sequence[Any]) -> list[str]:
    return [text for record in records[:100] for text in (record.question, record.answer)]
