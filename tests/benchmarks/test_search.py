"""The comparison of search algorithms, in small: every row is there, and a recorded table is searched as it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest


@pytest.mark.slow
def test_every_algorithm_is_compared_on_a_function_with_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import search

    monkeypatch.setattr(sys, "argv", ["search.py", "--tiny", "--out", str(tmp_path)])
    search.main()
    (call,) = json.loads((tmp_path / "results/search.json").read_text())
    names = [name for name, *_ in search.rows(6, search.WHOLE) if not name.startswith(search.TWO)]
    assert [each["search"] for each in call["rows"]] == names and {each["function"] for each in call["rows"]} == {
        "branin"
    }
    assert all(each["median"] >= 0 for each in call["rows"])
    assert all((each["p"] is not None) == bool(each["against"]) for each in call["rows"])


def test_the_known_functions_have_the_minima_that_the_regret_is_counted_from() -> None:
    from search_functions import FUNCTIONS, area

    branin, hartmann, mixed, trade = FUNCTIONS
    assert branin.value({"x": 3.14159, "y": 2.275}) == pytest.approx(branin.least, abs=1e-5)
    best = [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]
    assert hartmann.value({f"x{place}": each for place, each in enumerate(best)}) == pytest.approx(-3.32237, abs=1e-5)
    assert mixed.value({"rate": 1e-4, "depth": 8, "epochs": 12, "kind": "bent", "bend": 0.3}) == pytest.approx(0)
    best_pairs = [
        trade.pair({"x0": first / 2000} | {f"x{place}": 0.0 for place in range(1, 6)}) for first in range(2001)
    ]
    assert -area(best_pairs) == pytest.approx(trade.least, abs=1e-3)


def test_a_recorded_table_answers_with_the_loss_at_each_rung(tmp_path: Path) -> None:
    from search_functions import recorded

    rows = [
        {"rate": rate, "rank": rank, "step": step, "loss": 1.0 - rate * step / 10 - rank / 100}
        for rate in (0.1, 0.2)
        for rank in (4, 8)
        for step in (9, 27)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "table.parquet")
    function = recorded(tmp_path / "table.parquet")
    assert [(each.name, each.kind, each.options) for each in function.space.parameters] == [
        ("rate", "float", (0.1, 0.2)),
        ("rank", "int", (4, 8)),
    ]
    early, late = (function.training(None, {"rate": 0.2, "rank": 8}, 0, steps)[1][0] for steps in (9, 27))
    assert (early, late) == pytest.approx((0.74, 0.38)) and (function.shortest, function.steps) == (9, 27)
    assert function.least == pytest.approx(late)
