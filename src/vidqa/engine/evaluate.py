"""Evaluation: answer every question, score the answers, write results, scores, recipe and report.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 1 -m vidqa.engine evaluate --spec evaluate.toml \
        --run-dir results/my-run

Each rank holds the whole model and answers its share; an answer is on disk before the next batch begins, so that a
stopped evaluation loses at most one batch and `evaluation.skip_saved` continues it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from vidqa.contract.environment import world_size
from vidqa.contract.problem import Exit, Problem, raise_errors
from vidqa.contract.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.checkpoint.export import load_export
from vidqa.engine.generate.answers import Decoding, generate_answers
from vidqa.engine.generate.saved import SavedAnswers
from vidqa.engine.model.load import DTYPES
from vidqa.engine.outcome import fingerprint_model, make_recipe, require_answers, write_outcome
from vidqa.engine.prepare import frame_cache, on_main, prepare_evaluation
from vidqa.engine.progress import open_evaluation
from vidqa.engine.quarantine import end_if_bad
from vidqa.engine.signals import StopRequest
from vidqa.planning.samples import Sample, evaluation_planner
from vidqa.spec import check_with_gpus

BATCHES_AHEAD = 2  # batches whose videos are decoded while the model answers


def evaluate(spec: Any, run: RunFolder) -> int:
    """Carry out an EvaluateSpec in `run`. Returns 0, or 6 when a signal stopped it (answers so far are kept)."""
    stop = StopRequest()
    raise_errors(check_with_gpus(spec, world_size()))
    world = distributed.start(1, spec.num_gpus, timeout_s=7200)
    folder, base = model_folders(spec)

    # What is asked: the same plan of frames and tokens as in training.
    planner = evaluation_planner(spec, base or folder)
    records, samples, quarantined = prepare_evaluation(spec, planner, world, run)
    recipe = on_main(world, lambda: make_recipe(spec, planner, records, fingerprint_model(folder, base)))

    # Who answers, and what has been answered before.
    saved = SavedAnswers(run.path / "answers", recipe, world.rank)
    done = on_main(world, lambda: saved.read() if spec.evaluation.skip_saved else saved.forget())
    todo = [sample for sample in samples if sample.record.id not in done]
    mine = sorted(todo, key=lambda sample: -sample.length)[world.rank :: world.size]
    batches = [mine[i : i + spec.evaluation.batch_size] for i in range(0, len(mine), spec.evaluation.batch_size)]
    workers, generation = max(1, spec.engine.decode_workers), spec.generation
    seed = spec.evaluation.seed
    decoding = Decoding(generation.max_tokens, generation.temperature, generation.repetition_penalty, seed)
    with (
        open_evaluation(run, world, len(batches)) as progress,
        closing(FrameSource(workers, spec.engine.decode_timeout_s, frame_cache(spec.engine))) as source,
    ):
        model = load_export(folder, base, DTYPES[spec.model.dtype], world.device)
        ahead = FramesAhead(source, spec.engine.on_bad_sample)
        for number, (batch, frames) in enumerate(ahead.of(batches)):
            started = time.perf_counter()
            answers = generate_answers(model, planner, batch, frames, decoding) if batch else []
            saved.append([(s.record.id, answer) for s, answer in zip(batch, answers, strict=True)])
            seconds = time.perf_counter() - started
            progress.log(number + 1, {"perf/batch_s": seconds}, line=f"{len(batch)} answers in {seconds:.1f} s")
            if stop.asked:
                break
        everyone = world.gather((stop.asked is not None, ahead.problems, ahead.left_out))
        if any(stopped for stopped, _, _ in everyone):
            progress.say("stopped; continue with evaluation.skip_saved = true")
            return int(Exit.NOT_DONE)
        bad = list(dict.fromkeys(chain(quarantined, *(problems for _, problems, _ in everyone))))
        undecoded = set(chain(*(left_out for _, _, left_out in everyone)))

        def conclude() -> None:
            answers = saved.read()
            require_answers(samples, answers, undecoded, run)
            write_outcome(spec, run, records, answers, samples, recipe, bad)

        on_main(world, conclude)
        return int(Exit.OK)


def model_folders(spec: Any) -> tuple[Path, Path | None]:
    """The folder to load and, for an adapter, the base model under it."""
    folder = Path(spec.model.model_name)
    return folder, Path(spec.model.base_model_path) if spec.model.enable_lora else None


class FramesAhead:
    """Frames for batches, and what has none: `problems` say why, `left_out` are the ids of the samples."""

    def __init__(self, source: FrameSource, on_bad_sample: str) -> None:
        self.source, self.fails = source, on_bad_sample == "fail"
        self.problems: list[Problem] = []
        self.left_out: list[str] = []

    def of(self, batches: Sequence[Sequence[Sample]]) -> Iterator[tuple[list[Sample], list[list[Any]]]]:
        """Each batch with its frames, later ones being decoded meanwhile. Samples that cannot be decoded are left out,
        or end the run."""
        tickets = [self.source.request(batch) for batch in batches[:BATCHES_AHEAD]]
        for number, batch in enumerate(batches):
            if number + BATCHES_AHEAD < len(batches):
                tickets.append(self.source.request(batches[number + BATCHES_AHEAD]))
            frames, problems = self.source.collect(tickets[number])
            tickets[number] = []
            end_if_bad(problems, fails=self.fails)
            self.problems.extend(problems)
            usable = [i for i, arrays in enumerate(frames) if all(array is not None for array in arrays)]
            self.left_out.extend(sample.record.id for i, sample in enumerate(batch) if i not in usable)
            yield [batch[i] for i in usable], [frames[i] for i in usable]
