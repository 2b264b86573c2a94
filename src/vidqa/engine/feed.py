"""What feeds a training: videos decoded ahead, batches, and the steps that they make up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vidqa.contract.cli import note
from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.features import FeatureCache, tower_name
from vidqa.engine.batch.frame_cache import FrameCache
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.batch.loader import Loaded, Loader
from vidqa.engine.distributed import World
from vidqa.engine.learner import Step
from vidqa.engine.model.ahead import Calls, choose_calls
from vidqa.engine.model.load import DTYPES
from vidqa.engine.objectives import Objective
from vidqa.engine.prepare import frame_cache, on_main
from vidqa.engine.schedule import Schedule
from vidqa.planning.budget.flops import flops_model
from vidqa.planning.budget.params import parameters
from vidqa.planning.features import cache_share, is_tower_frozen, token_bytes
from vidqa.planning.samples import Planner


@dataclass(frozen=True)
class Feed:
    """`steps` are those that are left, each made when it is its turn; `calls` are the shapes of attention in them."""

    collator: Collator
    calls: Calls
    source: FrameSource
    steps: Iterator[Step]


@contextmanager
def open_feed(schedule: Schedule, planner: Planner, objective: Objective, first: int) -> Iterator[Feed]:
    """The steps of a schedule from `first` on. Decoding begins at once."""
    spec, world = schedule.spec, schedule.world
    sizes = planner.family.sizes_of(Path(spec.policy.model_name_or_path)).vision
    share, values = spec.engine.share_video_prefix, objective.token_values
    collator = Collator(planner, sizes, world.device.type, share=share, values=values, context=world.context)
    calls = choose_calls(schedule, collator)
    workers = spec.train.train_policy.dataloader_num_workers
    packs = (pack for step in range(first, schedule.total) for pack in schedule.packs(step))
    with (
        closing(FrameSource(workers, spec.engine.decode_timeout_s, frame_cache(spec.engine))) as source,
        open_features(schedule, planner, source.cache) as features,
        Loader(packs, schedule.data.train, source, collator, world.device, features) as batches,
    ):
        yield Feed(collator, calls, source, _steps(schedule, batches, first))


@contextmanager
def open_features(schedule: Schedule, planner: Planner, frames: FrameCache | None) -> Iterator[FeatureCache | None]:
    """The features that the spec asks to keep; None, and a line that says why, where that is not possible."""
    spec, world = schedule.spec, schedule.world
    if not spec.engine.keep_features:
        yield None
        return
    folder = Path(spec.policy.model_name_or_path)
    sizes = planner.family.sizes_of(folder)
    frozen = is_tower_frozen(parameters(planner.family.tensors(sizes), spec.policy), planner.family.tower)
    if frames is None or not frozen or world.context.size > 1:
        other = "the vision tower trains" if not frozen else "ranks share a sample (cp_size)"
        note_of(world, f"features are not kept: {'there is no frame cache' if frames is None else other}")
        yield None
        return
    per_token = token_bytes(sizes.vision, spec.train.param_dtype)
    room = cache_share(schedule.data.train, schedule.data.validation, per_token, frames.limit_bytes)
    size = room.share * room.feature_bytes / 1e9
    note_of(world, f"features of {room.share:.0%} of the videos are kept, {size:.1f} GB")
    settings = (spec.train.param_dtype, spec.train.fp8.enable_fp8, planner.geometry)
    name = on_main(world, lambda: tower_name(folder, *settings))
    flops = flops_model(sizes, vision_trains=False, decoder_trains=False)
    features = FeatureCache(frames, name, DTYPES[spec.train.param_dtype], 1 + sizes.vision.taps, room.share, flops)
    with closing(features):
        yield features


def note_of(world: World, text: str) -> None:
    if world.is_main:
        note(text)


def _steps(schedule: Schedule, batches: Iterator[Loaded], first: int) -> Iterator[Step]:
    for number in range(first, schedule.total):
        size = len(schedule.packs(number))
        yield Step(number, islice(batches, size), size, schedule.supervised(number))
