"""Speed of answering on one GPU: the native generator against transformers' own `generate`, prefill, one decode step.

    python benchmarks/generation.py --out /tmp/generation

8B shapes with random weights, real clips of 1k to 8k tokens with frames decoded before the measurement starts.
--tiny is a rehearsal; its figures mean nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import numpy as np
import torch
from ledger import Ledger, arguments, rounded
from shapes import write_random_model
from video_set import SetShape, corpus, write_set

from vidqa.data import load_records
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.export import load_export
from vidqa.engine.families import family_of
from vidqa.engine.generators._base import Settings
from vidqa.engine.generators.hf import TransformersSession
from vidqa.engine.generators.native import NativeSession
from vidqa.planning.budget.answering import PAGE
from vidqa.planning.budget.speed import gpu_peak_flops
from vidqa.planning.prefix_sharing import prefix_groups, workload
from vidqa.planning.requests import Request, Sampling
from vidqa.planning.samples import Planner, Prompting, Sample

FPS = 1.4  # clips of 5 to 40 seconds become 1k to 8k tokens
BANDWIDTH = 4.0e12  # bytes per second at which an H200 reads weights and cache at best
SETS = {"1k-8k": SetShape(64, (5, 40)), "8-questions": SetShape(8, (20, 40), questions=8)}
TINY = {"1k-8k": SetShape(6, (1, 4), width=96, height=64), "8-questions": SetShape(2, (1, 3), 8, 96, 64)}
BATCH = 8  # of the reference
REPEATS = 3
Answers = dict[str, tuple[int, ...]]


class Prompts:
    """The samples of a set with their frames, and their requests for a session."""

    def __init__(self, model: Path, folder: Path, workers: int) -> None:
        self.planner = Planner(model, SimpleNamespace(fps=FPS), Prompting(for_generation=True))
        samples, problems = self.planner.plan(load_records(folder / "annotations.json", folder))
        assert not problems, problems[0]
        units = sorted(prefix_groups(range(len(samples)), samples), key=lambda unit: -samples[unit[0]].length)
        self.samples: list[Sample] = [samples[i] for unit in units for i in unit]
        self.works = [workload(unit, samples) for unit in units]
        source = FrameSource(workers, 300.0, None)
        self.frames, problems = source.collect(source.request(self.samples))
        source.close()
        assert not problems, problems[0]

    def requests(self, max_tokens: int, candidates: tuple[tuple[int, ...], ...] = ()) -> list[Request]:
        stop_ids = tuple(self.planner.chat.eos_ids)
        return [
            Request(
                sample.record.id,
                self.planner.encode(sample).token_ids,
                Sampling(max_tokens),
                stop_ids,
                sample.plans,
                partial(list, frames),
                prefix=sample.prefix,
                prefix_key=sample.prefix_key,
                candidates=candidates,
            )
            for sample, frames in zip(self.samples, self.frames, strict=True)
        ]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def answered(session: Any, requests: Sequence[Request]) -> dict[str, tuple[int, ...]]:
    return {result.id: result.token_ids for some in session.generate(requests) for result in some}


def measure(session: Any, prompts: Prompts, max_tokens: int, repeats: int) -> tuple[list[float], Any]:
    requests = prompts.requests(max_tokens)
    answered(session, requests[:BATCH])  # compiles kernels and initialises libraries
    runs = [timed(lambda: answered(session, requests)) for _ in range(repeats)]
    return [seconds for seconds, _ in runs], runs[-1][1]


def same(ours: Answers, theirs: Answers) -> float:
    return sum(ours[key] == ids for key, ids in theirs.items()) / len(theirs)


def letters(session: Any, prompts: Prompts) -> np.ndarray:
    """Log-probabilities [samples, 4] of the letters A to D as the whole answer."""
    candidates = tuple(prompts.planner.chat.text_ids(letter) for letter in "ABCD")
    scores = {result.id: result.scores for some in session.generate(prompts.requests(1, candidates)) for result in some}
    return np.array([scores[sample.record.id] for sample in prompts.samples])


def agreement(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    """The share of equal best letters, the mean difference of log-probabilities, and the lead of the best letter."""
    spread = np.sort(theirs, axis=1)
    return {
        "same": float((ours.argmax(1) == theirs.argmax(1)).mean()),
        "apart": float(np.abs(ours - theirs).mean()),
        "lead": float(np.median(spread[:, -1] - spread[:, -2])),
    }


def decode_step(session: NativeSession, rows: int, context: int, weights: int) -> dict[str, float]:
    """Time one step of `rows` rows with `context` tokens each, relative to reading weights and cache once."""
    decoder, pages = session.decoder, -(-(context + 1) // PAGE)
    decoder.table_BP[:rows, :pages] = torch.arange(1, rows * pages + 1, device=session.device).view(rows, pages)
    decoder.alive_B[:rows] = 1
    if session.device.type == "cuda":
        decoder.capture(rows)
    run = decoder.graphs[rows][0].replay if decoder.graphs else partial(decoder.run, rows)
    seconds = []
    for _ in range(20):
        decoder.held_B[:rows] = context - 1
        seconds.append(timed(run)[0])
    keys = session.cache.keys
    cache = 2 * rows * context * keys.shape[0] * keys.shape[2] * keys.shape[3] * keys.element_size()
    return {"step_ms": 1e3 * median(seconds), "times_the_least": median(seconds) * BANDWIDTH / (weights + cache)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--without-reference", action="store_true")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    options = parser.parse_args()
    cuda = torch.cuda.is_available() and not options.tiny
    device = torch.device("cuda" if cuda else "cpu")
    shape, sets, dtype = ("8b", SETS, torch.bfloat16) if cuda else ("tiny", TINY, torch.float32)
    folder = options.out / "models" / shape
    if not (folder / "processor_config.json").exists():
        write_random_model(shape, folder, corpus(), device.type)
    prompts = {
        name: Prompts(folder, write_set(options.out / name, sets[name]), 12 if cuda else 1) for name in options.sets
    }
    model = load_export(folder, None, dtype, device)
    flops = family_of(model).flops(model.config, vision_trains=True, decoder_trains=True)
    ledger = Ledger("generation", options)
    reference: dict[Any, Any] = {}

    def tell(row: dict[str, Any]) -> None:
        ledger.add(row)
        print(rounded(row), flush=True)

    for name, prompt_set in prompts.items() if not options.without_reference else ():
        longest = max(sample.length for sample in prompt_set.samples) + 64
        stock = TransformersSession(model, prompt_set.planner, longest=longest, batch_size=BATCH)
        for tokens in (16, 1):
            (seconds,), reference[name, tokens] = measure(stock, prompt_set, tokens, 1)
            tell({"run": f"transformers {name} {tokens}", "answers/s": len(prompt_set.samples) / seconds})
        reference[name] = letters(stock, prompt_set)
        if name == "1k-8k":  # the reference against itself, in batches and one at a time
            single = TransformersSession(model, prompt_set.planner, longest=longest, batch_size=1)
            _, figures = measure(single, prompt_set, 16, 1)
            row = {"run": "transformers, one at a time", "same": same(figures, reference[name, 16])}
            tell(row)
    longest = max(sample.length for prompt_set in prompts.values() for sample in prompt_set.samples) + 64
    planner = prompts[options.sets[0]].planner
    session = NativeSession(model, Settings(folder, None, dtype, device, planner, longest, 8))
    for name, prompt_set in prompts.items():
        for tokens in (16, 1):
            seconds, figures = measure(session, prompt_set, tokens, REPEATS)
            row = {"run": f"native {name} {tokens}", "answers/s": len(prompt_set.samples) / median(seconds)}
            if theirs := reference.get((name, tokens)):
                row["same"] = same(figures, theirs)
            if tokens == 1 and cuda and (peak := gpu_peak_flops(torch.cuda.get_device_name(device))):
                forward = flops.training_flops(prompt_set.works) / 3  # a third of a step
                row["prefill_mfu"] = forward / median(seconds) / peak
            tell(row)
        if name in reference:
            tell({"run": f"letters {name}", **agreement(letters(session, prompt_set), reference[name])})
    decoder = [*model.model.language_model.layers.parameters(), model.lm_head.weight]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in decoder)
    rows, context = (32, 4096) if cuda else (4, 64)
    tell({"run": f"decode step, {rows} rows", **decode_step(session, rows, context, weights)})
    ledger.conclude([])


if __name__ == "__main__":
    with torch.no_grad():
        main()
