"""Charts: where numbers land, which of many points stay, and what the axes say."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from vidqa.core.pages.chart import MOST_POINTS, Line, Mark, draw, smoothed, thinned, tick_text, ticks


def places(path: str) -> list[tuple[float, float]]:
    words = path.replace("M", "").replace("L", "").split()
    return [(float(x), float(y)) for x, y in zip(words[::2], words[1::2], strict=True)]


def test_points_land_between_the_edges_in_proportion() -> None:
    drawn = draw("c", [Line("a", [(0, 0.0), (5, 5.0), (10, 10.0)])], from_zero=True)
    assert drawn is not None
    (x0, y0), (x1, y1), (x2, y2) = places(str(drawn["lines"][0]["path"]))
    assert (x0, x2) == (0, drawn["width"]) and x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y0 == drawn["height"] and 0 < y2 < y1 < y0 and y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    zero = next(tick for tick in drawn["y_ticks"] if tick["text"] == "0")
    five = next(tick for tick in drawn["y_ticks"] if tick["text"] == "5")
    assert (zero["at"], five["at"]) == pytest.approx((y0, y1), abs=0.1)


def test_a_wide_span_gets_a_logarithmic_axis_where_it_may() -> None:
    points = [(n, 10.0 ** (-n)) for n in range(5)]
    drawn = draw("c", [Line("a", points)], may_be_log=True)
    assert drawn is not None
    heights = [y for _, y in places(str(drawn["lines"][0]["path"]))]
    steps = [b - a for a, b in pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 4, abs=0.2)
    assert {tick["text"] for tick in drawn["y_ticks"]} == {"1", "0.1", "0.01", "1e-3", "1e-4"}


def test_a_peak_among_many_points_stays() -> None:
    points = [(float(n), math.sin(n / 50)) for n in range(100_000)]
    points[77_777] = (77_777.0, 50.0)
    kept = thinned(points)
    assert len(kept) <= MOST_POINTS + 2 and (77_777.0, 50.0) in kept and kept == sorted(kept)


def test_what_is_not_finite_is_no_point_and_nothing_is_no_chart() -> None:
    drawn = draw("c", [Line("a", [(1, math.nan), (2, 3.0), (3, math.inf)])])
    assert drawn is not None and len(places(str(drawn["lines"][0]["path"]))) == 1
    assert draw("c", [Line("a", [(1, math.nan)]), Line("b", [])]) is None


def test_a_first_step_that_compiles_does_not_flatten_the_others() -> None:
    points = [(1.0, 90.0), *((float(n), 0.5 + 0.01 * (n % 7)) for n in range(2, 200))]
    drawn = draw("c", [Line("a", points)], from_zero=True, capped=True)
    assert drawn is not None and drawn["note"] == "Beyond the upper edge: step 1, up to 90."
    heights = [y for _, y in places(str(drawn["lines"][0]["path"]))]
    assert heights[0] < heights[1] < drawn["height"] / 2  # the usual steps use the room


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 10, False, [0, 2, 4, 6, 8, 10]),
        (1, 3, True, [1, 2, 3]),
        (0.93, 1.12, False, [0.95, 1.0, 1.05, 1.1]),
        (0, 98_000, True, [0, 20_000, 40_000, 60_000, 80_000]),
    ],
)
def test_ticks_are_round(low: float, high: float, whole: bool, expected: list[float]) -> None:
    assert ticks(low, high, 5, whole=whole) == pytest.approx(expected)


def test_numbers_are_short() -> None:
    said = {0: "0", 1200: "1,200", 0.05: "0.05", 1e-5: "1e-5", 2.5e-6: "2.5e-6", 3.14159: "3.142", 7.0: "7"}
    assert {value: tick_text(value) for value in said} == said


def test_smoothing_keeps_a_line_and_its_length() -> None:
    line = [(float(n), 2.0 * n) for n in range(200)]
    assert [x for x, _ in smoothed(line)] == [x for x, _ in line]
    assert [y for _, y in smoothed(line)[:190]] == pytest.approx([y for _, y in line[:190]])
    assert smoothed(line)[-1][1] == pytest.approx(2.0 * (199 + 195) / 2)  # at the end, of those before it
    saw = [(float(n), n % 2 * 1.0) for n in range(200)]
    assert all(abs(y - 0.5) < 0.1 for _, y in smoothed(saw)[20:180])


def test_marks_of_one_name_share_a_place_in_the_legend() -> None:
    marks = [Mark(2, "epoch 1", "epoch"), Mark(4, "epoch 2", "epoch"), Mark(4, "best", "best", "good")]
    drawn = draw("c", [Line("a", [(1, 1.0), (4, 2.0)])], marks=marks)
    assert drawn is not None
    assert drawn["legend"] == [("one", "a"), ("mark", "epoch"), ("mark good", "best")]


def test_the_axis_and_every_point_say_what_x_counts() -> None:
    points = [(0.0, 10.0), *((float(n), 0.5) for n in range(1, 40))]
    drawn = draw("c", [Line("KPI set", points, dots=True)], x_name="round", capped=True)
    assert (
        drawn is not None and drawn["x_name"] == "round" and drawn["note"].startswith("Beyond the upper edge: round 0")
    )
    assert drawn["lines"][0]["dots"][3]["text"] == "KPI set, round 3: 0.5"
