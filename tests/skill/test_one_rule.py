"""When one score is called better than another is said in one place, and the other pages point to it."""

from __future__ import annotations

import re

from vidqa.core.cli import SKILL_ROOT

RULE = SKILL_ROOT / "references/evaluation.md"


def test_only_one_page_says_when_a_score_is_better() -> None:
    pages = [*(SKILL_ROOT / "references").glob("*.md"), *(SKILL_ROOT / "workflow").rglob("*.md")]
    saying = [page for page in pages if re.search(r"interval[^.]*overlap", page.read_text(encoding="utf-8"))]
    assert saying == [RULE]
    assert "## Better, worse, or no significant difference" in RULE.read_text(encoding="utf-8")


def test_the_loop_compares_by_that_rule() -> None:
    compared = (SKILL_ROOT / "workflow/deft/deft.md").read_text(encoding="utf-8").split("## How a round is decided")[1]
    assert "(../../references/evaluation.md)" in compared and "interval lies" not in compared
