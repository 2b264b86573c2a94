"""The set that the workflow of reinforcement learning learns from, and its last screen."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from demo import rl_set
from demo.scenes import COLORS
from demo.summary import rl_summary
from vidqa.data import load_records
from vidqa.evaluation.rewards import Completion, accuracy, format


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rl_set, "SFT_CLIPS", 96)
        patch.setattr(rl_set, "EVAL_CLIPS", 16)
        rl_set.write_rl_set(folder, 24)
    return folder


def pairs(data: Path, split: str) -> Counter[tuple[str, str]]:
    """How often each (color, letter) is the reference."""
    records = json.loads((data / split / "annotations.json").read_text())
    answers = [record["conversations"][1]["value"] for record in records]
    return Counter((answer.split("<think>")[1].split("<")[0], answer.split("<answer>")[1][0]) for answer in answers)


def test_the_right_letters_are_even_in_what_is_rewarded_and_measured(data: Path) -> None:
    for split, each in (("train", 6), ("eval", 4)):
        assert pairs(data, split) == {pair: each for pair in zip(COLORS, rl_set.LETTERS, strict=True)}


def test_letters_of_the_first_training_do_not_depend_on_colors(data: Path) -> None:
    counts = pairs(data, "sft")
    assert len(counts) == 16  # every color with every letter
    right = sum(counts[pair] for pair in zip(COLORS, rl_set.LETTERS, strict=True))
    assert right / counts.total() == pytest.approx(0.25, abs=0.1)


def test_the_references_themselves_get_both_rewards(data: Path) -> None:
    for record in load_records(data / "train" / "annotations.json", data / "train"):
        right = Completion(record, record.turns[-1].text)
        wrong = Completion(record, rl_set.answer("red", "ABCD"["BCDA".index(record.turns[-1].text[-10])]))
        assert (accuracy(right), format(right)) == (1.0, 1.0)
        assert (accuracy(wrong), format(wrong)) == (0.0, 1.0)


def test_the_last_screen_has_accuracies_verdict_and_pages(tmp_path: Path) -> None:
    events = [{"step": 1, "reward/accuracy": 0.25}, {"step": 1, "val/accuracy": 0.3}, {"step": 2, "reward/accuracy": 1}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    comparison = {"whole": {"before": 0.25, "after": 0.975}, "sentence": "better"}
    lines = rl_summary(comparison, tmp_path, tmp_path / "comparison.html").splitlines()
    assert lines[0].split(maxsplit=1) == ["accuracy", "25.0 % after SFT, 97.5 % after RL"]
    assert lines[1].split() == ["verdict", "better"]
    assert "25.0 % of completions were right in step 1, 100.0 % in step 2" in lines[2]
    assert str(tmp_path / "comparison.html") in lines[3] and str(tmp_path / "report.html") in lines[4]
