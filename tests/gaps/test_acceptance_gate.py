"""The gate of a round: how often it sees a kind fall that did not, and how often one that did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cheap_stages import Cheap, installed, to_the_end, wanted

from vidqa.core.problem import ProblemError
from vidqa.evaluation import comparison
from vidqa.evaluation.comparison import Pair, corrected, difference
from vidqa.gaps.deft.acceptance import AuditQueue, ComparisonTable, Slice, fallen, read_table, too_small, verdict
from vidqa.gaps.deft.commands import create, go_on
from vidqa.gaps.deft.loop import Loop, PendingStage
from vidqa.gaps.problems import DEFT_GATE

KINDS, POINTS = 8, 2.0
CHANGES = 0.15  # share of answers that another training changes in either direction


def simulated_round(
    random: np.random.Generator, videos: int, questions: int, falls: Mapping[int, float] | None = None
) -> list[Slice]:
    """The kinds in a comparison of two evaluations. Answers change at random, as often for the better as for the worse.
    In the kinds of `falls` that share of the questions is answered wrong in addition."""
    slices = []
    for kind in range(KINDS):
        is_right = random.random((2, videos, questions)) < 0.7
        stays = random.random((videos, questions)) >= 2 * CHANGES
        is_right[1][stays] = is_right[0][stays]
        is_right[1][random.random((videos, questions)) < (falls or {}).get(kind, 0.0)] = False
        pairs: list[Pair] = [
            tuple({"video_id": f"{video}.mp4", "correct": bool(is_right[side, video, at])} for side in (0, 1))
            for video in range(videos)
            for at in range(questions)
        ]
        slices.append(difference(pairs, f"kind {kind}"))
    return [Slice.model_validate(asdict(part)) for part in corrected(slices)]


@cache
def share_of_rounds(videos: int, questions: int, fall: float = 0.0, rounds: int = 60) -> float:
    """Share of simulated rounds in which kind 0 (`fall` above 0), or any kind, is one that fell."""
    random, count = np.random.default_rng(7), 0
    for _ in range(rounds):
        names = [part.name for part in fallen(simulated_round(random, videos, questions, {0: fall}), POINTS)]
        count += "kind 0" in names if fall else bool(names)
    return count / rounds


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the draws of a real comparison, for speed."""
    monkeypatch.setattr(comparison, "DRAWS", 1000)


@pytest.mark.parametrize("videos_and_questions", [(1, 4), (2, 3), (5, 2), (8, 1), (20, 1), (40, 1)], ids=str)
def test_without_a_true_change_at_most_one_round_in_twenty_has_a_kind_that_fell(
    few_draws: None, videos_and_questions: tuple[int, int]
) -> None:
    assert share_of_rounds(*videos_and_questions) <= 0.05


@pytest.mark.parametrize(
    ("videos", "fall", "least"), [(20, 0.9, 0.8), (50, 0.55, 0.9), (100, 0.35, 0.9)], ids=["20", "50", "100"]
)
def test_a_kind_that_fell_is_one_that_fell(few_draws: None, videos: int, fall: float, least: float) -> None:
    assert share_of_rounds(videos, 1, fall) >= least


BETTER = {"verdict": "better", "samples": {"fixed": [], "broken": []}}
WHOLE = {"before": 0.5, "after": 0.7, "difference": 0.2, "p_value": 0.001, "fixed": 30, "broken": 10, "n": 100}
DOOR = {"name": "door", "n_videos": 40, "difference": -0.1, "ci95": [-0.2, -0.01], "p_corrected": 0.04}


def compared(*slices: dict[str, Any]) -> ComparisonTable:
    return ComparisonTable.model_validate({**BETTER, "whole": WHOLE, "slices": list(slices)})


def test_one_broken_question_of_one_video_rolls_no_round_back_and_is_said() -> None:
    one_video = {"name": "gate", "n_videos": 1, "difference": -1.0, "ci95": [-1.0, -1.0], "p_corrected": 1.0}
    accepted, why = verdict(compared(one_video), 3, POINTS)
    assert accepted and "Too few videos to judge a fall: gate by 100.0 points." in why
    assert not verdict(compared(DOOR), 3, POINTS)[0]
    assert verdict(compared({**DOOR, "p_corrected": 0.2}), 3, POINTS) == verdict(compared(), 3, POINTS)


def test_a_comparison_of_an_earlier_version_is_read() -> None:
    older = {**BETTER, "verdict": "not told apart", "whole": WHOLE, "slices": []}
    assert ComparisonTable.model_validate(older).verdict == "no significant difference"


def test_the_fewest_videos_that_can_prove_a_fall_are_those_of_which_all_have_fallen() -> None:
    for kinds, fewest in ((1, 6), (8, 9), (20, 10)):
        for videos in (fewest - 1, fewest):
            everything: list[Pair] = [
                ({"video_id": str(video), "correct": True}, {"video_id": str(video), "correct": False})
                for video in range(videos)
            ]
            same: list[Pair] = [({"video_id": "a", "correct": True}, {"video_id": "a", "correct": True})]
            slices = corrected([difference(everything, "fell"), *(difference(same) for _ in range(kinds - 1))])
            parts = [Slice.model_validate(asdict(part)) for part in slices]
            assert [part.name for part in fallen(parts, POINTS)] == ["fell"] * (videos == fewest)
            assert [part.name for part in too_small(parts, POINTS)] == ["fell"] * (videos < fewest)


DAMAGED = [
    "{",
    "[]",
    "{}",
    json.dumps({**BETTER, "whole": {}, "slices": []}),
    json.dumps({**BETTER, "whole": WHOLE, "slices": [{"name": "door"}]}),
    json.dumps({**BETTER, "whole": {**WHOLE, "p_value": "0.1"}, "slices": []}),
    json.dumps({**BETTER, "whole": {**WHOLE, "p_value": float("nan")}, "slices": []}),
    json.dumps({**BETTER, "whole": WHOLE, "slices": [], "verdict": "good"}),
]


def test_a_damaged_comparison_is_a_gate_that_names_the_file_and_its_deletion_lets_the_loop_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, Cheap())
    loop, _ = create(tmp_path / "loop", wanted(tmp_path, "stop.rounds=1"))
    table = loop.folder / "round_1" / "comparison.json"
    for text in DAMAGED:
        while not (isinstance(pending := loop.pending(), PendingStage) and pending.stage.name == "decide"):
            loop.next()
        table.write_text(text)
        told = go_on(loop.folder, None, once=True)
        assert {(problem.code, problem.where) for problem in told.problems} == {(DEFT_GATE.name, str(table))}, text
        assert told.data["ending"]["rule"] == "hard gate"
        table.unlink()
        loop = Loop(loop.folder)
    assert to_the_end(loop).rule == "rounds"


@pytest.mark.parametrize("text", ["", "{}", '{"items": [{}]}', '{"items": [{"probability": "high", "verdict": ""}]}'])
def test_a_damaged_audit_queue_is_named_and_asks_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(ProblemError, match="DEFT_GATE"):
        read_table(tmp_path / "audit.json", AuditQueue)
