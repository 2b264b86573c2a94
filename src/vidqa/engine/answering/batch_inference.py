"""Batch inference: planned samples in, answers on disk. Used by evaluation and inference.

Each rank holds the whole model and answers its share of the samples (`generate_all`). The answers of a batch are on
disk before the next batch begins, so that a killed run loses at most one batch, and a later run answers the rest.
Samples whose answer is empty are then retried (`Retries`).
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
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
from vidqa.engine.progress import Progress, open_evaluation
from vidqa.engine.signals import StopRequest
from vidqa.evaluation.cosmos_protocol import RETRY_TEMPERATURE_STEP, RETRY_TOKENS_STEP, protocol_answer
from vidqa.families import require_plain_weights
from vidqa.planning.prefix_sharing import max_tokens, split_samples
from vidqa.planning.requests import Result, Sampling
from vidqa.planning.samples import Planner, Sample
from vidqa.spec import check_with_gpus
from vidqa.spec.models import EmbedSpec

ANSWERING_TIMEOUT_S = 7200.0  # seconds; ranks answer at their own pace and meet at the end
MAX_WAIT_SHARE = 0.2  # a longer wait for frames, as a share of the time, is reported
SHORT_RUN_S = 60.0  # seconds; no wait is reported below: the first frames take that share with any number of workers
Failed = dict[str, list[Problem]]  # problems of samples without an answer, by sample id


@dataclass(frozen=True)
class InferenceTask:
    """A spec and its runtime. `table` is the spec's table with batch_size, seed, generator and skip_saved: `evaluation`
    or `inference`. A sample whose answer is empty is retried up to `retries` times."""

    spec: AnsweringSpec
    table: Any
    world: World
    run: RunFolder
    stop: StopRequest
    retries: int = 0


@dataclass(frozen=True)
class InferenceResult:
    """The outcome of batch inference, the same on every rank.

    saved          the answers on disk, including those of earlier runs, without retries; read them on rank 0
    failed         samples that could not be decoded
    was_stopped    whether a signal stopped it
    answered       the number of samples that this run answered
    seconds        time of the slowest rank, without loading the model
    retries        the answers of each retry
    """

    saved: SavedAnswers
    failed: Failed
    was_stopped: bool
    answered: int
    seconds: float
    retries: Sequence[SavedAnswers] = ()


def start_answering(spec: AnsweringSpec | EmbedSpec) -> World:
    """Join the process group of a run that answers or embeds. Raises the errors of check_with_gpus."""
    raise_errors(check_with_gpus(spec, world_size()))
    return distributed.start(1, spec.num_gpus, ANSWERING_TIMEOUT_S)


def open_session(
    spec: AnsweringSpec, generator: str, planner: Planner, device: torch.device, longest: int, batch_size: int
) -> Session:
    """Load the spec's model into a generator's session. `longest` is the number of tokens of the longest prompt with
    its answer."""
    folder, base = model_folders(spec)
    settings = Settings(folder, base, DTYPES[spec.model.dtype], device, planner, longest, batch_size)
    return GENERATORS[generator](settings)


def generate_all(
    task: InferenceTask,
    planner: Planner,
    samples: Sequence[Sample],
    recipe: dict[str, Any],
    candidates: Candidates | None = None,
) -> InferenceResult:
    """Answer the samples without a saved answer under this `recipe` (with skip_saved = false all samples), then retry.
    A sample with `candidates` is scored by log-probability, the others are generated. Call it on every rank with the
    same arguments. A signal stops it after the current batch."""
    spec, table, world, run, stop = task.spec, task.table, task.world, task.run, task.stop
    if world.device.type == "cuda":
        use_memory(world.device, spec.engine.gpu_memory_gib)
    saved = SavedAnswers(run.path / "answers", recipe, world.rank)
    done = world.on_main(lambda: saved.read() if table.skip_saved else saved.forget())
    own = split_samples([sample for sample in samples if sample.record.id not in done], world.size)[world.rank]

    size, batches = table.batch_size, -(-len(own) // table.batch_size)
    longest = longest_sequence(spec, own)
    if task.retries:  # any sample may be retried on this rank, with a longer answer
        longest = min(spec.model.max_length, longest_sequence(spec, samples) + RETRY_TOKENS_STEP * task.retries)
    with (
        open_evaluation(run, world, batches) as progress,
        open_frames(spec.engine, spec.engine.decode_workers) as source,
    ):
        prompts = Prompts(planner, source, sampling_of(spec, table.seed), candidates)
        requests = prompts.requests(own)  # the first videos are decoded while the model is loaded
        with closing(open_session(spec, table.generator, planner, world.device, longest, size)) as session:
            fail = spec.engine.on_bad_sample == "fail"
            writer = ResultWriter(saved, prompts, progress, len(own), size, fail_on_bad_sample=fail)
            world.gather(None)  # waits until every rank has its model: speed is measured from here
            started = time.perf_counter()
            writer.save_until_stopped(session.generate(requests), stop)
            seconds = time.perf_counter() - started
            outcome = (stop.signal_name is not None, writer.failed, writer.answered, seconds, prompts.waited)
            stopped, failed, answered, rank_seconds, waited = zip(*world.gather(outcome), strict=True)
            if any(stopped):
                progress.say("stopped; the same spec with skip_saved = true continues it")
            elif sum(answered):
                report_speed(progress, batches, sum(answered), rank_seconds, waited)
            problems = {name: listed for of_rank in failed for name, listed in of_rank.items()}
            result = InferenceResult(saved, problems, any(stopped), sum(answered), max(rank_seconds))
            if task.retries and not result.was_stopped:
                retries = Retries(task, planner, source, progress, session, recipe, longest, batches)
                result = retries.run(result, samples)
    return result


@dataclass
class ResultWriter:
    """Saves the results of this rank as they arrive, and logs a line per batch.

    expected      the number of results to save
    batch_size    progress is counted in batches of this size, independent of the generator's batches
    first_step    batches that progress has counted before this writer
    failed        the problems of samples without an answer
    answered      the number of saved answers
    reported      at the last log line: batches, answers, timestamp, and seconds waited for frames
    """

    saved: SavedAnswers
    prompts: Prompts
    progress: Progress
    expected: int
    batch_size: int
    fail_on_bad_sample: bool
    first_step: int = 0
    failed: Failed = field(default_factory=dict)
    answered: int = 0
    reported: tuple[int, int, float, float] = field(default_factory=lambda: (0, 0, time.perf_counter(), 0.0))

    def save_until_stopped(self, batches: Iterable[Sequence[Result]], stop: StopRequest) -> None:
        """Save every batch until a signal arrives."""
        for results in batches:
            self.save(results)
            if stop.signal_name:
                break

    def save(self, results: Sequence[Result]) -> None:
        """Save results; they are on disk when this returns. A sample that could not be decoded goes to `failed`; with
        `fail_on_bad_sample` its problems are raised."""
        failed = {result.id: list(result.problems) for result in results if result.problems}
        end_if_bad([problem for problems in failed.values() for problem in problems], fails=self.fail_on_bad_sample)
        self.failed |= failed
        answers = [self.prompts.answer(result) for result in results if not result.problems]
        self.saved.append(answers)
        self.answered += len(answers)
        self._report()

    def _report(self) -> None:
        """Log a line if another batch is complete."""
        finished, (batches, answered, reported_at, waited) = self.answered + len(self.failed), self.reported
        is_last = finished == self.expected
        complete = -(-finished // self.batch_size) if is_last else finished // self.batch_size
        if complete > batches:
            now, waited_now = time.perf_counter(), self.prompts.waited
            seconds = now - reported_at - (waited_now - waited)
            line = f"{self.answered - answered} answers in {seconds:.1f} s"
            self.progress.log(self.first_step + complete, {"perf/batch_s": seconds}, line=line)
            self.reported = (complete, self.answered, now, waited_now)


@dataclass
class Retries:
    """Retries of samples whose answer is empty by the rules of Cosmos-Reason1's benchmark. Every attempt runs in the
    same session with the next seed, a higher temperature and a longer answer. `longest` is the maximum number of tokens
    of a prompt with its answer, `step` the number of batches that progress has counted."""

    task: InferenceTask
    planner: Planner
    source: FrameSource
    progress: Progress
    session: Session
    recipe: dict[str, Any]
    longest: int
    step: int

    def run(self, result: InferenceResult, samples: Sequence[Sample]) -> InferenceResult:
        """Run all attempts; returns `result` with the answers of each attempt, which are saved in separate folders."""
        world, skip_saved, saved, empty = self.task.world, self.task.table.skip_saved, result.saved, samples
        retries: list[SavedAnswers] = []
        for attempt in range(1, self.task.retries + 1):
            answers = world.on_main(saved.read)
            empty = [sample for sample in empty if sample.record.id in answers and _is_empty(sample, answers)]
            if not empty:
                break
            self.progress.say(f"attempt {attempt}: {len(empty)} questions without an answer are retried")
            saved = SavedAnswers(self.task.run.path / "answers" / f"again-{attempt}", self.recipe, world.rank)
            done = world.on_main(saved.read if skip_saved else saved.forget)
            self._answer(saved, empty, done, attempt)
            if any(world.gather(self.task.stop.signal_name is not None)):
                return replace(result, was_stopped=True)
            retries.append(saved)
        return replace(result, retries=retries)

    def _answer(self, saved: SavedAnswers, samples: Sequence[Sample], done: Container[str], attempt: int) -> None:
        """Answer the samples that are not `done`; the maximum length of answers is the same if this is resumed."""
        spec, table, world = self.task.spec, self.task.table, self.task.world
        own = split_samples([sample for sample in samples if sample.record.id not in done], world.size)[world.rank]
        sampling, room = sampling_of(spec, table.seed + attempt), self.longest - max_tokens(samples)
        sampling = replace(
            sampling,
            temperature=min(2.0, round(sampling.temperature + RETRY_TEMPERATURE_STEP * attempt, 4)),
            max_tokens=max(sampling.max_tokens, min(sampling.max_tokens + RETRY_TOKENS_STEP * attempt, room)),
        )
        prompts = Prompts(self.planner, self.source, sampling)
        fail = spec.engine.on_bad_sample == "fail"
        writer = ResultWriter(saved, prompts, self.progress, len(own), table.batch_size, fail, first_step=self.step)
        writer.save_until_stopped(self.session.generate(prompts.requests(own)), self.task.stop)
        self.step += -(-len(own) // table.batch_size)


def _is_empty(sample: Sample, answers: Mapping[str, Answer]) -> bool:
    record = sample.record
    return not protocol_answer(answers[record.id].text, record.question, record.answer)


def report_speed(
    progress: Progress, step: int, answers: int, seconds: Sequence[float], waited: Sequence[float]
) -> None:
    """Log the speed of all ranks together, until the slowest ends. `seconds` (total, without loading the model) and
    `waited` (for frames) have a value for each rank."""
    longest = max(seconds)
    line = f"{answers} answers in {longest:.1f} s, {answers / longest:.2f} per second"
    if len(seconds) > 1:
        line += f"; the first of {len(seconds)} ranks was done after {min(seconds):.1f} s"
    if longest > SHORT_RUN_S and max(waited) > MAX_WAIT_SHARE * longest:
        line += f"; {max(waited):.1f} s were spent waiting for frames (more engine.decode_workers may help)"
    values = {
        "perf/answers_per_s": answers / longest,
        "perf/answering_s": longest,
        "perf/first_rank_s": min(seconds),
        "perf/data_wait_s": max(waited),
    }
    progress.log(step, values, line=line)


def longest_sequence(spec: AnsweringSpec, samples: Sequence[Sample]) -> int:
    """Tokens of the longest prompt with its longest answer: a generator's allocation for one sample."""
    return min(spec.model.max_length, max_tokens(samples) + spec.generation.max_tokens)


def model_folders(spec: AnsweringSpec | EmbedSpec) -> tuple[Path, Path | None]:
    """The folder to load and the base model or None: with model.enable_lora the folder is an adapter on that base.
    Raises MODEL_QUANTIZED for a quantized base."""
    folder, base = Path(spec.model.model_name), Path(spec.model.base_model_path) if spec.model.enable_lora else None
    if base is not None:
        require_plain_weights(base, "an adapter is put on")
    return folder, base


def sampling_of(spec: AnsweringSpec, seed: int = 0) -> Sampling:
    """The spec's sampling settings. A sample's random numbers depend on `seed` and its id, not on its batch."""
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
