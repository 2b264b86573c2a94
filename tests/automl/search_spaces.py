"""Templates and search spaces that tests of studies begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vidqa.automl.space import Space, search_space
from vidqa.spec import Layer, TrainSpec, resolve

DATA = {"custom.train_dataset.annotation_path": "/d/a.json", "custom.train_dataset.media_path": "/d"}
BATCH, RATE, DECAY = "train.train_batch_per_replica", "train.optm_lr", "train.optm_decay_type"


def template(**more: Any) -> TrainSpec:
    spec = resolve("train", [Layer("test", {**DATA, **{key.replace("__", "."): more[key] for key in more}})]).spec
    assert isinstance(spec, TrainSpec)
    return spec


def lora(**more: Any) -> TrainSpec:
    return template(policy__lora={}, **more)


def space(spec: TrainSpec, ranges: Mapping[str, str] = {}, fixed: Mapping[str, Any] = {}, **more: Any) -> Space:
    return search_space(spec, ranges=ranges, fixed=fixed, **more)
