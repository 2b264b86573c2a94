"""config.json, the contract for programs: every file, command and key that it names is there."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml
from skill_pages import SCRIPTS, parser_of, words_of

import vidqa
from vidqa.core import actions
from vidqa.core.cli import SCHEMA, SKILL_ROOT
from vidqa.spec.keys import leaves
from vidqa.spec.route import route_train

CONFIG = json.loads((SKILL_ROOT / "config.json").read_text(encoding="utf-8"))
INFO = yaml.safe_load((SKILL_ROOT / CONFIG["info"]).read_text(encoding="utf-8"))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def test_files_exist() -> None:
    paths = [word for word in strings(CONFIG) if "/" in word and " " not in word and "://" not in word]
    assert len(paths) > 10
    assert [path for path in paths if not (SKILL_ROOT / path).is_file()] == []


def test_commands_parse() -> None:
    commands = [text for text in strings(CONFIG) if text.startswith("python ")]
    assert len(commands) > 15
    for command in commands:
        _, script, *words = words_of(command)
        assert parser_of(SKILL_ROOT / script).parse_args(words).json, f"{command}: a program wants --json"
    assert {words_of(command)[1] for command in commands} == {f"scripts/{script.name}" for script in SCRIPTS}


def test_names_and_versions_agree() -> None:
    project = tomllib.loads((SKILL_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    skill = yaml.safe_load((SKILL_ROOT / CONFIG["skill"]).read_text(encoding="utf-8").split("---\n")[1])
    assert CONFIG["name"] == project["name"] == skill["name"] == INFO["name"]
    assert CONFIG["version"] == project["version"] == skill["metadata"]["version"] == vidqa.__version__
    assert CONFIG["result_schema"] == SCHEMA


def test_actions_are_those_that_have_a_spec() -> None:
    implemented = {name for name, action in CONFIG["actions"].items() if action["implemented"]}
    assert implemented == set(actions.names()) == set(INFO["actions"])
    assert set(CONFIG["actions"]) == {"train", "evaluate", "inference", "embed", "grpo", "quantize"}
    assert CONFIG["credentials"].keys() == INFO["credentials"].keys()
    for name in implemented:
        action = CONFIG["actions"][name]
        named = [action["model_key"], action["results_key"], action["resume_key"], *action["dataset_keys"]]
        assert [key for key in named if key is not None and key not in leaves(name)] == []
        for script in ("launch", "build_spec"):
            parser = parser_of(SKILL_ROOT / f"scripts/{script}.py")
            assert parser.parse_args(words_of(action["commands"][script])[2:]).action == name


def test_automl_is_what_routing_finds() -> None:
    route = route_train("on", SKILL_ROOT)
    assert CONFIG["automl"]["enabled"] == INFO["automl_enabled"]
    assert CONFIG["automl"]["runnable"] == route.runnable and route.decision == "automl"
    (policy,) = [
        option for option in parser_of(SKILL_ROOT / "scripts/route_train.py")._actions if option.dest == "automl"
    ]
    assert list(policy.choices or ()) == CONFIG["automl"]["policies"]
    assert [name for name, action in CONFIG["actions"].items() if action["automl"]] == ["train"]


def test_deft_stages_that_are_implemented_have_their_script() -> None:
    page = (SKILL_ROOT / CONFIG["deft"]["workflow"]).read_text(encoding="utf-8")
    for stage in CONFIG["deft"]["stages"]:
        assert stage["implemented"] == ("command" in stage) == ("script" in stage), stage["name"]
        if stage["implemented"]:
            assert stage["script"] in stage["command"]
    assert all(f"`{rule}`" in page for rule in CONFIG["deft"]["stop_rules"])
