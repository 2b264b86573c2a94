"""Parity: the same samples answered by several generators, and the differences of their answers.

    python -P -m vidqa.engine.parity --spec inference.toml --generators transformers,native --out parity.json

Prompts are planned once, and answers are greedy. scripts/parity.py writes the spec and shows the figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vidqa.contract.cli import note
from vidqa.contract.environment import take_parent
from vidqa.contract.files import write_json
from vidqa.contract.parent_death_signal import end_with
from vidqa.contract.problem import Problem, ProblemError, exit_code_of
from vidqa.engine.asking import BATCHES_AHEAD, longest_sequence, model_folders, sampling_of
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.generators import GENERATORS
from vidqa.engine.generators._base import Request, Result, Settings
from vidqa.engine.memory_policy import release_memory
from vidqa.engine.model.load import DTYPES
from vidqa.engine.prepare import fitting, frame_cache
from vidqa.engine.problems import ENGINE_GENERATORS_DIFFER, ENGINE_NO_SAMPLES, ENGINE_VLLM_PROMPT
from vidqa.engine.prompts import Prompts
from vidqa.families.chat import Chat
from vidqa.planning.plan import make_plan
from vidqa.planning.samples import Planner, Sample, evaluation_planner
from vidqa.planning.sets import load_sets
from vidqa.spec import load

REFERENCE = "transformers"
LIKELIEST = 5  # likeliest tokens of the reference that are recorded
SHOWN = 5  # answers that differ
# The default bounds by precision: share of equal answers, difference of a log-probability.
BOUNDS = {"float32": (1.0, 1e-4), "bfloat16": (0.99, 0.5), "float16": (0.99, 0.1)}


@dataclass(frozen=True)
class Answered:
    """The results of a generator by sample id, and its seconds. Waiting for frames is not counted: later generators
    find them cached."""

    results: Mapping[str, Result]
    seconds: float


def parity(spec: Any, names: Sequence[str], bounds: tuple[float, float]) -> tuple[dict[str, Any], list[Problem]]:
    """The figures, and the problems of unusable samples and of generators out of bounds: `bounds` are the least share
    of equal answers and the largest difference of a log-probability."""
    folder, base = model_folders(spec)
    planner = evaluation_planner(spec, base or folder)
    samples, problems = fitting(spec, make_plan(spec, planner, load_sets(spec)).sets["asked"])
    if not samples:
        raise ENGINE_NO_SAMPLES.error(spec.dataset.annotation_path, "no sample can be asked")
    # vLLM first: it takes most of the GPU, which this process does not use yet.
    in_turn = sorted(names, key=lambda each: each != "vllm")
    answered = {name: _answered(spec, name, planner, samples) for name in in_turn}
    reference = REFERENCE if REFERENCE in names else names[0]
    others = [name for name in names if name != reference]
    compared = {name: compare(answered[reference].results, answered[name].results, planner.chat) for name in others}
    seconds = {name: round(each.seconds, 2) for name, each in answered.items()}
    figures = {
        "model": str(folder),
        "dtype": spec.model.dtype,
        "samples": len(samples),
        "max_tokens": spec.generation.max_tokens,
        "reference": reference,
        "bounds": {"same_answers": bounds[0], "largest_difference": bounds[1]},
        "seconds": seconds,
        "generators": compared,
    }
    problems += [replace(each, severity="warning") for each in _undecoded(answered[reference])]
    return figures, [*problems, *(out for name in others for out in beyond(name, reference, compared[name], bounds))]


def _answered(spec: Any, name: str, planner: Planner, samples: Sequence[Sample]) -> Answered:
    folder, base = model_folders(spec)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    size, dtype, python = spec.inference.batch_size, DTYPES[spec.model.dtype], spec.engine.vllm.python
    workers = max(1, spec.engine.decode_workers)
    settings = Settings(folder, base, dtype, device, planner, longest_sequence(spec, samples), size, vllm_python=python)
    note(f"{name} answers {len(samples)} samples")
    with (
        closing(FrameSource(workers, spec.engine.decode_timeout_s, frame_cache(spec.engine))) as source,
        closing(GENERATORS[name].open(settings)) as session,
    ):
        started = time.perf_counter()
        prompts = Prompts(planner, source, replace(sampling_of(spec, 0), temperature=0.0), BATCHES_AHEAD * size)
        results = {r.id: r for some in session.generate(_requests(prompts, samples)) for r in some}
        seconds = time.perf_counter() - started - prompts.waited
    release_memory()
    return Answered(results, seconds)


def _requests(prompts: Prompts, samples: Sequence[Sample]) -> Iterator[Request]:
    return (replace(request, logprobs=True, top_logprobs=LIKELIEST) for request in prompts.of(samples))


def _undecoded(answered: Answered) -> list[Problem]:
    return list(dict.fromkeys(problem for result in answered.results.values() for problem in result.problems))


def compare(expected: Mapping[str, Result], found: Mapping[str, Result], chat: Chat) -> dict[str, Any]:
    """The differences of one generator from the reference. Log-probabilities are compared up to the first different
    token: after it the texts differ."""
    answered = {name: result for name, result in expected.items() if result.finish_reason != "error"}
    differences: list[float] = []
    apart: list[dict[str, Any]] = []
    refused = failed = 0
    for name, result in answered.items():
        other = found[name]
        if other.finish_reason == "error":
            failed += 1
            refused += any(problem.code == ENGINE_VLLM_PROMPT.name for problem in other.problems)
            continue
        same = _common(result.token_ids, other.token_ids)
        pairs = zip(result.logprobs[:same], other.logprobs[:same], strict=True)
        differences += [abs(mine - theirs) for mine, theirs in pairs]
        if result.token_ids != other.token_ids:
            apart.append(_difference(name, result, other, same, chat))
    count = len(answered)
    return {
        "prompts": count,
        "prompts_with_planned_ids": count - refused,
        "answered": count - failed,
        "same_answers": (count - failed - len(apart)) / count if count else 0.0,
        "tokens_compared": len(differences),
        "largest_difference": max(differences, default=0.0),
        "mean_difference": sum(differences) / len(differences) if differences else 0.0,
        "answers_that_differ": apart[:SHOWN],
    }


def _common(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """The number of equal tokens at the beginning."""
    pairs = enumerate(zip(mine, theirs, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(mine), len(theirs)))


def _difference(name: str, result: Result, other: Result, at: int, chat: Chat) -> dict[str, Any]:
    """The first difference of two answers. `margin` is the log-probability of the reference's token less that of the
    other one, by the reference: near 0 where rounding decides, null if the other one is not among the likeliest."""
    likeliest = dict(result.top_logprobs[at]) if at < len(result.top_logprobs) else {}
    mine, theirs = result.token_ids[at : at + 1], other.token_ids[at : at + 1]
    both_ranked = bool(mine and theirs) and mine[0] in likeliest and theirs[0] in likeliest
    return {
        "sample_id": name,
        "token": at,
        "reference": chat.decode(result.token_ids[at:]),
        "other": chat.decode(other.token_ids[at:]),
        "margin": likeliest[mine[0]] - likeliest[theirs[0]] if both_ranked else None,
    }


def beyond(name: str, reference: str, figures: Mapping[str, Any], bounds: tuple[float, float]) -> list[Problem]:
    """ENGINE_GENERATORS_DIFFER where the figures of a generator are out of bounds."""
    least, largest = bounds
    wrong = []
    if figures["prompts_with_planned_ids"] < figures["prompts"]:
        refused = figures["prompts"] - figures["prompts_with_planned_ids"]
        wrong.append(f"{refused} of {figures['prompts']} prompts have other tokens than were planned")
    if figures["same_answers"] < least:
        wrong.append(f"{figures['same_answers']:.2%} of its answers are the same, {least:.2%} at least are wanted")
    if figures["largest_difference"] > largest:
        found = figures["largest_difference"]
        wrong.append(f"a log-probability is {found:.2g} from that of {reference}, at most {largest:.2g} is wanted")
    return [ENGINE_GENERATORS_DIFFER.at(name, "; ".join(wrong))] if wrong else []


def main() -> int:
    if parent := take_parent():
        end_with(parent)
    parser = argparse.ArgumentParser(description="Compare the answers of generators.")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--generators", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--least-same", type=float)
    parser.add_argument("--largest-difference", type=float)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    try:
        spec = load(options.spec, "inference")
        given = (options.least_same, options.largest_difference)
        pairs = zip(given, BOUNDS[spec.model.dtype], strict=True)
        least, largest = (usual if bound is None else bound for bound, usual in pairs)
        figures, problems = parity(spec, options.generators.split(","), (least, largest))
    except ProblemError as stopped:
        problems = stopped.problems
    write_json(options.out, {"figures": figures, "problems": [problem.as_dict() for problem in problems]})
    return exit_code_of(problems)


if __name__ == "__main__":
    sys.exit(main())
