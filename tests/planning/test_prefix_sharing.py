"""Samples of one video are found, kept together in a step, and put into units that fit a pack."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tiny_world import tiny_data, tiny_model

from vidqa.data import load_records
from vidqa.planning.packing import StepOrder
from vidqa.planning.prefix_sharing import (
    group_tokens,
    groups_within_budget,
    prefix_groups,
    relative_cost,
    split_samples,
    workload,
)
from vidqa.planning.samples import Planner, Prompting, Sample


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    folder = tmp_path_factory.mktemp("sharing")
    root = tiny_data(folder)
    vision = SimpleNamespace(fps=None, nframes=5, total_pixels=None)
    planned, problems = Planner(tiny_model(folder), vision, Prompting("Be brief.")).plan(
        load_records(root / "annotations.json", root)
    )
    assert not problems
    return planned


def test_questions_about_one_video_are_one_group(samples: list[Sample]) -> None:
    found = prefix_groups(range(len(samples)), samples)
    assert found == [*((2 * clip, 2 * clip + 1) for clip in range(6)), (12,), (13,)]
    assert all(0 < samples[i].prefix < samples[i].length for i in range(13))
    assert samples[13].prefix == 0  # text alone shares nothing


def test_the_prefix_ends_before_anything_is_learned(samples: list[Sample]) -> None:
    assert all(sample.prefix + sample.supervised < sample.length for sample in samples)


def test_units_fit_the_budget_where_they_can(samples: list[Sample]) -> None:
    many = [replace(samples[0]) for _ in range(9)]
    budget = group_tokens((0, 1, 2, 3), many, int)
    found = groups_within_budget(range(9), many, int, budget)
    assert found == [(0, 1, 2, 3), (4, 5, 6, 7), (8,)]
    assert groups_within_budget(range(9), many, int, 1) == [(i,) for i in range(9)]


def test_the_work_of_a_unit_counts_its_video_once(samples: list[Sample]) -> None:
    first, second = samples[0], samples[1]
    shared, alone = workload((0, 1), samples), [workload((i,), samples) for i in (0, 1)]
    assert shared.tokens == first.length + second.length - first.prefix
    assert shared.patches == first.patches == alone[0].patches
    assert shared.supervised == first.supervised + second.supervised
    # Token by token: each sees its own sample up to itself; whole squares count both halves.
    tail = second.length - second.prefix
    assert shared.pairs == first.length**2 + second.length**2 - first.prefix**2
    assert shared.pairs == first.length**2 + 2 * first.prefix * tail + tail**2


def test_groups_follow_each_other_in_every_epoch(samples: list[Sample]) -> None:
    together = tuple(prefix_groups(range(len(samples)), samples))
    order = StepOrder(len(samples), 4, seed=1, drop_last=False, together=together)
    for epoch in range(3):
        first = epoch * order.steps_per_epoch
        seen = [i for step in range(first, first + order.steps_per_epoch) for i in order.step(step)]
        assert sorted(seen) == list(range(len(samples)))
        assert all(abs(seen.index(2 * clip) - seen.index(2 * clip + 1)) == 1 for clip in range(6))
    assert order.step(0) != order.step(order.steps_per_epoch)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_that_answer_carry_equal_loads(samples: list[Sample], ranks: int) -> None:
    """Every other clip is asked about nine times: dealt out in turn, one rank would have most of the questions."""
    asked = [
        replace(samples[2 * (clip % 6)], length=1000 - clip, prefix=990 - clip, prefix_key=b"%d" % clip)
        for clip in range(24)
        for _ in range(1 if clip % 2 else 9)
    ]
    dealt = split_samples(asked, ranks)
    assert sorted(map(id, asked)) == sorted(id(sample) for mine in dealt for sample in mine)
    loads, dearest = [], 0.0
    for mine in dealt:
        groups = prefix_groups(range(len(mine)), mine)
        costs = [relative_cost(workload(unit, mine)) for unit in groups]
        loads.append(sum(costs))
        dearest = max(dearest, *costs)
        assert all(unit == tuple(range(unit[0], unit[-1] + 1)) for unit in groups), "one prefix stays together"
        assert [sample.length for sample in mine] == sorted((sample.length for sample in mine), reverse=True)
    assert sum(len({sample.prefix_key for sample in mine}) for mine in dealt) == 24
    assert max(loads) - min(loads) <= 0.02 * max(loads) < dearest
