"""The least speed is given up that makes it fit, and only micro-steps that may be the heaviest are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.planning.test_memory import model
from vidqa.planning.budget.forecast import forecast, heaviest_micro_steps
from vidqa.planning.budget.memory import MemoryPolicy, MicroStep, allowed_policies, recorded_policy
from vidqa.spec.models import TrainSpec

HEAVY = [MicroStep(20_000, 80_000, 100, again=True)]


def spec(recompute: str = "auto", reshard: str = "default") -> TrainSpec:
    train, policy = {"fsdp_reshard_after_forward": reshard}, {"parallelism": {"dp_shard_size": 4}}
    return TrainSpec.model_validate({"engine": {"recompute": recompute}, "train": train, "policy": policy})


def test_the_fastest_that_fits_is_chosen() -> None:
    peaks = {}
    for recompute in ("none", "vision", "all"):
        for reshard, stay in (("never", "all"), ("always", "none")):
            found = forecast(spec(recompute, reshard), model(), HEAVY, None)
            assert found.policy == recorded_policy({"recompute": recompute, "stay": stay})
            peaks[recompute, stay] = found.memory.peak_gib
    for recompute in ("none", "vision", "all"):
        assert peaks[recompute, "all"] > peaks[recompute, "none"]
    # In this order unless something faster takes less.
    for (recompute, stay), peak in peaks.items():
        faster = list(peaks.values())[: list(peaks).index((recompute, stay))]
        if all(peak < other for other in faster):
            chosen = forecast(spec(), model(), HEAVY, 1.05 * peak + 2.01).policy
            assert chosen == MemoryPolicy(recompute, "never" if stay == "all" else "layers")
    for memory_gib in (10.0, None):
        assert forecast(spec(), model(), HEAVY, memory_gib).policy == MemoryPolicy("all", "layers")


def test_a_choice_that_is_written_down_stands() -> None:
    assert allowed_policies(spec("vision", "false")) == [MemoryPolicy("vision", "never")]
    assert allowed_policies(spec("vision")) == [MemoryPolicy("vision", "never"), MemoryPolicy("vision", "layers")]
    kept = TrainSpec.model_validate({"policy": {"model_gradient_checkpointing": False}})
    assert {policy.recompute for policy in allowed_policies(kept)} == {"none"}


@pytest.mark.parametrize("total", [1, 3])
def test_lighter_packs_are_left_out(total: int) -> None:
    sizes = {0: (10, 50, 1), 1: (20, 10, 1), 2: (9, 40, 1), 3: (20, 10, 1), 4: (30, 60, 0), 5: (31, 60, 5)}
    packs = {0: [[[0], [1]]], 1: [[[2], [3]]], 2: [[[4], []], [[5]]]}
    steps: Any = SimpleNamespace(order=SimpleNamespace(batch=2), packs=packs.get, size=lambda pack: sizes[pack[0]])
    heavy = heaviest_micro_steps(steps, total)
    if total == 1:
        assert set(heavy) == {MicroStep(10, 50, 1), MicroStep(20, 10, 1, again=True)}
    else:
        assert set(heavy) == {MicroStep(31, 60, 5), MicroStep(20, 10, 1, again=True)}
