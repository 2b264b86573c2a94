"""The least speed is given up that makes it fit, and only micro-steps that may be the heaviest are looked at."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.planning.test_memory import SIZES, model
from vidqa.planning.budget.activation_checkpointing import (
    NO_RECOMPUTE,
    RecomputedLayers,
    fixed_recompute,
    recompute_path,
)
from vidqa.planning.budget.autotune import PACK_SHARES, Packing, best_policy, heaviest_micro_steps, slowness
from vidqa.planning.budget.memory import (
    MemoryPolicy,
    MicroStep,
    allowed_recompute,
    allowed_reshard,
    fits,
    peak_memory,
    training_setup,
)
from vidqa.spec.models import TrainSpec


class Packs(Packing):
    """Packs that are as full as they may be, four patches a token; the longest sample has 4,096 tokens."""

    def __init__(self, largest: int = 20_480) -> None:
        self.largest, self.answered = largest, ()

    def heaviest(self, pack_tokens: int | None) -> list[MicroStep]:
        tokens = pack_tokens or self.largest
        return [MicroStep(tokens, 4 * tokens, 100, accumulates=True)]

    def sizes(self, spec: Any) -> list[int | None]:
        return [int(self.largest * share) for share in PACK_SHARES]


def spec(recompute: str = "auto", reshard: str = "default", **policy: Any) -> TrainSpec:
    train = {"fsdp_reshard_after_forward": reshard}
    policy = {"parallelism": {"dp_shard_size": 1 if "lora" in policy else 4}, **policy}
    return TrainSpec.model_validate({"engine": {"recompute": recompute}, "train": train, "policy": policy})


def test_no_more_is_given_up_than_must_be() -> None:
    """More memory is never slower, the choice fits, and one step less would not fit."""
    chosen, before = [], None
    for memory_gib in (60, 64, 70, 80, 90, 110, 141, 200):
        found = best_policy(spec(), model(), Packs(), memory_gib)
        assert fits(found.memory.peak_gib, memory_gib)
        slow = slowness(spec(), model(), found)
        assert before is None or slow <= before
        chosen.append(found.policy)
        before = slow
        if found.policy.recompute != NO_RECOMPUTE:
            ways = recompute_path(SIZES, vision_trains=True)
            less = replace(found.policy, recompute=ways[ways.index(found.policy.recompute) - 1])
            assert not fits(peak(less), memory_gib)
    assert chosen[0].recompute != NO_RECOMPUTE and chosen[-1] == MemoryPolicy(NO_RECOMPUTE, "never", 20_480)


def peak(policy: MemoryPolicy) -> float:
    (micro_step,) = Packs().heaviest(policy.pack_tokens)
    return peak_memory(model(), training_setup(spec(), policy), micro_step).peak_gib


def test_where_nothing_fits_or_memory_is_not_known_the_least_is_taken() -> None:
    for memory_gib in (10.0, None):
        found = best_policy(spec(), model(), Packs(), memory_gib).policy
        assert found == MemoryPolicy(fixed_recompute("all", SIZES), "layers", 5_120)


def test_a_frozen_tower_is_not_computed_again() -> None:
    for memory_gib in (26, 40, 60):
        frozen = best_policy(spec(lora={"r": 16}), model(lora={}), Packs(), memory_gib)
        assert fits(frozen.memory.peak_gib, memory_gib) and frozen.policy.recompute.vision == RecomputedLayers()


def test_a_choice_that_is_written_down_stands() -> None:
    def recompute(of: TrainSpec) -> list[Any]:
        return allowed_recompute(of, model())

    assert recompute(spec("vision")) == [fixed_recompute("vision", SIZES)] and recompute(spec("none")) == [NO_RECOMPUTE]
    assert allowed_reshard(spec("vision", "false")) == ("never",)
    assert allowed_reshard(spec("vision")) == ("never", "layers")
    kept = TrainSpec.model_validate({"policy": {"model_gradient_checkpointing": False}})
    assert recompute(kept) == [NO_RECOMPUTE]


def test_sizes_of_packs_end_at_the_longest_sample() -> None:
    steps: Any = SimpleNamespace(budget=40_960, longest=9_000)
    packing = Packing(lambda budget: steps, 10)
    assert packing.sizes(spec()) == [32_768, 24_576, 16_384, 12_288, 9_000]
    assert packing.sizes(TrainSpec.model_validate({"engine": {"pack_tokens": 16_384}})) == [None]
    assert packing.sizes(TrainSpec.model_validate({"engine": {"share_video_prefix": True}})) == [None]


def test_where_a_micro_step_moves_all_weights_packs_are_long_and_recomputed() -> None:
    """One long pack with everything recomputed is faster than two that keep what backward needs."""
    tables = {"train": {"fsdp_offload": True}, "policy": {"model_max_length": 65_536}}
    offloaded, steps = TrainSpec.model_validate(tables), SimpleNamespace(budget=65_536, longest=9_000)
    packing = Packing(lambda budget: steps, 10)  # type: ignore[arg-type, return-value]
    assert packing.sizes(offloaded)[0] == 65_536 and packing.sizes(spec())[0] == 32_768

    def chosen(given: TrainSpec) -> MemoryPolicy:
        return best_policy(given, model(), Packs(65_536), 100.0).policy

    adapter = TrainSpec.model_validate({**tables, "policy": {**tables["policy"], "lora": {}}})
    assert chosen(offloaded).pack_tokens == 65_536
    assert slowness(offloaded, model(), best_policy(offloaded, model(), Packs(65_536), 100.0)) > 1.4
    assert slowness(adapter, model(), best_policy(adapter, model(), Packs(65_536), 100.0)) < 1.4


@pytest.mark.parametrize("total", [1, 3])
def test_lighter_packs_are_left_out(total: int) -> None:
    sizes = {0: (10, 50, 1), 1: (20, 10, 1), 2: (9, 40, 1), 3: (20, 10, 1), 4: (30, 60, 0), 5: (31, 60, 5)}
    packs = {0: [[[0], [1]]], 1: [[[2], [3]]], 2: [[[4], []], [[5]]]}
    order, nothing = SimpleNamespace(batch=2), lambda pack: 0
    steps: Any = SimpleNamespace(order=order, packs=packs.get, size=lambda pack: sizes[pack[0]], prefix_rows=nothing)
    heavy = heaviest_micro_steps(steps, total)
    if total == 1:
        assert set(heavy) == {MicroStep(10, 50, 1), MicroStep(20, 10, 1, accumulates=True)}
    else:
        assert set(heavy) == {MicroStep(31, 60, 5), MicroStep(20, 10, 1, accumulates=True)}
