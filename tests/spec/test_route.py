"""The AutoML decision: policy, words, what the skill declares and holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.spec.route import route_train


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "references").mkdir()
    (tmp_path / "schemas/train.schema.json").write_text("{}")
    (tmp_path / "references/spec_template_train.yaml").write_text("train: {}\n")
    (tmp_path / "references/skill_info.yaml").write_text("automl_enabled: true\n")
    return tmp_path


def test_a_plain_request_is_trained_directly_with_a_notice_that_there_is_no_search(root: Path) -> None:
    made = route_train("auto", "fine-tune on my videos", root)
    assert (made.decision, made.runnable) == ("direct", True) and "no search program" in made.reason
    assert [(each.code, each.severity) for each in made.problems] == [("AUTOML_NO_SEARCH", "warning")]


def test_words_that_turn_it_off_are_quoted_and_an_explicit_policy_outweighs_them(root: Path) -> None:
    made = route_train("auto", "Train on my clips. No HPO, please!", root)
    assert (made.decision, made.runnable, made.problems) == ("direct", True, ())
    assert "'No HPO, please'" in made.reason
    assert route_train("on", "no HPO", root).decision == "automl"


def test_words_that_ask_for_a_search_are_told_that_there_is_none(root: Path) -> None:
    made = route_train("auto", "do not disable AutoML", root)
    assert (made.decision, made.runnable) == ("automl", False) and "do not disable AutoML" in made.reason
    assert [(each.code, each.severity) for each in made.problems] == [("AUTOML_NO_SEARCH", "warning")]


def test_words_that_are_no_clear_order_are_left_to_the_agent(root: Path) -> None:
    made = route_train("auto", "Should I use AutoML?", root)
    assert (made.decision, made.runnable) == ("unclear", False)
    assert [(each.code, each.severity) for each in made.problems] == [("AUTOML_UNCLEAR", "warning")]
    assert "--automl-policy" in made.problems[0].remedy
    assert route_train("off", "Should I use AutoML?", root).decision == "direct"


def test_policy_off_is_direct_whatever_is_missing(tmp_path: Path) -> None:
    assert route_train("off", "", tmp_path).decision == "direct"


def test_not_enabled_is_direct(root: Path) -> None:
    (root / "references/skill_info.yaml").write_text("automl_enabled: false\n")
    assert route_train("auto", "", root).decision == "direct"
    assert route_train("on", "", root).decision == "automl"


@pytest.mark.parametrize("name", ["schemas/train.schema.json", "references/spec_template_train.yaml"])
@pytest.mark.parametrize("content", [None, "{ ["])
def test_a_missing_or_broken_contract_file_is_named(root: Path, name: str, content: str | None) -> None:
    (root / name).unlink() if content is None else (root / name).write_text(content)
    made = route_train("auto", "", root)
    assert (made.decision, made.runnable) == ("automl", False)
    assert [(p.code, p.exit_code) for p in made.problems] == [("AUTOML_NOT_RUNNABLE", 4)]
    assert name in made.reason
    assert route_train("off", "", root).decision == "direct"
