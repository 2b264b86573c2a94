"""The AutoML decision: the caller's word, what the skill declares and holds."""

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
    (tmp_path / "config.json").write_text('{"automl": {"runnable": true, "trials": 20, "reruns": 9}}')
    return tmp_path


@pytest.mark.parametrize("automl", ["auto", "on"])
def test_a_search_says_what_it_costs(root: Path, automl: str) -> None:
    route = route_train(automl, root)
    assert (route.decision, route.runnable, route.problems, route.cost) == (
        "automl",
        True,
        (),
        {"trials": 20, "reruns": 9},
    )
    assert "20 trainings instead of 1" in route.reason


@pytest.mark.parametrize("config", ['{"automl": {"runnable": false}}', "{}", '{"automl": []}'])
def test_without_a_program_for_it_only_who_asked_for_a_search_is_stopped(root: Path, config: str) -> None:
    (root / "config.json").write_text(config)
    on, auto = route_train("on", root), route_train("auto", root)
    assert (on.decision, on.runnable, auto.decision, auto.runnable) == ("automl", False, "direct", True)
    assert [(problem.code, problem.severity) for problem in on.problems] == [("AUTOML_NOT_RUNNABLE", "error")]
    assert [(problem.code, problem.severity) for problem in auto.problems] == [("AUTOML_NOT_RUNNABLE", "warning")]


def test_a_config_without_the_cost_of_a_search_is_named(root: Path) -> None:
    (root / "config.json").write_text('{"automl": {"runnable": true, "trials": "20"}}')
    (problem,) = route_train("on", root).problems
    assert problem.code == "AUTOML_NOT_RUNNABLE" and "automl.reruns" in problem.message
    assert route_train("auto", root).decision == "direct"


def test_off_is_direct_whatever_is_missing(tmp_path: Path) -> None:
    assert route_train("off", tmp_path).decision == "direct"


def test_not_enabled_is_direct(root: Path) -> None:
    (root / "references/skill_info.yaml").write_text("automl_enabled: false\n")
    assert route_train("auto", root).decision == "direct"
    assert route_train("on", root).decision == "automl"


@pytest.mark.parametrize("name", ["schemas/train.schema.json", "references/spec_template_train.yaml", "config.json"])
@pytest.mark.parametrize("content", [None, "{ ["])
def test_a_missing_or_broken_contract_file_is_named_and_stops_no_plain_training(
    root: Path, name: str, content: str | None
) -> None:
    (root / name).unlink() if content is None else (root / name).write_text(content)
    auto = route_train("auto", root)
    assert (auto.decision, auto.runnable) == ("direct", True) and name in auto.reason
    assert [(p.code, p.severity) for p in auto.problems] == [("AUTOML_NOT_RUNNABLE", "warning")]
    on = route_train("on", root)
    assert (on.decision, on.runnable) == ("automl", False)
    assert [(p.code, p.exit_code, p.severity) for p in on.problems] == [("AUTOML_NOT_RUNNABLE", 4, "error")]
    assert route_train("off", root).decision == "direct"
