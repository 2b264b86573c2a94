"""Line charts as inline SVG: this module computes coordinates, and `chart.html.j2` draws them in a page.

{{ chart(drawn) }}          with drawn = draw("Loss", [Line("training", points)]); None without points
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

Point = tuple[float, float]
Drawn = dict[str, Any]  # input of `chart.html.j2`, in the units of its view box

MOST_POINTS = 600  # of one line; a longer line keeps the lowest and highest point of each section
SMOOTHED = 0.04  # averaging window, as a share of the points
MOST_DOTS = 120  # up to so many points, each gets a dot that shows its value
LOG_FROM = 30  # ratio of the largest to the smallest value above which a logarithmic axis is used, if allowed
WIDTH, HEIGHT = 1000, 200  # units of the plot, which a page scales


@dataclass(frozen=True)
class Line:
    """Points sorted by x. `look` is one, two, three or pale; with `dots` each point shows its value. Lines of one name
    and look, such as the ends of an interval, share a legend entry."""

    name: str
    points: Sequence[Point]
    look: str = "one"
    dots: bool = False


@dataclass(frozen=True)
class Mark:
    """An event at `x`; `look` is empty, good or warn. Marks of one `name` share a legend entry."""

    x: float
    text: str
    name: str
    look: str = ""


@dataclass(frozen=True)
class Axis:
    """A mapping from values to coordinates; `first` and `last` are the coordinates of `low` and `high`."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def at(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)

    def tick(self, value: float) -> dict[str, Any]:
        return {"at": self.at(value), "text": tick_text(value)}


def draw(
    name: str,
    lines: Sequence[Line],
    *,
    marks: Sequence[Mark] = (),
    x_name: str = "step",
    from_zero: bool = False,
    may_be_log: bool = False,
    capped: bool = False,
    note: str = "",
) -> Drawn | None:
    """Draw the finite points of `lines`; None if there are none. `x_name` is the unit of x. With `capped` a few values
    far above all others are drawn at the upper edge, and the note says so."""
    lines = [Line(curve.name, _finite(curve.points), curve.look, curve.dots) for curve in lines]
    lines = [curve for curve in lines if curve.points]
    if not lines:
        return None
    x_of, y_of = _x_axis(lines, marks), _y_axis(lines, from_zero, may_be_log, capped)
    beyond = sorted({x for line in lines for x, y in line.points if y > y_of.high})
    if beyond:
        top = max(y for line in lines for _, y in line.points)
        steps = f"{x_name} {tick_text(beyond[0])}" if len(beyond) == 1 else f"{len(beyond)} {x_name}s"
        note = f"Beyond the upper edge: {steps}, up to {tick_text(top)}. {note}".rstrip()
    named = [(line.look, line.name) for line in lines] + [(f"mark {mark.look}".rstrip(), mark.name) for mark in marks]
    named = list(dict.fromkeys(named))
    return {
        "name": name,
        "x_name": x_name,
        "width": WIDTH,
        "height": HEIGHT,
        "x_ticks": [x_of.tick(value) for value in ticks(x_of.low, x_of.high, 7, whole=True)],
        "y_ticks": [y_of.tick(value) for value in _y_values(y_of)],
        "marks": [{"at": x_of.at(mark.x), "text": mark.text, "look": mark.look} for mark in marks],
        "lines": [_drawn(line, x_of, y_of, x_name) for line in lines],
        "legend": named if len(named) > 1 else [],
        "note": note,
    }


def _drawn(line: Line, x_of: Axis, y_of: Axis, x_name: str) -> dict[str, Any]:
    points = thinned(line.points)
    path = " ".join(f"{'L' if number else 'M'}{x_of.at(x)} {y_of.at(y)}" for number, (x, y) in enumerate(points))
    shown = points if (line.dots and len(points) <= MOST_DOTS) or len(points) == 1 else []
    dots = [
        {"x": x_of.at(x), "y": y_of.at(y), "text": f"{line.name}, {x_name} {tick_text(x)}: {y:.6g}"} for x, y in shown
    ]
    return {"look": line.look, "path": path, "dots": dots}


def _x_axis(lines: Sequence[Line], marks: Sequence[Mark]) -> Axis:
    places = [x for line in lines for x in (line.points[0][0], line.points[-1][0])] + [mark.x for mark in marks]
    low, high = min(places), max(places)
    return Axis(low, high if high > low else low + 1, 0, WIDTH)


def _y_axis(lines: Sequence[Line], from_zero: bool, may_be_log: bool, capped: bool) -> Axis:
    values = sorted(y for line in lines for _, y in line.points)
    low, high = values[0], values[-1]
    if capped and len(values) >= 20:
        usual = values[int(0.96 * (len(values) - 1))]
        high = usual * 1.6 if 0 < usual * 3 < high else high
    log = may_be_log and low > 0 and high / low > LOG_FROM
    if from_zero and low > 0:
        low = 0.0
    if not log:
        room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        low, high = low if low == 0 else low - room, high + room
    return Axis(low, high, HEIGHT, 0, log)


def _y_values(axis: Axis) -> list[float]:
    if not axis.log:
        return ticks(axis.low, axis.high, 5)
    decades = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    steps = (1, 2, 5) if axis.high / axis.low < 300 else (1,)
    return [value for power in decades for step in steps if axis.low <= (value := step * 10.0**power) <= axis.high]


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, about `most` of them; with `whole` integers."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    if whole:
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """Format a number briefly: 1,200, 0.05, 2e-5."""
    if value == 0:
        return "0"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"
    if abs(value) >= 0.01:
        return f"{value:.4g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS points: the lowest and highest of each section, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return list(points)
    stretch = -(-len(points) // (MOST_POINTS // 2))
    thin: list[Point] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        ends = {part.index(min(part, key=lambda p: p[1])), part.index(max(part, key=lambda p: p[1]))}
        thin += [part[at] for at in sorted(ends)]
    return thin


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Centered moving average over a SMOOTHED share of the points. Near the start, where a loss falls steeply, the
    window shrinks on both sides; near the end only on the right."""
    around = round(len(points) * SMOOTHED / 2)
    sums = [0.0, *accumulate(y for _, y in points)]
    smooth = []
    for at, (x, _) in enumerate(points):
        before, after = min(around, at), min(around, at, len(points) - 1 - at)
        smooth.append((x, (sums[at + after + 1] - sums[at - before]) / (before + after + 1)))
    return smooth


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
