"""The steps of a training: the samples of each, actions due after it, and its batches, with videos decoded ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from vidqa.engine.data.collate import Collator, PairCollator, TokenValues
from vidqa.engine.data.feature_cache import FeatureCache, tower_name
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.planned_samples import Prepared
from vidqa.engine.data.prefetch import LoadedBatch, Prefetcher
from vidqa.engine.distributed import World
from vidqa.engine.model import DTYPES
from vidqa.engine.model.attention import Call
from vidqa.planning.budget.memory import MemoryPolicy
from vidqa.planning.budget.speed import flops_model
from vidqa.planning.feature_cache import CacheShare, feature_cache_share
from vidqa.planning.packing import Steps
from vidqa.planning.pairs import learns_pairs
from vidqa.planning.samples import Planner
from vidqa.spec import effective_batch, steps_per_epoch, total_steps, warmup_steps
from vidqa.spec.models import TrainSpec

MOST_STEPS = 200  # maximum number of steps whose packs are inspected
MOST_SHAPES = 128  # maximum number of attention shapes, of the decoder and of the vision tower
FEW_BITS = 3
Calls = tuple[list[Call], list[Call]]  # attention calls of the decoder and of the vision tower
SpecT = TypeVar("SpecT", bound=TrainSpec)


class StepSchedule(Generic[SpecT]):
    """The number of steps of a run, and the actions due after each."""

    def __init__(self, spec: SpecT, data: Prepared, world: World, policy: MemoryPolicy) -> None:
        self.spec, self.data, self.world, self.policy = spec, data, world, policy
        self.total = total_steps(spec, len(data.train))
        self.warmup = warmup_steps(spec, len(data.train))
        self.steps_per_epoch = steps_per_epoch(spec, len(data.train))

    def epoch_ended_by(self, step: int) -> int | None:
        """The number of the epoch (from 1) that ends with this step."""
        done, rest = divmod(step + 1, self.steps_per_epoch)
        return done if rest == 0 else None

    def due(self, step: int, every_steps: int, every_epochs: int) -> bool:
        """Whether an action with this frequency, in steps or in epochs, is due after `step`."""
        return any(every and (step + 1) % every == 0 for every in (every_steps, every_epochs * self.steps_per_epoch))

    def validates_after(self, step: int) -> bool:
        validation = self.spec.validation
        return step + 1 == self.total or self.due(step, validation.freq, validation.freq_in_epoch)

    def facts(self) -> dict[str, Any]:
        """The entries of plan.json about steps."""
        return {
            "total_steps": self.total,
            "steps_per_epoch": self.steps_per_epoch,
            "warmup_steps": self.warmup,
            "effective_batch": effective_batch(self.spec),
        }


class Schedule(StepSchedule[TrainSpec]):
    """The steps of a supervised training: a function of the spec, the planned samples and, if the spec leaves the size
    of packs open, the memory policy."""

    def __init__(self, spec: TrainSpec, data: Prepared, world: World, policy: MemoryPolicy) -> None:
        super().__init__(spec, data, world, policy)
        self.steps = Steps(spec, data.train, world.data_ranks, world.device.type, policy.pack_tokens)
        self.order, self.units = self.steps.order, self.steps.units

    def packs(self, step: int) -> list[list[int]]:
        """The micro-steps of a step on this rank, each a list of sample numbers; samples of one unit are neighbours."""
        return self.steps.packs(step)[self.world.data_rank]

    def supervised(self, step: int) -> int:
        """The number of supervised tokens of the whole step, over all ranks."""
        return sum(self.data.train[i].supervised for i in self.order.step(step))

    def facts(self) -> dict[str, Any]:
        return {
            **super().facts(),
            "pack_tokens": self.steps.budget if self.spec.engine.packing else None,
            "micro_steps_of_first_step": len(self.packs(0)),
        }


@dataclass(frozen=True)
class Step:
    """The input of one step. `batches` are this rank's, `size` in number on every rank; they may be built lazily, after
    the previous step. `expected` is the objective's count over all ranks if known beforehand, else any positive number:
    the loss is divided by the real count."""

    number: int  # from 0
    batches: Iterable[LoadedBatch]
    size: int
    expected: float


@dataclass(frozen=True)
class Dataloader:
    """The inputs of a training: `steps` are the remaining steps, built lazily; `calls` are their attention shapes."""

    collator: Collator
    calls: Calls
    source: FrameSource
    steps: Iterator[Step]


@contextmanager
def open_dataloader(
    schedule: Schedule, planner: Planner, token_values: TokenValues, first: int
) -> Iterator[Dataloader]:
    """The remaining steps of a schedule, starting at `first`. Decoding begins at once."""
    spec, world = schedule.spec, schedule.world
    sizes = planner.family.sizes_of(Path(spec.policy.model_name_or_path)).vision
    share = spec.engine.share_video_prefix
    batches_of = PairCollator if learns_pairs(spec) else Collator
    collator = batches_of(planner, sizes, world.device.type, share=share, values=token_values, context=world.context)
    calls = choose_calls(schedule, collator)
    workers = spec.train.train_policy.dataloader_num_workers
    packs = (pack for step in range(first, schedule.total) for pack in schedule.packs(step))
    with (
        open_frames(spec.engine, workers) as source,
        open_feature_cache(schedule, planner, source.cache) as features,
        Prefetcher(packs, schedule.data.train, source, collator, world.device, features) as batches,
    ):
        yield Dataloader(collator, calls, source, _steps(schedule, batches, first))


@contextmanager
def open_feature_cache(
    schedule: Schedule, planner: Planner, frames: FrameCache | None
) -> Iterator[FeatureCache | None]:
    """The vision feature cache of the spec; None, with a note that gives the reason, if it is unavailable."""
    spec, world = schedule.spec, schedule.world
    if not spec.engine.keep_features:
        yield None
        return
    folder = Path(spec.policy.model_name_or_path)
    sizes = planner.family.sizes_of(folder)
    room: CacheShare | str = "there is no frame cache"
    if frames is not None:
        sets = (schedule.data.train, schedule.data.validation)
        room = feature_cache_share(spec, planner.family, sizes, *sets, frames.limit_bytes)
    if frames is None or isinstance(room, str):
        world.note(f"features are not kept: {room}")
        yield None
        return
    size = room.share * room.feature_bytes / 1e9
    world.note(f"features of {room.share:.0%} of the videos are kept, {size:.1f} GB")
    settings = (spec.train.param_dtype, spec.train.fp8.enable_fp8, planner.geometry)
    name = world.on_main(lambda: tower_name(folder, *settings))
    flops = flops_model(sizes, vision_trains=False, decoder_trains=False)
    features = FeatureCache(frames, name, DTYPES[spec.train.param_dtype], 1 + sizes.vision.taps, room.share, flops)
    with closing(features):
        yield features


def _steps(schedule: Schedule, batches: Iterator[LoadedBatch], first: int) -> Iterator[Step]:
    for number in range(first, schedule.total):
        size = len(schedule.packs(number))
        yield Step(number, islice(batches, size), size, schedule.supervised(number))


def choose_calls(schedule: Schedule, collator: Collator) -> Calls:
    """The attention shapes to warm up, if cuDNN computes attention. If the first steps have too many shapes, the
    collator bounds their number: it splits runs of equal segments, which costs a copy of the attention output."""
    if schedule.world.device.type != "cuda" or schedule.spec.train.param_dtype != "bfloat16":
        return [], []
    calls = attention_calls(schedule, collator)
    if max(map(len, calls)) > MOST_SHAPES:
        collator.count_bits = FEW_BITS
        calls = attention_calls(schedule, collator)
    return calls


def attention_calls(schedule: Schedule, collator: Collator) -> Calls:
    """The attention shapes of this rank's first steps, most common first."""
    decoder, vision = Counter[Call](), Counter[Call]()
    samples = schedule.data.train
    for step in range(min(schedule.total, MOST_STEPS)):
        for pack in schedule.packs(step):
            segments = collator.segments([samples[number] for number in pack])
            for calls, entries in zip((decoder, vision), segments, strict=True):
                calls.update((count, length) for _, count, length in entries)
    return [call for call, _ in decoder.most_common()], [call for call, _ in vision.most_common()]
