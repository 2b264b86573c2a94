"""Batch inference: planned samples in, answers on disk. Evaluation and inference differ in the use of the answers.

Each rank holds the whole model and answers its share. Answers are on disk before the next batch begins, so that a
killed run loses at most one batch, and a later run answers the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vidqa.core.environment import world_size
from vidqa.core.problem import Problem, raise_errors
from vidqa.core.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.answering.answers import Answer, AnsweringSpec, SavedAnswers
from vidqa.engine.answering.prompts import Candidates, Prompts
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.planned_samples import end_if_bad
from vidqa.engine.distributed import World
from vidqa.engine.generators import GENERATORS
from vidqa.engine.generators._base import Session, Settings
from vidqa.engine.memory import use_memory
from vidqa.engine.model import DTYPES
from vidqa.engine.progress import Progress, Silent, open_evaluation
from vidqa.engine.signals import StopRequest
from vidqa.evaluation.cosmos_protocol import LONGER, WARMER, protocol_answer
from vidqa.families import require_plain_weights
from vidqa.planning.prefix_sharing import max_tokens, split_samples
from vidqa.planning.requests import Result, Sampling
from vidqa.planning.samples import Planner, Sample
from vidqa.spec import check_with_gpus
from vidqa.spec.models import EmbedSpec

ANSWERING_TIMEOUT_S = 7200.0  # ranks answer at their own pace and meet at the end
BATCHES_AHEAD = 2  # batches that are decoded while the model answers
WAITED_MUCH = 0.2  # share of the time that is said
SHORT_S = 60.0  # a short run waits for its first frames, whatever decodes them
Failed = dict[str, list[Problem]]  # problems of samples without an answer, by sample id


@dataclass(frozen=True)
class InferenceTask:
    """The spec and where it runs. `how` is the spec's table with batch_size, seed, generator and skip_saved. What has
    no answer is asked again as often as `retries` says."""

    spec: AnsweringSpec
    how: Any
    world: World
    run: RunFolder
    stop: StopRequest
    retries: int = 0


@dataclass(frozen=True)
class InferenceResult:
    """The outcome on every rank: the answers are on disk, `failed` is of all ranks. `answered` samples were answered
    now by all ranks, in `seconds` with the model loaded."""

    saved: SavedAnswers
    failed: Failed
    was_stopped: bool
    answered: int
    seconds: float
    again: Sequence[SavedAnswers] = ()  # of each further attempt at those without an answer

    def answers(self) -> dict[str, Answer]:
        """All answers by sample id; on rank 0, once every rank has ended."""
        return self.saved.read()


def start_answering(spec: AnsweringSpec | EmbedSpec) -> World:
    """Join the ranks of a run that answers or embeds. Raises what check_with_gpus finds."""
    raise_errors(check_with_gpus(spec, world_size()))
    return distributed.start(1, spec.num_gpus, ANSWERING_TIMEOUT_S)


def open_session(
    spec: AnsweringSpec, generator: str, planner: Planner, device: torch.device, longest: int, batch_size: int
) -> Session:
    """The spec's model, loaded by a generator."""
    folder, base = model_folders(spec)
    settings = Settings(folder, base, DTYPES[spec.model.dtype], device, planner, longest, batch_size)
    return GENERATORS[generator].open(settings)


def generate_all(
    work: InferenceTask,
    planner: Planner,
    samples: Sequence[Sample],
    recipe: dict[str, Any],
    candidates: Candidates | None = None,
) -> InferenceResult:
    """Answer the samples that have no answer under this recipe yet; those that have `candidates` are scored. A signal
    stops it after the current batch."""
    spec, how, world, run, stop = work.spec, work.how, work.world, work.run, work.stop
    if world.device.type == "cuda":
        use_memory(world.device, spec.engine.gpu_memory_gib)
    saved = SavedAnswers(run.path / "answers", recipe, world.rank)
    done = world.on_main(lambda: saved.read() if how.skip_saved else saved.forget())
    mine = split_samples([sample for sample in samples if sample.record.id not in done], world.size)[world.rank]

    size = how.batch_size
    longest = longest_sequence(spec, mine)
    if work.retries:
        longest = min(spec.model.max_length, longest_sequence(spec, samples) + LONGER * work.retries)
    with (
        open_evaluation(run, world, -(-len(mine) // size)) as progress,
        open_frames(spec.engine, spec.engine.decode_workers) as source,
    ):
        prompts = Prompts(planner, source, sampling_of(spec, how.seed), BATCHES_AHEAD * size, candidates)
        requests = prompts.requests(mine)  # the first videos are decoded while the model is loaded
        with closing(open_session(spec, how.generator, planner, world.device, longest, size)) as session:
            writer = ResultWriter(saved, prompts, progress, len(mine), size, fails=spec.engine.on_bad_sample == "fail")
            world.gather(None)  # speed is measured from here, where every rank has its model
            started = time.perf_counter()
            writer.save_until_stopped(session.generate(requests), stop)
            seconds = time.perf_counter() - started
            outcome = (stop.signal_name is not None, writer.failed, writer.answered, seconds, prompts.waited)
            stopped, failures, answered, took, waited = zip(*world.gather(outcome), strict=True)
            if any(stopped):
                progress.say("stopped; the same spec with skip_saved = true continues it")
            elif sum(answered):
                report_speed(progress, -(-len(mine) // size), sum(answered), took, waited)
            problems = {name: listed for failed in failures for name, listed in failed.items()}
            result = InferenceResult(saved, problems, any(stopped), sum(answered), max(took))
            if work.retries and not result.was_stopped:
                retries = Retries(work, planner, source, progress, session, recipe, longest, -(-len(mine) // size))
                result = retries.retried(result, samples)
    return result


@dataclass
class Retries:
    """Retries of questions whose answer is empty by the rules of Cosmos-Reason1's benchmark: in the same session, each
    time warmer, longer and with the next seed. `step` is the number of batches that progress has counted."""

    work: InferenceTask
    planner: Planner
    source: FrameSource
    progress: Progress | Silent
    session: Session
    recipe: dict[str, Any]
    longest: int
    step: int

    def retried(self, result: InferenceResult, samples: Sequence[Sample]) -> InferenceResult:
        """The result with its further attempts, each of which has a folder of its own."""
        world, how, saved, due = self.work.world, self.work.how, result.saved, samples
        again: list[SavedAnswers] = []
        for attempt in range(1, self.work.retries + 1):
            answers = world.on_main(saved.read)
            due = [sample for sample in due if sample.record.id in answers and _is_empty(sample, answers)]
            if not due:
                break
            self.progress.say(f"attempt {attempt}: {len(due)} questions without an answer are asked again")
            saved = SavedAnswers(self.work.run.path / "answers" / f"again-{attempt}", self.recipe, world.rank)
            done = world.on_main(saved.read if how.skip_saved else saved.forget)
            self._ask(saved, [sample for sample in due if sample.record.id not in done], attempt)
            if any(world.gather(self.work.stop.signal_name is not None)):
                return replace(result, was_stopped=True)
            again.append(saved)
        return replace(result, again=again)

    def _ask(self, saved: SavedAnswers, samples: Sequence[Sample], attempt: int) -> None:
        spec, how, world = self.work.spec, self.work.how, self.work.world
        mine = split_samples(samples, world.size)[world.rank]
        sampling = sampling_of(spec, how.seed + attempt)  # the random numbers of a question depend on it alone
        room = self.longest - max_tokens(samples) if samples else 0
        sampling = replace(
            sampling,
            temperature=min(2.0, round(sampling.temperature + WARMER * attempt, 4)),
            max_tokens=max(sampling.max_tokens, min(sampling.max_tokens + LONGER * attempt, room)),
        )
        prompts = Prompts(self.planner, self.source, sampling, BATCHES_AHEAD * how.batch_size, None)
        fails = spec.engine.on_bad_sample == "fail"
        writer = ResultWriter(saved, prompts, self.progress, len(mine), how.batch_size, fails, first_step=self.step)
        writer.save_until_stopped(self.session.generate(prompts.requests(mine)), self.work.stop)
        self.step += -(-len(mine) // how.batch_size)


def _is_empty(sample: Sample, answers: Mapping[str, Answer]) -> bool:
    record = sample.record
    return not protocol_answer(answers[record.id].text, record.question, record.answer)


def report_speed(
    progress: Progress | Silent, step: int, answers: int, took: Sequence[float], waited: Sequence[float]
) -> None:
    """Log the speed of all ranks together, up to the end of the last; loading the model does not count. `took` and
    `waited` are seconds of each rank, in all and for frames."""
    longest = max(took)
    line = f"{answers} answers in {longest:.1f} s, {answers / longest:.2f} a second"
    if len(took) > 1:
        line += f"; the first of {len(took)} ranks was done after {min(took):.1f} s"
    if longest > SHORT_S and max(waited) > WAITED_MUCH * longest:
        line += f"; {max(waited):.1f} s were spent waiting for frames (more engine.decode_workers may help)"
    values = {
        "perf/answers_per_s": answers / longest,
        "perf/answering_s": longest,
        "perf/first_rank_s": min(took),
        "perf/data_wait_s": max(waited),
    }
    progress.log(step, values, line=line)


def longest_sequence(spec: AnsweringSpec, samples: Sequence[Sample]) -> int:
    """Tokens of the longest prompt with its answer, the most that a generator has to allocate for one."""
    return min(spec.model.max_length, max_tokens(samples) + spec.generation.max_tokens)


def model_folders(spec: AnsweringSpec | EmbedSpec) -> tuple[Path, Path | None]:
    """The folder to load and, for an adapter, the base model under it. Raises MODEL_QUANTIZED for a quantized base."""
    folder, base = Path(spec.model.model_name), Path(spec.model.base_model_path) if spec.model.enable_lora else None
    if base is not None:
        require_plain_weights(base, "an adapter is put on")
    return folder, base


def sampling_of(spec: AnsweringSpec, seed: int = 0) -> Sampling:
    generation = spec.generation
    return Sampling(
        generation.max_tokens,
        generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        repetition_penalty=generation.repetition_penalty,
        presence_penalty=generation.presence_penalty,
        frequency_penalty=generation.frequency_penalty,
        seed=seed,
    )


@dataclass
class ResultWriter:
    """Saves results as they come; `failed` has the problems of samples without an answer. Progress is counted in
    batches of `size`, whatever the generator's own batches are."""

    saved: SavedAnswers
    prompts: Prompts
    progress: Progress | Silent
    expected: int
    size: int
    fails: bool
    first_step: int = 0
    failed: Failed = field(default_factory=dict)
    answered: int = 0
    reported: tuple[int, int, float, float] = field(default_factory=lambda: (0, 0, time.perf_counter(), 0.0))

    def save_until_stopped(self, batches: Iterable[Sequence[Result]], stop: StopRequest) -> None:
        for results in batches:
            self.save(results)
            if stop.signal_name:
                break

    def save(self, results: Sequence[Result]) -> None:
        """Results are on disk when this returns. A sample that cannot be decoded is left out, or ends the run."""
        failed = {result.id: list(result.problems) for result in results if result.problems}
        end_if_bad([problem for problems in failed.values() for problem in problems], fails=self.fails)
        self.failed |= failed
        answers = [(result.id, self.prompts.answer(result)) for result in results if not result.problems]
        self.saved.append(answers)
        self.answered += len(answers)
        self._report()

    def _report(self) -> None:
        """One line for each batch."""
        finished, (batches, answered, at, waited) = self.answered + len(self.failed), self.reported
        full = -(-finished // self.size) if finished == self.expected else finished // self.size
        if full > batches:
            now, waited_by_now = time.perf_counter(), self.prompts.waited
            seconds = now - at - (waited_by_now - waited)
            line = f"{self.answered - answered} answers in {seconds:.1f} s"
            self.progress.log(self.first_step + full, {"perf/batch_s": seconds}, line=line)
            self.reported = (full, self.answered, now, waited_by_now)
