"""Differences of the native generator's answers from those of transformers on the same samples.

    python benchmarks/parity.py --model RUN --annotations DATA/kpi/annotations.json --media DATA/kpi

Prompts are planned once and answers are greedy. Prints the figures as JSON; exit code 1 if a bound is exceeded: in
float32 all answers are equal and no log-probability is further than 1e-4 away, in bfloat16 99 % and 0.5.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("src", "workflow")]

import torch

from demo.clips import write_demo_set
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import run_named
from vidqa.engine.answering.batch_inference import longest_sequence, model_folders, sampling_of
from vidqa.engine.answering.prompts import Prompts
from vidqa.engine.data.frames import open_frames
from vidqa.engine.data.planned_samples import fitting
from vidqa.engine.generators import open_native, open_transformers
from vidqa.engine.generators._base import Generator, Settings
from vidqa.engine.loading.load import DTYPES
from vidqa.engine.memory import release_memory
from vidqa.families.chat import Chat
from vidqa.jobs.local_job import ACTION, inference_job
from vidqa.planning.plan import load_sets, make_plan
from vidqa.planning.requests import Request, Result
from vidqa.planning.samples import Planner, Sample, evaluation_planner
from vidqa.spec import Layer, load, parse_set
from vidqa.spec.parent_layers import model_layer

CLIPS = 8  # of the demo, if no annotations are named
DEFAULTS = {"generation.max_tokens": 32, "inference.limit": 50}
LIKELIEST = 5  # likeliest tokens of the reference that are recorded
SHOWN = 5  # answers that differ
# By precision: the minimum share of equal answers, and the largest difference of a log-probability.
BOUNDS = {"float32": (1.0, 1e-4), "bfloat16": (0.99, 0.5), "float16": (0.99, 0.1)}


@dataclass(frozen=True)
class Answers:
    """Results by sample id, and their seconds without waiting for frames, which the second generator finds cached."""

    results: Mapping[str, Result]
    seconds: float


def parity(spec: Any) -> dict[str, Any]:
    """The figures of an inference spec. Raises ValueError if no sample can be asked."""
    folder, base = model_folders(spec)
    planner = evaluation_planner(spec, base or folder)
    samples, problems = fitting(spec, make_plan(spec, planner, load_sets(spec)).sets["asked"])
    if not samples:
        raise ValueError(f"{spec.dataset.annotation_path}: no sample can be asked; {problems[:3]}")
    reference, native = (_answers(spec, generator, planner, samples) for generator in (open_transformers, open_native))
    return {
        "model": str(folder),
        "dtype": spec.model.dtype,
        "samples": len(samples),
        "max_tokens": spec.generation.max_tokens,
        "seconds": {"transformers": round(reference.seconds, 2), "native": round(native.seconds, 2)},
        "native": compare(reference.results, native.results, planner.chat),
    }


def _answers(spec: Any, generator: Generator, planner: Planner, samples: Sequence[Sample]) -> Answers:
    folder, base = model_folders(spec)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    size, longest, workers = spec.inference.batch_size, longest_sequence(spec, samples), spec.engine.decode_workers
    settings = Settings(folder, base, DTYPES[spec.model.dtype], device, planner, longest, size)
    with (
        open_frames(spec.engine, max(1, workers)) as source,
        closing(generator(settings)) as session,
    ):
        started = time.perf_counter()
        prompts = Prompts(planner, source, replace(sampling_of(spec, 0), temperature=0.0))
        results = {r.id: r for batch in session.generate(_requests(prompts, samples)) for r in batch}
        seconds = time.perf_counter() - started - prompts.waited
    release_memory()
    return Answers(results, seconds)


def _requests(prompts: Prompts, samples: Sequence[Sample]) -> Iterator[Request]:
    return (replace(request, logprobs=True, top_logprobs=LIKELIEST) for request in prompts.requests(samples))


def compare(expected: Mapping[str, Result], results: Mapping[str, Result], chat: Chat) -> dict[str, Any]:
    """The differences from the reference. Log-probabilities are compared up to the first different token: after it the
    texts differ."""
    answered = {name: result for name, result in expected.items() if result.finish_reason != "error"}
    differences: list[float] = []
    unequal: list[dict[str, Any]] = []
    failed = 0
    for name, result in answered.items():
        other = results[name]
        if other.finish_reason == "error":
            failed += 1
            continue
        same = _common(result.token_ids, other.token_ids)
        pairs = zip(result.logprobs[:same], other.logprobs[:same], strict=True)
        differences += [abs(one - another) for one, another in pairs]
        if result.token_ids != other.token_ids:
            unequal.append(_difference(name, result, other, same, chat))
    count = len(answered)
    return {
        "prompts": count,
        "answered": count - failed,
        "same_answers": (count - failed - len(unequal)) / count if count else 0.0,
        "tokens_compared": len(differences),
        "largest_difference": max(differences, default=0.0),
        "mean_difference": sum(differences) / len(differences) if differences else 0.0,
        "answers_that_differ": unequal[:SHOWN],
    }


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of equal tokens at the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _difference(name: str, result: Result, other: Result, place: int, chat: Chat) -> dict[str, Any]:
    """The first difference of two answers. `margin` is the log-probability of the reference's token minus that of the
    other token, under the reference: near 0 if rounding decides, null if the other token is not among the likeliest."""
    likeliest = dict(result.top_logprobs[place]) if place < len(result.top_logprobs) else {}
    pair = [*result.token_ids[place : place + 1], *other.token_ids[place : place + 1]]
    ranked = len(pair) == 2 and all(token in likeliest for token in pair)
    return {
        "sample_id": name,
        "token": place,
        "reference": chat.decode(result.token_ids[place:]),
        "other": chat.decode(other.token_ids[place:]),
        "margin": likeliest[pair[0]] - likeliest[pair[1]] if ranked else None,
    }


def exceeded(figures: Mapping[str, Any], bounds: tuple[float, float]) -> list[str]:
    """Messages about the bounds that the figures of `compare` exceed."""
    least, largest = bounds
    messages = []
    if figures["same_answers"] < least:
        messages.append(f"{figures['same_answers']:.2%} of the answers are the same; {least:.2%} needed")
    if figures["largest_difference"] > largest:
        messages.append(f"a log-probability differs by {figures['largest_difference']:.2g}; {largest:.2g} allowed")
    return messages


def spec_of(model: str, which: str | None, annotations: str, media: str, sets: Sequence[str], folder: Path) -> Any:
    """The inference spec of a run's export or a folder of weights; without annotations, on clips of the demo."""
    if not annotations:
        write_demo_set(folder / "clips", CLIPS, seed=0)
        annotations, media = str(folder / "clips/train/annotations.json"), str(folder / "clips/train")
    data = {"dataset.annotation_path": annotations, "dataset.media_dir": media, "results_dir": str(folder)}
    layers = [Layer("parity.py", DEFAULTS), model_layer(ACTION, model, which), parse_set(sets)]
    return load(inference_job([*layers, Layer("parity.py", data)], folder).spec, ACTION)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=run_named, required=True, help="a run, its job id, or a folder of weights")
    parser.add_argument("--which", help="of a run: best, latest, step_N or epoch_N")
    parser.add_argument("--annotations", default="", help="samples; default: clips of the demo")
    parser.add_argument("--media", default="", help="where their videos are (default: beside them)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="see parameters_inference.md")
    parser.add_argument("--least-same", type=float, help="least share of equal answers")
    parser.add_argument("--largest-difference", type=float, help="of a log-probability")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="vidqa-parity-") as folder:
        try:
            spec = spec_of(options.model, options.which, options.annotations, options.media, options.set, Path(folder))
            figures = parity(spec)
        except ProblemError as refused:
            sys.exit("\n".join(map(str, refused.problems)))
    named = (options.least_same, options.largest_difference)
    least, largest = (
        default if bound is None else bound for bound, default in zip(named, BOUNDS[spec.model.dtype], strict=True)
    )
    print(json.dumps(figures, indent=1))
    messages = exceeded(figures["native"], (least, largest))
    print("\n".join(messages), file=sys.stderr)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
