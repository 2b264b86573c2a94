"""What feeds a training: videos decoded ahead, batches, and the steps that they make up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.batch.loader import Loaded, Loader
from vidqa.engine.learner import Step
from vidqa.engine.model.ahead import Calls, choose_calls
from vidqa.engine.objectives import Objective
from vidqa.engine.prepare import frame_cache
from vidqa.engine.schedule import Schedule
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
        Loader(packs, schedule.data.train, source, collator, world.device) as batches,
    ):
        yield Feed(collator, calls, source, _steps(schedule, batches, first))


def _steps(schedule: Schedule, batches: Iterator[Loaded], first: int) -> Iterator[Step]:
    for number in range(first, schedule.total):
        size = len(schedule.packs(number))
        yield Step(number, islice(batches, size), size, schedule.supervised(number))
