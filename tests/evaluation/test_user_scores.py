"""A user's own score of each answer: a function in a process of its own, with a time limit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import ProblemError
from vidqa.evaluation.results import judged
from vidqa.evaluation.user_scores import function_recipe, require_function, user_scores


def items() -> list[dict[str, Any]]:
    answers = [("a", "door", "Yes", "yes"), ("b", "door", "No", "yes"), ("c", "count", "3", "4")]
    return [
        judged({"sample_id": name, "video_id": name, "kind": kind, "question": "?", "response": said, "gt": gt})
        for name, kind, said, gt in answers
    ]


def function(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(body)
    return f"{folder}/mine.py:score"


def test_a_number_or_several_are_averaged_over_all_and_by_kind(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    body = """
import numpy as np
from beside import HALF
def score(item):
    print("loud")
    if item["kind"] == "count":
        return {"near": np.float32(HALF), "exact": False}
    return {"exact": item["correct"]} if item["sample_id"] == "a" else None
"""
    scores = user_scores(function(tmp_path, body), items(), 60)
    assert (scores.problems, scores.values) == ([], [{"exact": 1.0}, {}, {"near": 0.5, "exact": 0.0}])
    table = scores.table(items())
    assert table["n_not_scored"] == 1
    assert table["scores"]["near"] == {"n": 1, "mean": 0.5, "by_kind": {"count": {"n": 1, "mean": 0.5}}}
    assert table["scores"]["exact"]["mean"] == 0.5 and table["scores"]["exact"]["by_kind"]["door"]["mean"] == 1.0
    plain = user_scores(function(tmp_path, "def score(item):\n    return len(item['response'])\n"), items(), 60)
    assert plain.table(items())["scores"] == {
        "score": {"n": 3, "mean": 2.0, "by_kind": {"count": {"n": 1, "mean": 1.0}, "door": {"n": 2, "mean": 2.5}}}
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def score(item):\n    return 1 / 0\n", "ZeroDivisionError"),
        ("def score(item):\n    return 'good'\n", "not a number"),
        ("def score(item):\n    return float('nan')\n", "ValueError"),
        ("def score(item):\n    return 10**400\n", "not a number"),
        ("def score(item):\n    return {str(i): i for i in range(99)}\n", "at most 32"),
        ("def score():\n    return 1\n", "TypeError"),
        ("other = 1\n", "no function score"),
        ("import os\ndef score(item):\n    os._exit(0)\n", "after 0 of 3 answers"),
        (
            "import os, sys\ndef score(item):\n    os.write(int(sys.argv[1]), b'[[\\n')\n    return 1\n",
            "is not from this program",
        ),
    ],
)
def test_what_a_function_does_wrong_is_a_warning_and_no_score(tmp_path: Path, body: str, message: str) -> None:
    scores = user_scores(function(tmp_path, body), items(), 60)
    (problem,) = scores.problems
    assert (problem.code, problem.severity, scores.values) == ("USER_FUNCTION", "warning", [])
    assert message in problem.message
    assert scores.table(items())["scores"] == {}


def test_a_function_ends_at_its_time_limit_with_all_that_it_began(tmp_path: Path) -> None:
    body = f"""
import os, time
def score(item):
    if os.fork() == 0:
        time.sleep(2)
        open({str(tmp_path / "late")!r}, "w")
        os._exit(0)
    time.sleep({{}})
    return 1
"""
    started = time.monotonic()
    late = user_scores(function(tmp_path, body.format(60)), items(), 1.5)
    assert "1.5 s were not enough for 3 answers" in late.problems[0].message
    forked = user_scores(function(tmp_path, body.format(0)), items(), 60)
    assert time.monotonic() - started < 30 and len(forked.values) == 3
    time.sleep(2.5)
    assert not os.path.exists(tmp_path / "late")


def test_a_recipe_holds_the_functions_name_and_content(tmp_path: Path) -> None:
    first = function_recipe(function(tmp_path, "def score(item):\n    return 1\n"))
    second = function_recipe(function(tmp_path, "def score(item):\n    return 2\n"))
    assert first["function"] == second["function"] == "mine.py:score" and first["sha256"] != second["sha256"]
    for wrong in (f"{tmp_path}/none.py:score", "mine.py", "mine.py:score#x"):
        with pytest.raises(ProblemError, match="USER_FUNCTION"):
            function_recipe(wrong)


def test_a_function_is_looked_for_without_running_its_file(tmp_path: Path) -> None:
    for body in ("from math import sqrt as score\nraise SystemExit\n", "score = lambda item: 1\n"):
        require_function(function(tmp_path, body))
    for body in ("def other(score):\n    return score\n", "print(score)\n", "def score(:\n"):
        with pytest.raises(ProblemError, match="USER_FUNCTION"):
            require_function(function(tmp_path, body))
