"""The table of actions: what the declarations name exists, and reading the table costs nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from vidqa.core import actions
from vidqa.core.actions import Action, resolve
from vidqa.core.problem import ProblemError
from vidqa.spec.keys import flat, leaves
from vidqa.spec.layers import action_of, read_layer, require_action

NAMED_BY_THE_ONE_BEFORE = ("processes_key", "fills_gpus")
NAMED = ("spec", "rules", "outcome", "program", "proof")


@pytest.fixture(params=actions.HERE)
def action(request: pytest.FixtureRequest) -> Action:
    return actions.action(request.param)


def test_what_a_declaration_names_can_be_imported(action: Action) -> None:
    named = [getattr(action, name) for name in NAMED if getattr(action, name)]
    named += [action.parent.keys, action.sampling.planner, *action.sampling.modes.values()]
    assert all(callable(resolve(each)) for each in named)


def test_keys_of_a_declaration_are_keys_of_its_spec(action: Action) -> None:
    keys = [action.output_key, action.sampling.length_key, *action.ignored_keys]
    keys += [key for data in action.data for key in (data.annotations, data.media, *data.root_sets)]
    keys += [key for model in action.models for key in (model.name, model.revision, model.only_with) if key]
    keys += [key for pair in (*action.exclusive, *action.later_wins) for key in pair]
    keys += action.shorthand.values()
    keys += [action.resuming.key] if action.resuming else []
    assert set(keys) - set(leaves(action.name)) == set()
    assert set(action.tables) <= set(action.spec_model.model_fields)


def test_the_default_spec_is_of_its_action(action: Action) -> None:
    spec = action.spec_model()
    assert actions.action_for(spec) is action and action.processes(spec) == 1
    assert action.sampling.longest(spec) <= flat(spec)[action.sampling.length_key]


def test_every_field_of_a_declaration_is_described() -> None:
    lines = inspect.getsource(Action).splitlines()
    at = {line.split(":")[0].strip(): number for number, line in enumerate(lines)}
    for field in fields(Action):
        line, before = lines[at[field.name]], lines[at[field.name] - 1].strip()
        assert "  # " in line or before.startswith("#") or field.name in NAMED_BY_THE_ONE_BEFORE, field.name


def test_an_action_that_there_is_not_is_a_problem() -> None:
    with pytest.raises(ProblemError) as refused:
        actions.action("dance")
    assert (refused.value.problems[0].code, "train, evaluate" in refused.value.problems[0].remedy) == (
        "SPEC_ACTION",
        True,
    )


def _installed(folder: Path, monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    (folder / "other-1.dist-info").mkdir()
    (folder / "other-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    lines = "\n".join(f"{name} = {where}" for name, where in points.items())
    (folder / "other-1.dist-info/entry_points.txt").write_text(f"[vidqa.actions]\n{lines}\n")
    monkeypatch.syspath_prepend(folder)


def test_a_package_that_cannot_be_loaded_is_a_problem_of_its_own_action(tmp_path: Path, monkeypatch: Any) -> None:
    _installed(tmp_path, monkeypatch, broken="not_there:ACTION", train="not_there:TRAIN")
    here = ("train", "evaluate", "inference", "embed", "grpo", "quantize")
    assert actions.names() == (*here, "broken")  # nobody takes the name of one that is here
    assert [each.name for each in actions.every()] == list(here)
    with pytest.raises(ProblemError, match="not_there"):
        actions.action("broken")


def test_the_table_is_read_without_what_it_names() -> None:
    read = "import sys, vidqa.core.actions as a; a.every(); a.roots()"
    heavy = "{'pydantic', 'numpy', 'yaml', 'torch', 'vidqa.spec', 'vidqa.planning'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{read}; print({heavy})"], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_spec_of_an_inference_is_told_from_one_of_an_evaluation(tmp_path: Path) -> None:
    """They share most of their tables; what only those have is an evaluation, as before there were others."""
    for name, text in {
        "inference": "[inference]\nprompt = 'Why?'\n[dataset]\nannotation_path = 'clips'\n",
        "embed": "[embed]\ndimensions = 64\n[dataset]\nannotation_path = 'clips'\n",
        "evaluate": "[dataset]\nannotation_path = 'a.json'\n[model]\nmodel_name = 'm'\n",
    }.items():
        (tmp_path / f"{name}.toml").write_text(text)
        assert action_of(tmp_path / f"{name}.toml") == name
    (tmp_path / "tao.toml").write_text("model_path = 'm'\nmedia = 'clips'\nnum_gpus = 1\n")
    assert action_of(tmp_path / "tao.toml") == "inference"
    with pytest.raises(ProblemError, match="SPEC_ACTION"):
        require_action(read_layer(tmp_path / "inference.toml"), tmp_path / "inference.toml", "evaluate")
    require_action(read_layer(tmp_path / "evaluate.toml"), tmp_path / "evaluate.toml", "inference")
