"""The AutoML decision: policy, words, what the skill declares and holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.spec.route import Cost, route_train


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "references").mkdir()
    (tmp_path / "schemas/train.schema.json").write_text("{}")
    (tmp_path / "references/spec_template_train.yaml").write_text("train: {}\n")
    (tmp_path / "references/skill_info.yaml").write_text("automl_enabled: true\n")
    (tmp_path / "config.json").write_text('{"automl": {"runnable": true, "trials": 20, "reruns": 9}}')
    return tmp_path


def test_a_plain_request_is_searched_where_that_is_enabled_and_says_what_it_costs(root: Path) -> None:
    made = route_train("auto", "fine-tune on my videos", root)
    assert (made.decision, made.runnable, made.problems, made.cost) == ("automl", True, (), Cost(20, 9))
    assert "neither the request nor the policy" in made.reason and "20 trainings instead of 1" in made.reason


def test_words_that_turn_it_off_are_quoted_and_an_explicit_policy_outweighs_them(root: Path) -> None:
    made = route_train("auto", "Train on my clips. No HPO, please!", root)
    assert (made.decision, made.runnable, made.problems) == ("direct", True, ())
    assert "'No HPO, please'" in made.reason
    assert route_train("on", "no HPO", root).decision == "automl"


def test_words_that_ask_for_a_search_get_one(root: Path) -> None:
    made = route_train("auto", "do not disable AutoML", root)
    assert (made.decision, made.runnable, made.problems) == ("automl", True, ())
    assert "do not disable AutoML" in made.reason and "the AutoML policy is on" in route_train("on", "", root).reason


@pytest.mark.parametrize("config", ['{"automl": {"runnable": false}}', "{}", '{"automl": []}'])
def test_without_a_program_for_it_only_who_asked_for_a_search_is_stopped(root: Path, config: str) -> None:
    (root / "config.json").write_text(config)
    asked, plain = route_train("auto", "use AutoML", root), route_train("auto", "fine-tune on my videos", root)
    assert (asked.decision, asked.runnable, plain.decision, plain.runnable) == ("automl", False, "direct", True)
    assert [(each.code, each.severity) for each in asked.problems] == [("AUTOML_NO_SEARCH", "error")]
    assert [(each.code, each.severity) for each in plain.problems] == [("AUTOML_NO_SEARCH", "warning")]


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


@pytest.mark.parametrize("name", ["schemas/train.schema.json", "references/spec_template_train.yaml", "config.json"])
@pytest.mark.parametrize("content", [None, "{ ["])
def test_a_missing_or_broken_contract_file_is_named_and_stops_no_plain_training(
    root: Path, name: str, content: str | None
) -> None:
    (root / name).unlink() if content is None else (root / name).write_text(content)
    made = route_train("auto", "", root)
    assert (made.decision, made.runnable) == ("direct", True) and name in made.reason
    assert [(p.code, p.severity) for p in made.problems] == [("AUTOML_NOT_RUNNABLE", "warning")]
    asked = route_train("on", "", root)
    assert (asked.decision, asked.runnable) == ("automl", False)
    assert [(p.code, p.exit_code, p.severity) for p in asked.problems] == [("AUTOML_NOT_RUNNABLE", 4, "error")]
    assert route_train("off", "", root).decision == "direct"
