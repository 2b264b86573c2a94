"""Packs and step orders, over random data sets: nothing is lost, nothing is twice, every rank keeps in step."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidqa.planning.packing import StepOrder, plan_micro_batches, plan_packs
from vidqa.planning.prefix_sharing import Workload, relative_cost

Packs = list[list[list[int]]]
RANKS = st.integers(1, 9)


def _cost(length: int, patches: int) -> float:
    return relative_cost(Workload(length, length**2, 0, patches, 0))


@st.composite
def chosen_samples(draw: st.DrawFn) -> tuple[list[int], list[int], list[float]]:
    """A step's sample numbers, and lengths and costs of a data set that they are part of."""
    lengths = draw(st.lists(st.integers(1, 5000), min_size=1, max_size=60))
    patches = draw(st.lists(st.integers(0, 20000), min_size=len(lengths), max_size=len(lengths)))
    numbers = draw(st.lists(st.sampled_from(range(len(lengths))), unique=True))
    return numbers, lengths, [_cost(*pair) for pair in zip(lengths, patches, strict=True)]


def assert_complete(packs: Packs, chosen: list[int], ranks: int) -> None:
    """Every chosen sample once, and as many micro-steps on each rank."""
    assert len(packs) == ranks
    assert len({len(rank) for rank in packs}) == 1 and packs[0]
    assert Counter(i for rank in packs for bin_ in rank for i in bin_) == Counter(chosen)


def loads(packs: Packs, costs: list[float]) -> list[float]:
    return [sum(costs[i] for bin_ in rank for i in bin_) for rank in packs]


@settings(deadline=None)
@given(chosen_samples(), RANKS, st.integers(1, 6000))
def test_packs_hold_every_sample_once_within_the_budget(
    world: tuple[list[int], list[int], list[float]], ranks: int, budget: int
) -> None:
    chosen, lengths, costs = world
    packs = plan_packs(chosen, lengths, costs, ranks, budget)
    assert_complete(packs, chosen, ranks)
    for bin_ in (bin_ for rank in packs for bin_ in rank):
        assert len(bin_) <= 1 or sum(lengths[i] for i in bin_) <= budget
        assert bin_ == sorted(bin_, key=lambda i: (-lengths[i], i))  # the collator's order: longest first
    # Not more micro-steps than one sample per bin would take.
    assert len(packs[0]) <= max(1, math.ceil(len(chosen) / ranks))


@settings(deadline=None)
@given(chosen_samples(), RANKS, st.integers(1, 6000))
def test_packs_depend_on_nothing_but_their_input(
    world: tuple[list[int], list[int], list[float]], ranks: int, budget: int
) -> None:
    chosen, lengths, costs = world
    packs = plan_packs(chosen, lengths, costs, ranks, budget)
    assert packs == plan_packs(list(reversed(chosen)), lengths, costs, ranks, budget)


@settings(deadline=None)
@given(
    st.lists(st.integers(200, 4000), min_size=32, max_size=64),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([8192, 16384, 40960]),
)
def test_ranks_carry_like_loads(lengths: list[int], ranks: int, budget: int) -> None:
    """With several samples per rank no rank has more than the mean and one sample: the bound of greedy scheduling,
    once for each deal of bins to ranks."""
    costs = [_cost(length, 3 * length) for length in lengths]
    carried = loads(plan_packs(range(len(lengths)), lengths, costs, ranks, budget), costs)
    assert max(carried) <= sum(carried) / ranks + 2 * max(costs)


def test_equal_samples_are_dealt_out_equally() -> None:
    costs = [_cost(1000, 3000)] * 64
    for ranks in (1, 2, 4, 8):
        for budget in (1000, 4000, 64000):
            carried = loads(plan_packs(range(64), [1000] * 64, costs, ranks, budget), costs)
            assert max(carried) == pytest.approx(min(carried))


def test_a_real_mixture_is_balanced_within_a_tenth() -> None:
    lengths = [300 + (i * 7919) % 3000 for i in range(64)]
    costs = [_cost(length, 4 * length) for length in lengths]
    for ranks in (2, 4, 8):
        for budget in (8192, 40960):
            carried = loads(plan_packs(range(64), lengths, costs, ranks, budget), costs)
            assert max(carried) / (sum(carried) / ranks) < 1.1


def test_the_fewest_micro_steps_that_hold_everything() -> None:
    costs = [1.0] * 8
    assert len(plan_packs(range(8), [100] * 8, costs, 2, 400)[0]) == 1
    assert len(plan_packs(range(8), [100] * 8, costs, 2, 399)[0]) == 2
    assert len(plan_packs(range(8), [100] * 8, costs, 1, 100)[0]) == 8


def test_a_sample_longer_than_the_budget_has_a_bin_of_its_own() -> None:
    packs = plan_packs([0, 1, 2], [5000, 10, 10], [9.0, 1.0, 1.0], 1, 100)
    assert sorted(packs[0]) == [[0], [1, 2]]


def test_more_ranks_than_samples_leaves_empty_bins() -> None:
    packs = plan_packs([3, 4], [10] * 5, [1.0] * 5, 4, 100)
    assert_complete(packs, [3, 4], 4)
    assert sorted(len(bin_) for rank in packs for bin_ in rank) == [0, 0, 1, 1]


def test_no_sample_at_all_is_one_empty_micro_step() -> None:
    assert plan_packs([], [], [], 2, 100) == [[[]], [[]]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), unique=True, min_size=1), RANKS, st.integers(1, 9))
def test_micro_batches_hold_every_sample_once(chosen: list[int], ranks: int, mini_batch: int) -> None:
    packs = plan_micro_batches(chosen, ranks, mini_batch)
    assert_complete(packs, chosen, ranks)
    assert all(len(bin_) <= mini_batch for rank in packs for bin_ in rank)
    assert max(sum(map(len, rank)) for rank in packs) <= math.ceil(len(chosen) / ranks)
    assert len(packs[0]) == math.ceil(math.ceil(len(chosen) / ranks) / mini_batch)


@st.composite
def orders(draw: st.DrawFn) -> StepOrder:
    samples = draw(st.integers(1, 300))
    batch = draw(st.integers(1, samples))
    return StepOrder(samples, batch, draw(st.integers(0, 2**32)), draw(st.booleans()), draw(st.booleans()))


@settings(deadline=None)
@given(orders(), st.integers(0, 3))
def test_an_epoch_takes_every_sample_once(order: StepOrder, epoch: int) -> None:
    first = epoch * order.steps_per_epoch
    steps = [order.step(number) for number in range(first, first + order.steps_per_epoch)]
    taken = [i for step in steps for i in step]
    assert len(set(taken)) == len(taken) and set(taken) <= set(range(order.samples))
    left_out = order.samples % order.batch if order.drop_last else 0
    assert len(taken) == order.samples - left_out
    assert all(len(step) == order.batch for step in (steps if order.drop_last else steps[:-1]))
    assert steps[-1]


def test_epochs_differ_and_seeds_differ_and_both_repeat() -> None:
    order = StepOrder(50, 5, seed=3)
    first, second = ([i for n in range(e * 10, e * 10 + 10) for i in order.step(n)] for e in (0, 1))
    assert first != second and sorted(first) == sorted(second) == list(range(50))
    assert order.step(7) == StepOrder(50, 5, seed=3).step(7)
    assert order.step(0) != StepOrder(50, 5, seed=4).step(0)
    assert first != list(range(50))


@pytest.mark.parametrize("together", [None, tuple((2 * i, 2 * i + 1) for i in range(20))], ids=["alone", "in groups"])
def test_an_epoch_is_shuffled_once(
    monkeypatch: pytest.MonkeyPatch, together: tuple[tuple[int, ...], ...] | None
) -> None:
    """However often its steps are asked for, and also where one who asks is an epoch ahead of another."""
    shuffled = []
    generator = np.random.PCG64
    monkeypatch.setattr(np.random, "PCG64", lambda seed: (shuffled.append(seed[1]), generator(seed))[1])
    order = StepOrder(40, 4, seed=3, together=together)
    ahead, behind = ([order.step(n) for n in range(start, start + 10)] for start in (10, 0))
    assert [order.step(n) for n in range(20)] == [*behind, *ahead]
    assert sorted(shuffled) == [0, 1]


def test_what_a_dropped_rest_leaves_out_changes_with_the_epoch() -> None:
    order = StepOrder(10, 4)
    taken = [{i for n in (2 * e, 2 * e + 1) for i in order.step(n)} for e in range(8)]
    assert all(len(part) == 8 for part in taken) and set.union(*taken) == set(range(10))


def test_without_shuffling_the_order_is_the_files() -> None:
    order = StepOrder(7, 3, shuffle=False, drop_last=False)
    assert [order.step(n) for n in range(4)] == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]


@given(orders(), st.integers(0, 20))
def test_a_step_has_the_same_samples_on_any_number_of_ranks(order: StepOrder, number: int) -> None:
    chosen = order.step(number)
    lengths, costs = list(range(1, order.samples + 1)), [float(i + 1) for i in range(order.samples)]
    for ranks in (1, 2, 3):
        assert_complete(plan_packs(chosen, lengths, costs, ranks, 200), chosen, ranks)
