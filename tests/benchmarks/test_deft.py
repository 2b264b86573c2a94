"""The table of the DEFT benchmark, from rounds as it writes them down."""

from __future__ import annotations

from typing import Any

from deft import summary


def a_round(number: int, diagonal: float, size: float, accepted: bool, random: float | None = None) -> dict[str, Any]:
    return {
        "round": number,
        "mined_by_kind": {"diagonal": 10 * number, "size": 2} if number else {},
        "accepted": accepted,
        "mined": {"diagonal": diagonal, "size": size},
        "random": {"diagonal": random, "size": 1.0} if random is not None else None,
        "p_mined_over_random": 0.01 if random is not None else None,
    }


def test_a_line_tells_what_the_last_accepted_round_reached_and_what_it_cost() -> None:
    rounds = [a_round(0, 0.0, 1.0, True), a_round(1, 0.75, 0.98, True, 0.05), a_round(2, 0.5, 1.0, False, 0.1)]
    kpi = {"kpi_before": {"diagonal": 0.25, "size": 1.0}, "kpi_after": {"diagonal": 0.5, "size": 0.875}}
    line = summary({"seed": 3, "rounds": rounds, **kpi})
    assert (line["seed"], line["rounds"], line["mined"], line["of the kind"]) == (3, 2, 34, 30)
    assert (line["selection before"], line["after"], line["random"], line["p"]) == (0, 75, 5, 0.01)
    assert round(line["least change of others"], 6) == -2
    assert (line["KPI before"], line["KPI after"], line["KPI, least change of others"]) == (25, 50, -12.5)


def test_a_loop_whose_rounds_were_rolled_back_ends_where_it_began() -> None:
    line = summary({"seed": 0, "rounds": [a_round(0, 0.1, 1.0, True), a_round(1, 0.9, 0.5, False, 0.9)]})
    assert (line["after"], line["least change of others"], line["p"]) == (10, 0, None)
    assert "KPI after" not in line
