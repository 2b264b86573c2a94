"""Frames and batches ahead of time, from real clips: order, problems, exceptions, early ends, decoding once."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from clips import frame_numbers, write_clip
from tiny_world import tiny_data, tiny_model

from vidqa.core.problem import Problem, ProblemError
from vidqa.data import load_records
from vidqa.data.record import MediaRef
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.engine.data.frames import RESIZE, STORE, CacheLookup, FrameSource
from vidqa.engine.data.prefetch import DECODE_AHEAD, PACK_AT_LEAST, Prefetcher, pack_bytes
from vidqa.planning.samples import Planner, Prompting, Sample
from vidqa.video.pool import DecodePool, DecodeRequest

CPU = torch.device("cpu")


class CountingPool(DecodePool):
    """The real pool, which remembers what it was asked to decode."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.asked: list[DecodeRequest] = []

    def submit(self, request: DecodeRequest, **options: object):
        self.asked.append(request)
        return super().submit(request, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("loader")
    model, root = tiny_model(folder), tiny_data(folder)
    planner = Planner(model, SimpleNamespace(fps=None, nframes=4, total_pixels=None), Prompting())
    samples, problems = planner.plan(load_records(root / "annotations.json", root))
    assert not problems
    collator = Collator(planner, planner.family.sizes_of(model).vision, "cpu")
    return SimpleNamespace(folder=folder, root=root, samples=samples, collator=collator)


@pytest.fixture(scope="module")
def pool() -> Iterator[CountingPool]:
    with CountingPool(1, 30.0, transform=RESIZE, store=STORE) as pool:
        yield pool


@pytest.fixture
def source(pool: CountingPool) -> FrameSource:
    """A frame source without a cache, over workers that all tests share."""
    return source_over(pool, None)


def source_over(pool: CountingPool, cache: FrameCache | None) -> FrameSource:
    source = FrameSource(0, 1.0, cache)
    source.pool = pool
    pool.asked.clear()
    return source


def load(
    world: SimpleNamespace, packs: Sequence[Sequence[int]], source: FrameSource, samples: list[Sample] | None = None
) -> Prefetcher:
    return Prefetcher(packs, samples or world.samples, source, world.collator, CPU)


def broken(world: SimpleNamespace, sample: Sample) -> Sample:
    """The sample, its clip replaced by one whose header is whole and whose pictures are not."""
    path = world.folder / "cut.mp4"
    if not path.exists():
        data = bytearray(Path(sample.record.media[0].path).read_bytes())
        start = data.index(b"mdat") + 8
        end = data.index(b"moov", start)
        data[start:end] = bytes(end - start)
        path.write_bytes(data)
    media = (replace(sample.record.media[0], path=str(path)),)
    return replace(sample, record=replace(sample.record, media=media))


def test_batches_come_in_the_order_of_the_packs(world: SimpleNamespace, source: FrameSource) -> None:
    packs = [[number] for number in (5, 0, 13, 12, 1, 3, 7, 2, 9, 4, 11, 10, 6, 8)]
    with load(world, packs, source) as batches:
        loaded = list(batches)
    assert [list(one.batch.samples) for one in loaded] == packs
    assert not any(one.problems for one in loaded)
    for (number,), one in zip(packs, loaded, strict=True):
        sample = world.samples[number]
        assert one.batch.tokens == sample.length and len(one.batch.target_N) == sample.supervised
        assert len(one.batch.visual_at_V) == sample.media_tokens


def test_the_frames_are_those_that_were_planned(world: SimpleNamespace, source: FrameSource) -> None:
    chosen = [sample for sample in world.samples if sample.plans and sample.plans[0].kind == "video"]
    frames, problems = source.collect(source.request(chosen))
    assert not problems
    for sample, (array,) in zip(chosen, frames, strict=True):
        clip = int(Path(sample.record.media[0].path).stem)  # its first frame spells 40 times its number
        found = frame_numbers(array.transpose(0, 2, 3, 1))
        assert found == [40 * clip + index for index in sample.plans[0].indices]


def test_no_packs_are_no_batches(world: SimpleNamespace, source: FrameSource) -> None:
    with load(world, [], source) as batches:
        assert list(batches) == []


def test_an_exception_in_the_thread_reaches_the_consumer(world: SimpleNamespace, source: FrameSource) -> None:
    def packs() -> Iterator[list[int]]:
        yield [0]
        raise ArithmeticError("no more packs")

    with pytest.raises(ArithmeticError, match="no more packs"), load(world, packs(), source) as batches:
        list(batches)


def test_a_batch_that_is_not_as_planned_reaches_the_consumer(world: SimpleNamespace, source: FrameSource) -> None:
    wrong = [replace(world.samples[0], length=world.samples[0].length + 1)]
    with pytest.raises(AssertionError, match="planned"), load(world, [[0]], source, wrong) as batches:
        list(batches)


def test_leaving_early_ends_the_thread(world: SimpleNamespace, source: FrameSource) -> None:
    before = threading.active_count()
    started = time.monotonic()
    with load(world, [[number % 12] for number in range(10_000)], source) as batches:
        next(batches)
    assert time.monotonic() - started < 10
    assert threading.active_count() <= before


def test_leaving_waits_for_no_decoding(world: SimpleNamespace) -> None:
    class Undecoded(FrameSource):
        def request(self, samples: Sequence[Sample], lookup: CacheLookup | None = None) -> list[list[Any]]:
            return [[Future()] for _ in samples]

    source = Undecoded(0, 1.0, None)
    with load(world, [[0]], source):
        pass
    source.close()


def test_an_exception_of_the_consumer_ends_the_thread(world: SimpleNamespace, source: FrameSource) -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), load(world, [[0]] * 1000, source) as batches:
        next(batches)
        raise KeyError
    assert threading.active_count() <= before


def test_a_broken_clip_is_a_problem_and_teaches_nothing(world: SimpleNamespace, source: FrameSource) -> None:
    samples = [world.samples[0], broken(world, world.samples[2])]
    frames, problems = source.collect(source.request(samples))
    assert frames[0][0] is not None and frames[1] == [None]
    assert [type(p) for p in problems] == [Problem] and "cut.mp4" in problems[0].where
    with load(world, [[0, 1]], source, samples) as batches:
        loaded = next(batches)
    assert [p.code for p in loaded.problems] == [problems[0].code]
    # The other sample of the pack is learned as ever.
    place = loaded.batch.samples.index(0)
    assert loaded.batch.owner_N.tolist() == [place] * samples[0].supervised
    assert loaded.batch.patches_PC.isfinite().all()


def test_a_missing_file_is_a_problem(world: SimpleNamespace, source: FrameSource) -> None:
    gone = replace(world.samples[0].record, media=(MediaRef("video", "gone", str(world.folder / "gone.mp4")),))
    frames, problems = source.collect(source.request([replace(world.samples[0], record=gone)]))
    assert frames == [[None]] and len(problems) == 1 and "gone.mp4" in problems[0].where


def test_a_medium_asked_for_several_times_at_once_is_decoded_once(
    world: SimpleNamespace, source: FrameSource, pool: CountingPool
) -> None:
    first, second = world.samples[0], world.samples[1]
    assert first.record.media[0].key == second.record.media[0].key
    tickets = [source.request([first, second]), source.request([first])]
    assert len(pool.asked) == 1
    (a, b), (c,) = (source.collect(ticket)[0] for ticket in tickets)
    assert a[0] is b[0] and b[0] is c[0]
    # Nothing of it stays behind: asked for again, it is decoded again.
    assert nothing_stays_behind(source)
    source.collect(source.request([first]))
    assert len(pool.asked) == 2


def test_a_broken_clip_asked_for_twice_is_a_problem_each_time(
    world: SimpleNamespace, source: FrameSource, pool: CountingPool
) -> None:
    bad = broken(world, world.samples[2])
    frames, problems = source.collect(source.request([bad, bad]))
    assert frames == [[None], [None]] and len(problems) == 2 and len(pool.asked) == 1
    assert nothing_stays_behind(source)


def test_cached_frames_are_the_decoded_ones_and_read_only(
    world: SimpleNamespace, pool: CountingPool, tmp_path: Path
) -> None:
    source = source_over(pool, FrameCache(tmp_path, 1 << 30))
    samples = world.samples
    decoded, _ = source.collect(source.request(samples))
    asked = len(pool.asked)
    assert asked == len({ref.key for sample in samples for ref in sample.record.media})
    assert nothing_stays_behind(source)  # all of it is in the cache
    cached, problems = source.collect(source.request(samples))
    assert len(pool.asked) == asked and not problems
    for before, after in zip(decoded, cached, strict=True):
        for mine, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(mine, other)
            assert not other.flags.writeable
    # And a batch of cached frames is the batch of decoded ones.
    numbers = list(range(len(samples)))
    fresh, again = world.collator(numbers, samples, decoded), world.collator(numbers, samples, cached)
    assert torch.equal(fresh.patches_PC, again.patches_PC)


def test_a_broken_clip_is_not_cached(world: SimpleNamespace, pool: CountingPool, tmp_path: Path) -> None:
    source = source_over(pool, FrameCache(tmp_path, 1 << 30))
    bad = broken(world, world.samples[2])
    for _ in range(2):
        assert source.collect(source.request([bad]))[0] == [[None]]
    assert not list(tmp_path.glob("*/*.npy"))


def test_a_cache_that_cannot_be_written_ends_the_run_and_does_not_hang_it(
    world: SimpleNamespace, pool: CountingPool, tmp_path: Path
) -> None:
    cache = FrameCache(tmp_path, 1 << 30)
    source, sample = source_over(pool, cache), world.samples[0]
    (tmp_path / str(cache.key(pool_request(sample)))[:2]).touch()  # a file where the entry's folder has to be
    with pytest.raises(ProblemError, match="ENV_FILE_REFUSED"), load(world, [[0]], source) as batches:
        next(batches)
    assert nothing_stays_behind(source)


def test_frames_larger_than_the_cache_are_not_stored(
    world: SimpleNamespace, pool: CountingPool, tmp_path: Path
) -> None:
    source = source_over(pool, FrameCache(tmp_path, 1000))
    frames, problems = source.collect(source.request([world.samples[0]]))
    assert frames[0][0].nbytes > 1000 and not problems
    assert not list(tmp_path.glob("*/*"))


def test_short_packs_do_not_make_the_window_long_nor_shared_videos_wide(world: SimpleNamespace) -> None:
    text = next(sample for sample in world.samples if not sample.plans)
    assert pack_bytes([text]) == pack_bytes([]) == PACK_AT_LEAST
    video = world.samples[0]
    (plan,) = video.plans
    large = replace(plan, height=20_000, width=20_000)
    one = replace(video, plans=(large,))
    assert pack_bytes([one]) == 3 * len(plan.indices) * 20_000**2 > PACK_AT_LEAST
    assert pack_bytes([one, one, text]) == pack_bytes([one])  # two questions, one video
    assert PACK_AT_LEAST * 64 == DECODE_AHEAD


def test_a_changed_file_is_decoded_again(world: SimpleNamespace, pool: CountingPool, tmp_path: Path) -> None:
    source = source_over(pool, FrameCache(tmp_path / "cache", 1 << 30))
    path = tmp_path / "clip.mp4"
    shutil.copy(world.samples[0].record.media[0].path, path)
    record = replace(world.samples[0].record, media=(replace(world.samples[0].record.media[0], path=str(path)),))
    sample = replace(world.samples[0], record=record)
    (before,) = source.collect(source.request([sample]))[0][0]
    write_clip(path, frames=8, fps=4, width=64, height=64, first_number=1000)
    (after,) = source.collect(source.request([sample]))[0][0]
    assert not np.array_equal(before, after)


def test_a_medium_asked_for_while_another_thread_waits_for_it(
    world: SimpleNamespace, source: FrameSource, pool: CountingPool
) -> None:
    """Validation reads videos while the training loader reads ahead, perhaps the same ones."""
    sample = world.samples[0]
    for _ in range(100):  # keep the worker busy, so that the other thread has to wait
        pool.submit(pool_request(world.samples[4]))
    ticket = source.request([sample])
    other = threading.Thread(target=source.collect, args=(ticket,))
    other.start()
    time.sleep(0.1)
    again = source.request([sample])
    other.join(30)
    frames, problems = source.collect(again)
    assert frames[0][0] is not None and not problems and nothing_stays_behind(source)


def nothing_stays_behind(source: FrameSource) -> bool:
    """What was being decoded is forgotten, shortly after its frames are there."""
    deadline = time.monotonic() + 60
    while source._pending and time.monotonic() < deadline:
        time.sleep(0.01)
    return not source._pending


def pool_request(sample: Sample) -> DecodeRequest:
    ref, plan = sample.record.media[0], sample.plans[0]
    return DecodeRequest(ref.path, ref.member, ref.kind, plan.indices, plan.height, plan.width)
