"""An objective of a test's own trains through the loop that supervised fine-tuning takes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import events as events_of
from in_process import train_here
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa.engine.data.dataloader import Step
from vidqa.engine.training.learner import Learner
from vidqa.engine.training.objectives import Sums
from vidqa.planning.samples import Sample

CLIP = 0.2
events = partial(events_of, own=["train/advantage"])


class PolicyGradient:
    """Clipped ratios of new to old probabilities, times advantages, as PPO has them; counted in tokens."""

    metrics = ("ratio", "advantage")
    maxima = ()

    def token_values(self, sample: Sample) -> Mapping[str, np.ndarray]:
        advantage = 1.0 if zlib.crc32(sample.record.id.encode()) % 2 else -0.5
        of_each = np.arange(sample.length, dtype=np.float32)
        return {
            "advantages": np.full(sample.length, advantage, np.float32),
            "old_log_probabilities": -6.0 - of_each % 3 / 10,
            "weights": 1 / (1 + of_each % 2),
        }

    def __call__(self, model: Any, batch: Any) -> Sums:
        values = batch.values
        ratio = (-model.packed(batch) - values["old_log_probabilities"]).exp()
        bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
        gains = torch.minimum(ratio * values["advantages"], bounded * values["advantages"])
        metrics = {"ratio": ratio.sum(), "advantage": values["advantages"].sum()}
        return Sums(-(values["weights"] * gains).sum(), len(ratio), metrics)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("objectives")
    return tiny_model(folder), tiny_data(folder)


def _train(folder: Path, world: tuple[Path, Path], **over: Any) -> Path:
    folder.mkdir()
    table = {"train.epoch": 2, "validation.enable": False, "train.train_batch_per_replica": 7, **over}
    return train_here(tiny_spec(folder, *world, table), folder / "run", objective=PolicyGradient())


def test_policy_gradient_with_values_in_batches_trains_whatever_the_packs(
    world: tuple[Path, Path], tmp_path: Path
) -> None:
    small = _train(tmp_path / "small", world)
    assert (small / "best/proof.json").exists()
    found = events(small, "train/loss")
    assert len(found) == 4 and found[3] + found[4] < found[1] + found[2]  # epochs of two steps
    assert set(events(small, "train/ratio")) == set(events(small, "train/advantage")) == set(found)
    # Values go with their tokens: in other packs the sums are the same.
    large = _train(tmp_path / "large", world, **{"engine.pack_tokens": 4096})
    for key in ("train/loss", "train/ratio", "train/advantage"):
        assert events(large, key) == pytest.approx(events(small, key), rel=1e-4), key


def test_steps_that_are_not_known_beforehand_are_taken_alike(
    world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a generator that answers between steps: their count is not expected, and what they hold comes late."""
    known = _train(tmp_path / "known", world)
    train_step = Learner.train_step

    def late(learner: Learner, step: Step) -> Any:
        return train_step(learner, Step(step.number, (batch for batch in step.batches), step.size, expected=1))

    monkeypatch.setattr(Learner, "train_step", late)
    assert events(_train(tmp_path / "late", world), "train/loss") == pytest.approx(
        events(known, "train/loss"), rel=1e-5
    )
