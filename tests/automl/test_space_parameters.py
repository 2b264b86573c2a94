"""A parameter's place in the unit interval: there and back, as often as it is meant, never outside."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vidqa.automl.parameters import Condition, Parameter

KINDS = [
    Parameter("free", "float", -5.0, 10.0),
    Parameter("free", "float", 1e-6, 1e-3, log=True),
    Parameter("stepped", "float", 0.0, 1.0, step=0.25),
    Parameter("whole", "int", 1, 20),
    Parameter("whole", "int", 1, 20, log=True),
    Parameter("whole", "int", 4, 30, step=4),
    Parameter("powers", "int", 1, 256, log=True, options=(1, 2, 4, 8, 16, 32, 64, 128, 256)),
    Parameter("named", "categorical", options=("a", "b", ["c"], None), weights=(1, 2, 0, 3)),
    Parameter("truth", "categorical", options=(True, False)),
]


@pytest.mark.parametrize("each", KINDS, ids=lambda each: f"{each.name}-{each.kind}-{each.log}")
@given(unit=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_place_gives_a_value_of_the_search_and_the_value_gives_its_place(each: Parameter, unit: float) -> None:
    value = each.at(unit)
    assert each.holds(value)
    assert each.at(each.unit(value)) == value
    if each.count is None:
        assert each.unit(value) == pytest.approx(unit, abs=1e-4)


@pytest.mark.parametrize("each", KINDS, ids=lambda each: f"{each.name}-{each.kind}-{each.log}")
def test_every_value_in_steps_is_reached_and_the_ends_are_no_rarer_than_others(each: Parameter) -> None:
    if each.count is None:
        assert (each.at(0), each.at(1)) == (each.low, each.high)
        return
    found = Counter(repr(each.at((place + 0.5) / 10_000)) for place in range(10_000))
    assert len(found) == each.count - sum(weight == 0 for weight in each.weights)
    if not each.log and not each.weights:
        assert max(found.values()) - min(found.values()) <= 2


def test_values_outside_are_taken_as_the_nearest_and_strange_ones_as_the_middle() -> None:
    rate, rank, name = KINDS[1], KINDS[6], KINDS[7]
    assert (rate.unit(1.0), rate.unit(0.0), rate.unit("x")) == (1.0, 0.0, 0.5)
    assert rank.at(rank.unit(5)) == 4 and rank.at(rank.unit(1000)) == 256
    assert name.unit("z") == 0.5 and not name.holds("z") and not KINDS[3].holds(True)
    assert name.middle() is None and KINDS[8].holds(True) and not KINDS[8].holds(1)


def test_a_condition_holds_beside_its_parent_only() -> None:
    condition = Condition("decay", ("cosine",))
    assert condition.holds({"decay": "cosine"}) and not condition.holds({"decay": "none"}) and not condition.holds({})
