"""A gate on lost accuracy: what is judged, what an interval says of it, and how many questions would tell."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from programs import run_here
from test_comparison import RECIPE, folder, items

from vidqa.core.cli import SKILL_ROOT
from vidqa.evaluation.comparison import Comparison, Difference, compare, judge_drop, side_of
from vidqa.evaluation.pages import comparison_page, comparison_text

RIGHT = [1] * 100
THREE_WRONG = [0, 1, 0, 1, 0, *[1] * 95]  # of the even ones: kind k0 of two


def compared(tmp_path: Path, after: list[int], kinds: int) -> Comparison:
    before = folder(tmp_path / "before", items(RIGHT, kinds=kinds), RECIPE)
    return compare(before, folder(tmp_path / "after", items(after, kinds=kinds), RECIPE))


def test_a_loss_is_judged_overall_and_in_large_slices(tmp_path: Path) -> None:
    found = compared(tmp_path, THREE_WRONG, 2)
    gate = judge_drop(found, 3.0)
    assert [(drop.name, drop.n, drop.points) for drop in gate.drops] == [
        ("overall", 100, 3.0),
        ("k0", 50, 6.0),
        ("k1", 50, 0.0),
    ]
    assert [drop.name for drop in gate.failed] == ["k0"], "3.0 points are allowed, 6.0 are not"
    assert judge_drop(found, 6.0).failed == [] and len(judge_drop(found, 2.9).failed) == 2
    assert gate.drops[0].ci95 == tuple(round(-100 * limit, 4) for limit in reversed(found.whole.ci95))


def test_slices_of_fewer_than_50_questions_are_not_judged(tmp_path: Path) -> None:
    gate = judge_drop(compared(tmp_path, THREE_WRONG, 3), 3.0)
    assert (gate.small, len(gate.drops), gate.failed) == (3, 1, [])


def of(n: int, change: float, ci95: tuple[float, float]) -> Difference:
    return Difference(n, n, 0.9, 0.9 + change, change, ci95, 10, 18, 0.1, 0.1, 0.1)


def whole(difference: Difference) -> Comparison:
    side = side_of(items([1]))
    return Comparison(("a", "b"), difference, "kind", [], [], [], (side, side), [])


@pytest.mark.parametrize(
    ("n", "ci95", "max_drop", "needed"),
    [
        (400, (-0.04, 0.0), 1.0, 3270),  # half a width of 2 points: (2.8016 / 1.96 x 2)^2 = 8.173 times as many
        (400, (-0.04, 0.0), 2.0, 818),
        (400, (0.0, 0.0), 1.0, None),
        (400, (-0.04, 0.0), 0.0, None),
    ],
)
def test_questions_that_would_tell(n: int, ci95: tuple[float, float], max_drop: float, needed: int | None) -> None:
    (drop,) = judge_drop(whole(of(n, -0.02, ci95)), max_drop).drops
    assert (drop.needed, drop.points) == (needed, 2.0) and drop.is_too_large == (max_drop < 2.0)


def test_questions_that_would_tell_show_a_loss_four_times_of_five() -> None:
    """By simulation of independent questions of which a tenth change sides."""
    import numpy as np

    lost, share, random = 0.02, 0.1, np.random.default_rng(0)
    half = 1.95996 * math.sqrt(share / 1000)
    (drop,) = judge_drop(whole(of(1000, -lost, (-lost - half, -lost + half))), 100 * lost).drops
    counts = random.multinomial(drop.needed or 0, [(share + lost) / 2, (share - lost) / 2, 1 - share], 4000)
    change, changed = counts[:, 1] - counts[:, 0], counts[:, 0] + counts[:, 1]
    told = (change + 1.95996 * np.sqrt(changed) < 0).mean()
    assert 0.77 < told < 0.83


def test_the_script_fails_by_its_exit_code_and_says_why_everywhere(tmp_path: Path) -> None:
    found = compared(tmp_path, THREE_WRONG, 2)
    script = [sys.executable, str(SKILL_ROOT / "scripts/compare.py"), str(tmp_path / "before"), str(tmp_path / "after")]
    page = tmp_path / "page.html"
    done = run_here([*script, "--max-drop", "3", "--json", "--html", str(page)], cwd=tmp_path)
    result = json.loads(done.stdout)
    gate = judge_drop(found, 3.0)
    assert done.returncode == 3 and [problem["code"] for problem in result["problems"]] == ["COMPARISON_WORSE"]
    assert result["data"]["gate"] == json.loads(json.dumps(gate.as_dict())) and not result["data"]["gate"]["passed"]
    line = gate.lines[2]
    assert line.startswith("k0: 6.0 points lost (95 %: ") and "would tell a loss of 3 from none" in line
    for text in (page.read_text(), comparison_text(found, gate), result["problems"][0]["message"]):
        assert all(each in text for each in gate.lines)
    assert "At most" not in comparison_page(found) and "more is lost" not in comparison_text(found)
    fine = run_here([*script, "--max-drop", "6"], cwd=tmp_path)
    assert fine.returncode == 0 and "no more is lost than 6 points allow" in fine.stdout
    for wrong in ("-1", "many"):
        assert run_here([*script, "--max-drop", wrong], cwd=tmp_path).returncode == 2
