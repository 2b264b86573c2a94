"""Kept features of a frozen vision tower: the same losses, less decoding, nothing stale, nothing that can fail."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from in_process import train_here
from safetensors.torch import load_file, save_file
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec

from vidqa.engine import train as train_program
from vidqa.engine.data import frame_cache, prefetch
from vidqa.engine.data.feature_cache import FeatureCache, tower_name
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.training.learner import Meter
from vidqa.planning.feature_cache import cache_share
from vidqa.planning.prefix_sharing import workload
from vidqa.planning.samples import Sample
from vidqa.video.pool import DecodeRequest

ADAPTED = {
    "policy.lora.r": 4,
    "policy.lora.target_modules": ["q_proj", "v_proj"],  # which only the decoder has, in both families
    "policy.lora.lora_alpha": 8.0,
    "policy.lora.lora_dropout": 0.0,  # which another number of ranks draws otherwise
    "train.epoch": 2,
    "train.train_batch_per_replica": 4,
    "validation.enable": True,
    "train.train_policy.dataset.test_size": 0.1,
}
FLOPS: Any = None  # of a tower that computes nothing here
KEEP = {**ADAPTED, "engine.keep_features": True}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run that decodes and computes everything, on one rank."""
    return reference_run(tmp_path_factory.mktemp("features"), "qwen3_vl")


def reference_run(folder: Path, family: str) -> SimpleNamespace:
    place = SimpleNamespace(folder=folder, model=tiny_model(folder, family), root=tiny_data(folder))
    for path in place.root.rglob("*.*"):
        os.utime(path, (0, 0))  # part of a medium's key, by which a cache of some media chooses them
    place.reference = losses(train_here(spec(place, "reference", ADAPTED), folder / "reference"))
    return place


def spec(world: SimpleNamespace, name: str, over: dict[str, Any]) -> Path:
    (world.folder / f"of-{name}").mkdir()
    cache = str(world.folder / f"cache-{name}")
    return tiny_spec(world.folder / f"of-{name}", world.model, world.root, {"engine.frame_cache_dir": cache, **over})


class Watched:
    """What is read and decoded while trainings run in this process, which have one batch ready at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.caches: list[FeatureCache] = []
        self.started: list[DecodeRequest] = []
        made, start = FeatureCache.__init__, FrameSource._start

        def make(cache: FeatureCache, *words: Any) -> None:
            self.caches.append(cache)
            made(cache, *words)

        def begin(source: FrameSource, ref: Any, plan: Any) -> Any:
            self.started.append(ref)
            return start(source, ref, plan)

        monkeypatch.setattr(prefetch, "READY_AHEAD", 1)
        monkeypatch.setattr(FeatureCache, "__init__", make)
        monkeypatch.setattr(FrameSource, "_start", begin)


def test_losses_are_those_of_computing_them_every_time(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    path = spec(world, "kept", KEEP)
    first = losses(train_here(path, world.folder / "kept"))
    decoded = len(watched.started)
    again = losses(train_here(path, world.folder / "kept-again"))
    assert first == pytest.approx(world.reference, rel=1e-6)
    assert again == pytest.approx(world.reference, rel=1e-6)
    one, other = watched.caches
    assert one.kept == 7 and one.read > 0 and other.kept == 0 and other.read > one.read
    # Validation and the export's proof look at frames; of what is trained on only the text is left to compute.
    assert len(watched.started) - decoded < decoded / 2


def test_work_that_was_not_done_does_not_count(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step saves is what the tower does for its media in a run that keeps nothing, on every second reading."""
    found: list[tuple[float, float]] = []

    class Watching(Meter):
        def step(self, step: int, outcome: Any, rate: float, progress: Any, *, saves: bool = False) -> None:
            self.interval, before = 10**6, self.work  # logged at the end alone: until then work adds up
            super().step(step, outcome, rate, progress, saves=step + 1 == self.schedule.total)
            works = [workload(unit, self.schedule.data.train) for unit in self.schedule.units(step)]
            tower = [replace(work, tokens=0, pairs=0, supervised=0) for work in works]
            if step + 1 < self.schedule.total:
                assert self.work - before == pytest.approx(self.flops.training_flops(works) - outcome.saved_flops)
            found.append((outcome.saved_flops, self.flops.training_flops(tower)))

    monkeypatch.setattr(train_program, "Meter", Watching)
    path = spec(world, "counted", KEEP)
    train_here(path, world.folder / "counted")
    assert found[0][0] == 0
    found.clear()
    train_here(path, world.folder / "counted-again")
    assert all(saved == pytest.approx(tower) for saved, tower in found) and min(found)[0] > 0


def test_the_second_family_reads_what_it_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tower gives one level of features, and puts patches of windows side by side on the way."""
    world, watched = reference_run(tmp_path, "qwen2_5_vl"), Watched(monkeypatch)
    assert losses(train_here(spec(world, "kept", KEEP), tmp_path / "kept")) == pytest.approx(world.reference, rel=1e-6)
    (cache,) = watched.caches
    assert cache.kept == 7 and cache.read > 0


@pytest.mark.slow
def test_two_ranks_that_share_the_tower_are_one(world: SimpleNamespace) -> None:
    """Each finds other media kept, and gathers the tower's layers with the other all the same."""
    both = {"policy.parallelism.dp_shard_size": 2, "train.train_batch_per_replica": 2}
    for attempt in range(2):
        path = spec(world, f"two-{attempt}", {**KEEP, **both, "engine.frame_cache_dir": str(world.folder / "shared")})
        run_engine("train", path, world.folder / f"two-{attempt}", ranks=2)
        assert losses(world.folder / f"two-{attempt}") == pytest.approx(world.reference, rel=1e-5)


def test_a_cache_for_some_of_them_keeps_the_same_ones(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs then hold both: media that are computed, and media that are read."""
    watched = Watched(monkeypatch)
    monkeypatch.setattr(
        "vidqa.engine.data.dataloader.feature_cache_share", lambda *_: SimpleNamespace(share=0.5, feature_bytes=1)
    )
    path = spec(world, "some", KEEP)
    for name in ("some", "some-again"):
        assert losses(train_here(path, world.folder / name)) == pytest.approx(world.reference, rel=1e-6)
    first, again = watched.caches
    assert 0 < first.kept < 7 and again.kept == 0 and again.read > 0


def test_a_stopped_run_goes_on_with_what_is_kept(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    path = spec(world, "stopped", {**KEEP, "train.resume": True})
    train_here(path, world.folder / "stopped", stop_after=5)
    train_here(path, world.folder / "stopped")
    assert losses(world.folder / "stopped") == pytest.approx(world.reference, rel=1e-6)
    assert watched.caches[1].read > 0


def test_a_disk_that_takes_nothing_more_changes_nothing(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Frames are written by decode workers, which may be forks of this process; features are written by this one."""
    own, write_entry = os.getpid(), frame_cache.write_entry

    def full(path: Path, values: np.ndarray) -> None:
        if os.getpid() != own:
            return write_entry(path, values)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("vidqa.engine.data.frame_cache.write_entry", full)
    path = spec(world, "full", KEEP)
    assert losses(train_here(path, world.folder / "full")) == pytest.approx(world.reference, rel=1e-6)
    assert "features of the vision tower are kept no more" in capfd.readouterr().err


def test_a_tower_that_trains_keeps_nothing(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    watched = Watched(monkeypatch)
    over = {**KEEP, "train.epoch": 1, "policy.lora.target_modules": "all-linear"}
    train_here(spec(world, "trains", over), world.folder / "trains")
    assert not watched.caches and "the vision tower trains" in capfd.readouterr().err


def test_another_tower_has_another_name(world: SimpleNamespace, tmp_path: Path) -> None:
    def with_changed(part: str) -> Path:
        folder = Path(shutil.copytree(world.model, tmp_path / part))
        tensors = load_file(folder / "model.safetensors")
        name = max(name for name in tensors if part in name)
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[-1] += 1
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    name = tower_name(world.model, "bfloat16")
    assert name == tower_name(with_changed("language_model"), "bfloat16")
    assert name != tower_name(with_changed("visual"), "bfloat16")
    assert name != tower_name(world.model, "float32")


def test_frames_come_first_and_features_take_what_is_left() -> None:
    plan = SimpleNamespace(indices=(0, 1), height=32, width=32, tokens=1)
    sample: Any = SimpleNamespace(record=SimpleNamespace(media=[SimpleNamespace(view="a")]), plans=[plan])
    samples: list[Sample] = [sample, sample]
    room = cache_share(samples, (), 32768, 10 * 32768)
    assert (room.frame_bytes, room.feature_bytes, room.share) == (6144, 32768, 1.0)
    assert cache_share(samples, (), 32768, (6144 + 16384) / 0.95).share == pytest.approx(0.5)
    assert cache_share(samples, (), 32768, 6144).share == 0.0


def test_features_come_back_as_they_were_kept(tmp_path: Path) -> None:
    clip = tmp_path / "a.mp4"
    clip.write_bytes(b"not decoded here")
    ref: Any = SimpleNamespace(path=str(clip), member=None, kind="video")
    plan: Any = SimpleNamespace(indices=(0, 1), height=32, width=32, tokens=3)
    cache = FeatureCache(FrameCache(tmp_path / "cache", 1 << 20), "tower", torch.bfloat16, 2, 1.0, FLOPS)
    levels = [torch.randn(5, 8).bfloat16(), torch.randn(5, 8).bfloat16()]
    cache.keep(levels, [("", 2), (cache.key(ref, plan), 3)])
    cache.close()
    found = cache.get(ref, plan)
    assert found is not None and torch.equal(found.values, torch.stack([level[2:] for level in levels]))
    other = FeatureCache(FrameCache(tmp_path / "cache", 1 << 20), "another", torch.bfloat16, 2, 1.0, FLOPS)
    assert other.get(ref, plan) is None
    other.close()
