"""A configuration that preflight refuses is refused by the engine in the same words, and none ends in a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_world import tiny_model

from vidqa.core.problem import ProblemError
from vidqa.engine.loading.load import meta_model
from vidqa.families import family_of

VALUES: list[Any] = [-1, 0, 1.5, "x", [], {}, True, 10**30]
OFTEN = {"model_type", "rope_parameters", "deepstack_visual_indexes"}  # tables, and what says which class reads them


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("configurations"))


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except ProblemError as refused:
        return str(refused)
    return ""


def written(model: Path, config: dict[str, Any]) -> Path:
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
def test_a_key_with_a_wrong_value_is_refused_alike(model: Path, part: str) -> None:
    usual = json.loads((model / "config.json").read_text())
    refused = 0
    try:
        for key in usual[part].keys() - OFTEN:
            for value in VALUES:
                config = copy.deepcopy(usual)
                config[part][key] = value
                written(model, config)
                read = refusal(lambda: family_of(model).sizes_of(model))
                refused += bool(read)
                built = refusal(lambda: meta_model(model))
                assert built == read or not read, (key, value, built)
    finally:
        written(model, usual)
    assert refused > 50


def test_nested_json_is_a_problem(model: Path) -> None:
    usual = (model / "config.json").read_text()
    try:
        (model / "config.json").write_text(f'{usual.rstrip()[:-1]}, "deep": {"[" * 20_000}{"]" * 20_000}}}')
        read = refusal(lambda: family_of(model).sizes_of(model))
        assert "MODEL_BROKEN" in read and refusal(lambda: meta_model(model)) == read
    finally:
        (model / "config.json").write_text(usual)
