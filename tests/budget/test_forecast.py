"""What is recomputed is the least that fits, and only micro-steps that may be the heaviest are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.budget.test_memory import model
from vidqa.budget.forecast import allowed_recompute, forecast, loads
from vidqa.budget.memory import Load
from vidqa.spec.models import TrainSpec

LOADS = [Load(20_000, 80_000, 100, again=True)]


def spec(**engine: Any) -> TrainSpec:
    return TrainSpec.model_validate({"engine": engine, "policy": {"parallelism": {"dp_shard_size": 4}}})


def test_the_fastest_that_fits_is_chosen() -> None:
    peaks = {
        each: forecast(spec(recompute=each), model(), LOADS, None).memory.peak_gib for each in ("none", "vision", "all")
    }
    assert peaks["none"] > peaks["vision"] > peaks["all"]
    for each, peak in peaks.items():
        assert forecast(spec(), model(), LOADS, 1.1 * peak + 2.01).recompute == each
    assert forecast(spec(), model(), LOADS, 10.0).recompute == "all"
    assert forecast(spec(), model(), LOADS, None).recompute == "all"


def test_a_choice_that_is_written_down_stands() -> None:
    assert allowed_recompute(spec(recompute="vision")) == ("vision",)
    kept = TrainSpec.model_validate({"policy": {"model_gradient_checkpointing": False}})
    assert allowed_recompute(kept) == ("none",)


@pytest.mark.parametrize("total", [1, 3])
def test_lighter_packs_are_left_out(total: int) -> None:
    sizes = {0: (10, 50, 1), 1: (20, 10, 1), 2: (9, 40, 1), 3: (20, 10, 1), 4: (30, 60, 0), 5: (31, 60, 5)}
    packs = {0: [[[0], [1]]], 1: [[[2], [3]]], 2: [[[4], []], [[5]]]}
    steps: Any = SimpleNamespace(order=SimpleNamespace(batch=2), packs=packs.get, size=lambda pack: sizes[pack[0]])
    heavy = loads(steps, total)
    if total == 1:
        assert set(heavy) == {Load(10, 50, 1), Load(20, 10, 1, again=True)}
    else:
        assert set(heavy) == {Load(31, 60, 5), Load(20, 10, 1, again=True)}
