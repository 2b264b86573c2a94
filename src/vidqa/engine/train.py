"""Fine-tuning, readable from top to bottom: plan, load, then step after step over packs, validate, save.

python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --spec spec.toml --run-dir RUN
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vidqa.contract.environment import world_size
from vidqa.contract.problem import Exit, Problem, ProblemError, raise_errors
from vidqa.contract.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.batch.loader import Loaded, Loader
from vidqa.engine.distributed import World
from vidqa.engine.meter import Meter
from vidqa.engine.model.ahead import Calls, choose_calls, plan_kernels, warm_up
from vidqa.engine.model.gathering import Gathering
from vidqa.engine.model.load import load_sharded
from vidqa.engine.model.trainable import trainable_table
from vidqa.engine.optimizer import build_optimizer, clip_gradients, learning_rate, set_learning_rate, trained_by
from vidqa.engine.prepare import frame_cache, on_main, prepare_training, write_plan
from vidqa.engine.problems import ENGINE_NO_GRADIENT, ENGINE_NOT_FINITE
from vidqa.engine.progress import open_progress
from vidqa.engine.quarantine import Quarantine
from vidqa.engine.readback import Readback
from vidqa.engine.resume import Start, resume, start_of, trainer_facts
from vidqa.engine.saving import Saver
from vidqa.engine.schedule import Schedule
from vidqa.engine.signals import StopRequest
from vidqa.engine.thrift import choose_thrift
from vidqa.engine.trackers import require_trackers
from vidqa.engine.validate import Validator
from vidqa.planning.samples import training_planner
from vidqa.spec import check_with_gpus


def train(spec: Any, run: RunFolder) -> int:
    """Carry out a TrainSpec in `run`. Returns 0, or 6 when a signal stopped it (saved and resumable)."""
    stop = StopRequest()
    raise_errors(check_with_gpus(spec, world_size()))
    mesh, folder = spec.policy.parallelism, Path(spec.policy.model_name_or_path)
    world = distributed.start(mesh.dp_replicate_size, mesh.dp_shard_size, spec.engine.step_timeout_s)

    # What is learned from: the same samples and the same steps on every rank.
    planner = training_planner(spec, folder)
    data = prepare_training(spec, planner, world, run)
    schedule = Schedule(spec, data, world)
    start = start_of(spec.train.resume, run, world)
    on_main(world, lambda: write_plan(run, data, schedule.facts()))
    on_main(world, lambda: require_trackers(spec.logging))

    # What feeds the model: decoding begins now, while the weights are read.
    sizes, share = planner.family.sizes_of(folder).vision, spec.engine.share_video_prefix
    collator = Collator(planner, sizes, world.device.type, share=share)
    calls = choose_calls(schedule, collator)
    workers = spec.train.train_policy.dataloader_num_workers
    packs = (pack for step in range(start.step, schedule.total) for pack in schedule.packs(step))
    with (
        closing(FrameSource(workers, spec.engine.decode_timeout_s, frame_cache(spec.engine))) as source,
        Loader(packs, data.train, source, collator, world.device) as batches,
    ):
        return fit(run, schedule, start, collator, calls, source, batches, stop)


def fit(
    run: RunFolder,
    schedule: Schedule,
    start: Start,
    collator: Collator,
    calls: Calls,
    source: FrameSource,
    batches: Iterator[Loaded],
    stop: StopRequest,
) -> int:
    """Load the model, take the steps that are left, and prove what was saved."""
    # What learns.
    spec, data, world = schedule.spec, schedule.data, schedule.world
    folder = Path(spec.policy.model_name_or_path)
    thrift = choose_thrift(spec, folder, schedule, world)
    with load_sharded(folder, spec.policy, spec.train, world.mesh, world.device, thrift.recompute) as model:
        gathering = Gathering(model, thrift.stay)
        plan_kernels(calls, thrift.recompute, model, world.device)
        warm_up(model, schedule, collator, start.step)
    optimizer = build_optimizer(model, spec.train)
    check_reachable(model, has_media=any(sample.plans for sample in data.train))
    facts = trainer_facts(spec, data, model, world)
    resume(start, run, facts, model, optimizer, world)

    # What measures it and saves it.
    quarantine = Quarantine(run, world, spec.engine.on_bad_sample)
    held = data.validation if spec.validation.enable else []
    validator = Validator(spec, held, collator, source, world, quarantine, gathering) if held else None
    saver = Saver(run, schedule, collator, facts, start)
    saver.store_proof_sample(data.validation or data.train, source)
    meter = Meter(spec, model, schedule, world)
    table = trainable_table(model)
    on_main(world, lambda: run.update_run(trainable=table, data_fingerprint=data.fingerprint, **asdict(thrift)))
    with open_progress(spec, run, world, start.step, schedule.total) as progress:
        learner = Learner(
            spec, world, schedule, model, gathering, optimizer, quarantine, validator, saver, meter, progress, stop
        )
        try:
            if not learn(learner, batches, start.step):
                return int(Exit.NOT_DONE)
            del model, optimizer, learner, gathering, validator  # room for the export that is loaded again
            if proof := saver.finish():
                progress.say(proof)
            return int(Exit.OK)
        except (OSError, ProblemError):
            saver.background.settle()
            raise


@dataclass(frozen=True)
class Learner:
    """What takes part in every step."""

    spec: Any
    world: World
    schedule: Schedule
    model: Any
    gathering: Gathering
    optimizer: torch.optim.Optimizer
    quarantine: Quarantine
    validator: Validator | None
    saver: Saver
    meter: Meter
    progress: Any
    stop: StopRequest


def learn(learner: Learner, batches: Iterator[Loaded], first: int) -> bool:
    """Step after step from `first` to the end. False where a signal stopped the run; its state is saved then."""
    spec, schedule, saver, progress = learner.spec, learner.schedule, learner.saver, learner.progress
    if learner.validator and spec.validation.val_before_train and first == 0:
        progress.log(0, learner.validator.measure(learner.model), line="before training")
    if saver.owed:
        conclude(learner, first - 1, resumed=True)
    for step in range(first, schedule.total):
        rate = learning_rate(step, schedule.total, schedule.warmup, spec.train)
        set_learning_rate(learner.optimizer, rate)
        seed_dropout(spec.train.seed or 0, step, learner.world)
        outcome = take_step(learner, batches, step)
        if not outcome.is_finite:
            message = f"loss {outcome.loss}, gradient norm {outcome.grad_norm}"
            raise ENGINE_NOT_FINITE.error(f"step {step + 1}", message)
        learner.meter.step(step, outcome, rate, progress)
        stopping = outcome.stop_asked and step + 1 < schedule.total
        conclude(learner, step, stopping=stopping)
        if stopping:
            saver.background.finish()
            progress.say(f"stopped after step {step + 1}; resume with train.resume = true")
            return False
    return True


def conclude(learner: Learner, step: int, *, stopping: bool = False, resumed: bool = False) -> None:
    """Measure and save what is due after `step`. A run that stops leaves the measuring, and the export that it decides
    on, to the run that goes on (`resumed`), which has the time."""
    saver, schedule = learner.saver, learner.schedule
    if learner.validator and not stopping and (schedule.validates_after(step) or saver.exports(step)):
        values = learner.validator.measure(learner.model)
        saver.judge(step, values)
        learner.progress.log(step + 1, values, line="  ".join(f"{k} {v:.4f}" for k, v in values.items()))
    saver.after_step(step, learner.model, learner.optimizer, stopping=stopping, resumed=resumed)


@dataclass(frozen=True)
class Outcome:
    """What one optimizer step did, over all ranks; the times are this rank's."""

    loss: float  # mean over supervised tokens
    grad_norm: float
    supervised: int
    stop_asked: bool
    seconds: float
    waited: float  # seconds without a batch

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def take_step(learner: Learner, batches: Iterator[Loaded], step: int) -> Outcome:
    """Forward and backward over this rank's packs, then one update. The loss is the sum over supervised tokens divided
    by their number in the whole step, so that packing and ranks change nothing but speed."""
    model, schedule, world = learner.model, learner.schedule, learner.world
    started, waited = time.perf_counter(), 0.0
    planned = schedule.supervised(step)
    nll_sum = torch.zeros((), dtype=torch.float64, device=world.device)
    learned = 0
    bad: list[Problem] = []
    packs = schedule.packs(step)
    for number, _ in enumerate(packs, 1):
        learner.gathering.begin(more_to_come=number < len(packs))
        asked_at = time.perf_counter()
        loaded = next(batches)
        waited += time.perf_counter() - asked_at
        bad += loaded.problems
        nll = model(loaded.batch)
        # FSDP takes the mean of gradients over ranks; times world.size it is their sum.
        (nll.sum() * (world.size / planned)).backward()
        nll_sum += nll.detach().sum()
        learned += len(nll)
    # One exchange a step: the loss, what was learned, and whether any rank was asked to stop or met a broken sample.
    known = (learned, learner.stop.asked is not None, len(bad))
    totals = torch.stack([nll_sum, *(nll_sum.new_full((), value) for value in known)])
    dist.all_reduce(totals)
    if step == 0:
        check_gradients(model)
    # Samples that could not be decoded leave fewer tokens than planned: the mean is over those that were learned.
    scale = (planned / totals[1].clamp(min=1)).float()
    norm = clip_gradients(trained_by(learner.optimizer), learner.spec.train.optm_grad_norm_clip, scale)
    read = Readback(torch.cat([totals, norm.double().view(1)]))
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    # The device is waited for here and nowhere else in a step, and while the host goes on it updates the weights.
    # A loss that is not finite ends the run before it saves.
    nll_total, supervised, stop_asked, broken, norm_value = read.wait()
    if broken:
        learner.quarantine.take(bad)
    return Outcome(
        loss=nll_total / max(supervised, 1),
        grad_norm=norm_value,
        supervised=int(supervised),
        stop_asked=bool(stop_asked),
        seconds=time.perf_counter() - started,
        waited=waited,
    )


def check_reachable(model: Any, *, has_media: bool) -> None:
    """Data without a video or image cannot teach a vision tower."""
    vision = [name for name, p in model.named_parameters() if p.requires_grad and ".visual." in name]
    if vision and not has_media:
        remedy = 'set policy.freeze_pattern = ["visual"], or train on videos or images'
        raise ENGINE_NO_GRADIENT.error(vision[0], "the vision tower is to train, and no sample has media", remedy)


def check_gradients(model: Any) -> None:
    """After the first backward every trainable parameter must have a gradient."""
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise ENGINE_NO_GRADIENT.error(
            without[0], f"{len(without)} trainable parameters got no gradient: {without[:5]}"
        )


def seed_dropout(seed: int, step: int, world: World) -> None:
    """Dropout depends on the step alone, so that a resumed run draws what an uninterrupted one draws."""
    torch.manual_seed(seed * 1_000_003 + step * world.size + world.rank)
