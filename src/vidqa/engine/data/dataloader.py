"""The dataloader of a training: videos decoded ahead, batches, and the steps that they make up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vidqa.core.cli import note
from vidqa.engine.data.collate import Collator, PairCollator, TokenValues
from vidqa.engine.data.feature_cache import FeatureCache, tower_name
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.prefetch import LoadedBatch, Prefetcher
from vidqa.engine.data.schedule import Schedule
from vidqa.engine.distributed import World
from vidqa.engine.model import DTYPES
from vidqa.engine.model.attention import Call
from vidqa.planning.budget.speed import flops_model
from vidqa.planning.features import CacheShare, kept_share
from vidqa.planning.pairs import learns_pairs
from vidqa.planning.samples import Planner

MOST_STEPS = 200  # whose packs are looked at
MOST_SHAPES = 128  # of the decoder, and of the vision tower
FEW_BITS = 3
Calls = tuple[list[Call], list[Call]]  # of the decoder's attention, and of the vision tower's


@dataclass(frozen=True)
class Step:
    """The input of one step. `batches` are this rank's, `size` in number on every rank; they may be made lazily, after
    the step before. `expected` is the objective's count over all ranks if known beforehand, else any positive number:
    the loss is divided by the real count."""

    number: int  # from 0
    batches: Iterable[LoadedBatch]
    size: int
    expected: float


@dataclass(frozen=True)
class Dataloader:
    """`steps` are those that are left, each made when it is its turn; `calls` are the shapes of attention in them."""

    collator: Collator
    calls: Calls
    source: FrameSource
    steps: Iterator[Step]


@contextmanager
def open_dataloader(
    schedule: Schedule, planner: Planner, token_values: TokenValues, first: int
) -> Iterator[Dataloader]:
    """The steps of a schedule from `first` on. Decoding begins at once."""
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
    """The cache of vision features that the spec asks for; None, with a note that says why, where it cannot be."""
    spec, world = schedule.spec, schedule.world
    if not spec.engine.keep_features:
        yield None
        return
    folder = Path(spec.policy.model_name_or_path)
    sizes = planner.family.sizes_of(folder)
    room: CacheShare | str = "there is no frame cache"
    if frames is not None:
        sets = (schedule.data.train, schedule.data.validation)
        room = kept_share(spec, planner.family, sizes, *sets, frames.limit_bytes)
    if frames is None or isinstance(room, str):
        note_of(world, f"features are not kept: {room}")
        yield None
        return
    size = room.share * room.feature_bytes / 1e9
    note_of(world, f"features of {room.share:.0%} of the videos are kept, {size:.1f} GB")
    settings = (spec.train.param_dtype, spec.train.fp8.enable_fp8, planner.geometry)
    name = world.on_main(lambda: tower_name(folder, *settings))
    flops = flops_model(sizes, vision_trains=False, decoder_trains=False)
    features = FeatureCache(frames, name, DTYPES[spec.train.param_dtype], 1 + sizes.vision.taps, room.share, flops)
    with closing(features):
        yield features


def note_of(world: World, text: str) -> None:
    if world.is_main:
        note(text)


def _steps(schedule: Schedule, batches: Iterator[LoadedBatch], first: int) -> Iterator[Step]:
    for number in range(first, schedule.total):
        size = len(schedule.packs(number))
        yield Step(number, islice(batches, size), size, schedule.supervised(number))


def choose_calls(schedule: Schedule, collator: Collator) -> Calls:
    """The shapes that attention will be called with, where cuDNN computes it. If the first steps have too many shapes,
    the collator keeps them few: runs of equal segments are cut then, which costs a copy of what attention gives."""
    if schedule.world.device.type != "cuda" or schedule.spec.train.param_dtype != "bfloat16":
        return [], []
    calls = attention_calls(schedule, collator)
    if max(map(len, calls)) > MOST_SHAPES:
        collator.count_bits = FEW_BITS
        calls = attention_calls(schedule, collator)
    return calls


def attention_calls(schedule: Schedule, collator: Collator) -> Calls:
    """The shapes of this rank's first steps, commonest first."""
    decoder, vision = Counter[Call](), Counter[Call]()
    samples = schedule.data.train
    for step in range(min(schedule.total, MOST_STEPS)):
        for pack in schedule.packs(step):
            segments = collator.segments([samples[number] for number in pack])
            for calls, entries in zip((decoder, vision), segments, strict=True):
                calls.update((count, length) for _, count, length in entries)
    return [call for call, _ in decoder.most_common()], [call for call, _ in vision.most_common()]
