"""Evaluation: answer every question, score the answers, write results, scores, recipe and report.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 1 -m vidqa.engine evaluate --spec evaluate.toml \
        --run-dir results/my-run

Each rank holds the whole model and answers its share; an answer is on disk before the next batch begins, so that a
stopped evaluation loses at most one batch and `evaluation.skip_saved` continues it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from vidqa.contract.environment import world_size
from vidqa.contract.problem import Exit, Problem, raise_errors
from vidqa.contract.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.answers import SavedAnswers, answer_of
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.generators import GENERATORS
from vidqa.engine.generators._base import Result, Sampling, Settings
from vidqa.engine.model.load import DTYPES
from vidqa.engine.outcome import fingerprint_model, make_recipe, require_answers, write_outcome
from vidqa.engine.prepare import frame_cache, on_main, prepare_evaluation
from vidqa.engine.progress import Progress, Silent, open_evaluation
from vidqa.engine.prompts import Prompts
from vidqa.engine.quarantine import end_if_bad
from vidqa.engine.signals import StopRequest
from vidqa.planning.packing.sharing import groups
from vidqa.planning.samples import Sample, evaluation_planner
from vidqa.spec import check_with_gpus

BATCHES_AHEAD = 2  # batches whose videos are decoded while the model answers


def evaluate(spec: Any, run: RunFolder) -> int:
    """Carry out an EvaluateSpec in `run`. Returns 0, or 6 when a signal stopped it (answers so far are kept)."""
    stop = StopRequest()
    raise_errors(check_with_gpus(spec, world_size()))
    world = distributed.start(1, spec.num_gpus, timeout_s=7200)
    folder, base = model_folders(spec)

    # The questions: the same plan of frames and tokens as in training.
    planner = evaluation_planner(spec, base or folder)
    records, samples, quarantined = prepare_evaluation(spec, planner, world, run)
    recipe = on_main(world, lambda: make_recipe(spec, planner, records, fingerprint_model(folder, base)))

    # What has been answered before, and this rank's share of the rest.
    saved = SavedAnswers(run.path / "answers", recipe, world.rank)
    done = on_main(world, lambda: saved.read() if spec.evaluation.skip_saved else saved.forget())
    todo = [sample for sample in samples if sample.record.id not in done]
    mine = share_of(todo, world.rank, world.size)

    size, workers, on_bad = spec.evaluation.batch_size, max(1, spec.engine.decode_workers), spec.engine.on_bad_sample
    dtype, device = DTYPES[spec.model.dtype], world.device
    settings = Settings(folder, base, dtype, device, planner, longest=spec.model.max_length, batch_size=size)
    with (
        open_evaluation(run, world, -(-len(mine) // size)) as progress,
        closing(FrameSource(workers, spec.engine.decode_timeout_s, frame_cache(spec.engine))) as source,
        closing(GENERATORS[spec.evaluation.generator].open(settings)) as session,
    ):
        prompts = Prompts(planner, source, sampling_of(spec), BATCHES_AHEAD * size)
        taking = Answering(saved, prompts, progress, len(mine), size, fails=on_bad == "fail")
        for results in session.generate(prompts.of(mine)):
            taking.take(results)
            if stop.asked:
                break
        everyone = world.gather((stop.asked is not None, taking.problems, taking.left_out))
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


def share_of(samples: Sequence[Sample], rank: int, ranks: int) -> list[Sample]:
    """Of the samples a rank's share, the longest first. Those of one prefix stay together: a generator may compute it
    once."""
    units = sorted(groups(range(len(samples)), samples), key=lambda unit: -max(samples[i].length for i in unit))
    return [samples[i] for unit in units[rank::ranks] for i in unit]


def model_folders(spec: Any) -> tuple[Path, Path | None]:
    """The folder to load and, for an adapter, the base model under it."""
    folder = Path(spec.model.model_name)
    return folder, Path(spec.model.base_model_path) if spec.model.enable_lora else None


def sampling_of(spec: Any) -> Sampling:
    generation = spec.generation
    return Sampling(
        generation.max_tokens,
        generation.temperature,
        repetition_penalty=generation.repetition_penalty,
        seed=spec.evaluation.seed,
    )


@dataclass
class Answering:
    """Takes results as they come and saves them. `problems` say why samples have no answer, `left_out` are their ids.
    Progress is counted in batches of `size`, whatever the generator works on at a time."""

    saved: SavedAnswers
    prompts: Prompts
    progress: Progress | Silent
    expected: int
    size: int
    fails: bool
    problems: list[Problem] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    answered: int = 0
    reported: tuple[int, int, float] = field(default_factory=lambda: (0, 0, time.perf_counter()))

    def take(self, results: Sequence[Result]) -> None:
        """Results are on disk when this returns. A sample that cannot be decoded is left out, or ends the run."""
        failed = [result for result in results if result.problems]
        problems = [problem for result in failed for problem in result.problems]
        end_if_bad(problems, fails=self.fails)
        self.problems += problems
        self.left_out += [result.id for result in failed]
        chat = self.prompts.planner.chat
        answers = [(result.id, answer_of(result, chat)) for result in results if not result.problems]
        self.saved.append(answers)
        self.answered += len(answers)
        self._report()

    def _report(self) -> None:
        """One line for each batch."""
        finished, (batches, answered, at) = self.answered + len(self.left_out), self.reported
        full = -(-finished // self.size) if finished == self.expected else finished // self.size
        if full > batches:
            now = time.perf_counter()
            seconds, self.prompts.waited = now - at - self.prompts.waited, 0.0
            line = f"{self.answered - answered} answers in {seconds:.1f} s"
            self.progress.log(full, {"perf/batch_s": seconds}, line=line)
            self.reported = (full, self.answered, now)
