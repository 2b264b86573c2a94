"""A stored plan gives the samples that planning gives, and counts only where nothing it was made of has changed."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa import spec as specs
from vidqa.data import fingerprint
from vidqa.planning import plan_cache
from vidqa.planning.packing import Steps
from vidqa.planning.plan import Plan, PlannedSet, load_sets, make_plan, too_long, usable, without_labels
from vidqa.planning.samples import Planner, training_planner


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a set with clips, an image and a text, in which one clip is broken."""
    folder = tmp_path_factory.mktemp("stored")
    tiny_model(folder)
    root = tiny_data(folder, clips=5, images=1, texts=1)
    (root / "videos/4.mp4").write_bytes(b"no video")
    rows = json.loads((root / "annotations.json").read_text())
    both = {"from": "human", "value": "<video><video>\nWhich 門 is open?"}
    rows.append(
        {"id": "both", "videos": ["videos/1.mp4", "videos/0.mp4"], "conversations": [both, rows[0]["conversations"][1]]}
    )
    rows[0] |= {"video_fps": 7.5, "kind": "yes_no"}
    (root / "annotations.json").write_text(json.dumps(rows))
    return folder


class Made:
    """A plan of a copy of the shared set, and its file."""

    def __init__(self, shared: Path, folder: Path, **keys: Any) -> None:
        self.folder = folder
        for name in ("model", "data"):
            shutil.copytree(shared / name, folder / name)
        self.keys = {"engine.on_bad_sample": "quarantine", "train.train_policy.dataset.test_size": 0.3, **keys}
        self.file = folder / "plan.msgpack"

    @property
    def spec(self) -> Any:
        return specs.load(tiny_spec(self.folder, self.folder / "model", self.folder / "data", self.keys), "train")

    @property
    def planner(self) -> Planner:
        return training_planner(self.spec, self.folder / "model")

    def store(self) -> Plan:
        inputs = plan_cache.plan_inputs(self.spec, self.planner)
        sets = load_sets(self.spec)
        records = [record for found in sets.values() for record in found]
        identities = plan_cache.file_identities(plan_cache.media_paths(self.spec, records))
        plan = make_plan(self.spec, self.planner, sets)
        plan_cache.write(self.file, plan_cache.encode(plan, inputs, identities))
        return plan

    def read(self) -> Plan | None:
        encoded = plan_cache.read(self.file, plan_cache.plan_inputs(self.spec, self.planner))
        return None if encoded is None else plan_cache.decode(encoded)

    def stale(self) -> str:
        with pytest.raises(plan_cache.Stale) as stale:
            self.read()
        return str(stale.value)


@pytest.fixture
def made(shared: Path, tmp_path: Path) -> Made:
    return Made(shared, tmp_path)


def test_a_plan_cache_gives_the_same_records_samples_and_problems(made: Made) -> None:
    plan, again = made.store(), made.read()
    assert again is not None and list(again.sets) == list(plan.sets) == ["train", "validation"]
    for name, part in plan.sets.items():
        found = again.sets[name]
        assert list(found.records) == part.records and len(part.records) > 2
        assert list(found.samples) == part.samples and found.problems == part.problems
        refs = [ref for record in found.records for ref in record.media]
        assert len({id(ref) for ref in refs}) == len(set(refs)) < len(refs), "a medium is stored once"
    assert sum(len(part.problems) for part in plan.sets.values()) == 2
    everything = [record for part in plan.sets.values() for record in part.records]
    assert again.data_fingerprint == plan.data_fingerprint == fingerprint(everything)


@pytest.mark.parametrize("share", [False, True])
def test_steps_and_packs_of_a_plan_cache_are_those_of_planning(made: Made, share: bool) -> None:
    made.keys["engine.share_video_prefix"] = share
    plan, again = made.store(), made.read()
    assert again is not None
    steps = [Steps(made.spec, each.sets["train"].samples, 2, "cpu") for each in (plan, again)]
    assert steps[0].order.together == steps[1].order.together
    for step in range(2 * steps[0].order.steps_per_epoch):
        assert steps[0].packs(step) == steps[1].packs(step)


def test_the_same_samples_of_a_plan_cache_are_usable(made: Made) -> None:
    plan, again = made.store(), made.read()
    assert again is not None
    lists, table = plan.sets["train"].samples, again.sets["train"].samples
    longest = sorted(sample.length for sample in lists)[-2]
    for trained in (False, True):
        assert list(usable(table, longest, trained=trained)) == usable(lists, longest, trained=trained)
    assert 0 < len(usable(table, longest, trained=True)) < len(lists)
    assert too_long(table, longest) == too_long(lists, longest) != []
    assert without_labels(table) == without_labels(lists)


def change_annotations(made: Made) -> None:
    path = made.folder / "data/annotations.json"
    path.write_text(path.read_text().replace("first bit", "second bit"))


def replace_a_clip(made: Made) -> None:
    write_clip(made.folder / "data/videos/1.mp4", frames=30, fps=8)


def remove_a_clip(made: Made) -> None:
    (made.folder / "data/videos/1.mp4").unlink()


def change_tokenizer(made: Made) -> None:
    path = made.folder / "model/tokenizer.json"
    path.write_text(path.read_text() + "\n")


def take_other_frames(made: Made) -> None:
    made.keys["custom.vision.nframes"] = 6


def split_otherwise(made: Made) -> None:
    made.keys["train.train_policy.dataloader_seed"] = 5


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (change_annotations, "annotations"),
        (replace_a_clip, "1 media files"),
        (remove_a_clip, "1 media files"),
        (change_tokenizer, "tokenizer"),
        (take_other_frames, "spec"),
        (split_otherwise, "spec"),
    ],
)
def test_a_plan_cache_of_something_else_is_stale(made: Made, change: Callable[[Made], None], why: str) -> None:
    made.store()
    change(made)
    assert why in made.stale()


def test_a_plan_cache_outlives_what_does_not_change_samples(made: Made) -> None:
    made.store()
    made.keys |= {"train.optm_lr": 1.0, "policy.model_max_length": 100, "train.train_batch_per_replica": 2}
    os.utime(made.folder / "data/annotations.json")
    assert made.read() is not None


def test_a_plan_cache_of_another_version_is_stale(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.store()
    monkeypatch.setattr(plan_cache, "version", lambda name: "0")
    assert "version" in made.stale()


def test_a_damaged_plan_is_stale_and_one_that_is_not_there_is_none(made: Made) -> None:
    assert made.read() is None
    made.store()
    whole = made.file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], zlib.compress(bytes(100)), whole[:-40] + whole[-30:]):
        made.file.write_bytes(damaged)
        assert made.stale() == plan_cache.DAMAGED
    for place in range(4, len(whole) - 8, len(whole) // 40):  # a bit anywhere: found, or of no effect
        made.file.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            again = made.read()
        except plan_cache.Stale:
            continue
        made.file.write_bytes(whole)
        before = made.read()
        assert again is not None and before is not None
        assert all(list(again.sets[name].samples) == list(part.samples) for name, part in before.sets.items())


def test_a_file_that_comes_before_an_archive_makes_a_plan_stale(made: Made) -> None:
    data = made.folder / "data"
    with tarfile.open(data / "videos.tar", "w") as tar:
        tar.add(data / "videos", "videos")
    shutil.rmtree(data / "videos")
    plan, again = made.store(), made.read()
    assert again is not None and list(again.sets["train"].samples) == plan.sets["train"].samples
    assert plan.sets["train"].samples[0].record.media[0].member
    write_clip(data / "videos/0.mp4", frames=30, fps=8)
    assert "1 media files" in made.stale()


def test_names_that_are_no_text_are_told(made: Made) -> None:
    record = load_sets(made.spec)["train"][0]
    medium = replace(record.media[0], path=os.fsdecode(b"/data/\xff.mp4"))
    plan = Plan({"train": PlannedSet([replace(record, media=(medium,))], [], [])}, "")
    with pytest.raises(UnicodeEncodeError):
        plan_cache.encode(plan, {}, {})
