"""The AutoML decision: policy, words, what the bank declares and holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.spec.route import route_train


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "references").mkdir()
    (tmp_path / "schemas/train.schema.json").write_text("{}")
    (tmp_path / "references/spec_template_train.yaml").write_text("train: {}\n")
    (tmp_path / "references/skill_info.yaml").write_text("automl_enabled: true\n")
    return tmp_path


def test_train_goes_to_automl_and_says_that_it_cannot_run(bank: Path) -> None:
    made = route_train("auto", "fine-tune on my videos", bank)
    assert (made.decision, made.runnable) == ("automl", False) and "no search program" in made.reason


@pytest.mark.parametrize(
    "words",
    [
        "turn off AutoML",
        "Please DISABLE automl for this",
        "no HPO",
        "a plain training run",
        "turn AutoML off",
        "without HPO",
    ],
)
def test_words_that_turn_it_off(bank: Path, words: str) -> None:
    made = route_train("auto", words, bank)
    assert (made.decision, made.runnable) == ("direct", True)
    assert route_train("on", words, bank).decision == "automl"  # an explicit policy outweighs words


@pytest.mark.parametrize(
    "words", ["how does AutoML work", "there is no HPOLIST here", "explain training plainly", "turn offers"]
)
def test_words_that_do_not(bank: Path, words: str) -> None:
    assert route_train("auto", words, bank).decision == "automl"


def test_policy_off_is_direct_whatever_is_missing(tmp_path: Path) -> None:
    assert route_train("off", "", tmp_path).decision == "direct"


def test_not_enabled_is_direct(bank: Path) -> None:
    (bank / "references/skill_info.yaml").write_text("automl_enabled: false\n")
    assert route_train("auto", "", bank).decision == "direct"
    assert route_train("on", "", bank).decision == "automl"


@pytest.mark.parametrize("name", ["schemas/train.schema.json", "references/spec_template_train.yaml"])
@pytest.mark.parametrize("content", [None, "{ ["])
def test_a_missing_or_broken_contract_file_is_named(bank: Path, name: str, content: str | None) -> None:
    (bank / name).unlink() if content is None else (bank / name).write_text(content)
    made = route_train("auto", "", bank)
    assert (made.decision, made.runnable) == ("automl", False)
    assert [(p.code, p.exit_code) for p in made.problems] == [("AUTOML_NOT_RUNNABLE", 4)]
    assert name in made.reason
    assert route_train("off", "", bank).decision == "direct"
