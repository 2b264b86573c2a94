"""What holds of every key: it is described, its default is valid, its treatment is one that we know."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from vidqa.core import actions
from vidqa.spec.keys import expected, facts, leaves, properties, schema

ACTIONS = list(actions.names())


@pytest.mark.parametrize("action", ACTIONS)
def test_every_key_is_described_and_its_treatment_is_known(action: str) -> None:
    for path, field in leaves(action).items():
        assert field.title and field.description and field.description.endswith("."), path
        known = facts(field)
        native = known["x-native"]
        assert native in ("used", "no effect") or set(native) == {"only"}, path
        if isinstance(native, dict):
            only = native["only"]
            assert field.default in only, path
        assert expected(action, path), path


@pytest.mark.parametrize("action", ACTIONS)
def test_the_schema_is_strict_and_holds_the_defaults(action: str) -> None:
    whole = schema(action)
    Draft202012Validator.check_schema(whole)
    assert not list(Draft202012Validator(whole).iter_errors(actions.action(action).spec_model().model_dump()))
    for part in (whole, *whole["$defs"].values()):
        assert part["additionalProperties"] is False
    for prop in properties(action).values():
        assert {"title", "description", "default", "x-native"} <= set(prop)


@pytest.mark.parametrize("action", ACTIONS)
def test_the_schema_refuses_what_the_models_refuse(action: str) -> None:
    check = Draft202012Validator(schema(action))
    table = "train" if action == "train" else "evaluation"
    for wrong in ({"nothing": 1}, {table: {"nothing": 1}}, {table: {"seed": "x"}}, {table: {"seed": -1}}):
        assert list(check.iter_errors(wrong)), wrong


def test_search_ranges_do_not_bound_what_is_valid() -> None:
    from vidqa.spec import Layer, resolve

    wide = {"custom.vision.nframes": 768, "train.epoch": 50, "policy.lora.lora_dropout": 0.5}
    data = {"custom.train_dataset.annotation_path": "a", "custom.train_dataset.media_path": "b"}
    resolve("train", [Layer("x", {**data, **wide})])
    search = {path: facts(field)["x-automl"] for path, field in leaves("train").items() if "x-automl" in facts(field)}
    assert search["train.epoch"]["max"] == 20 and search["custom.vision.nframes"]["max"] == 8
    chosen = {path for path, automl in search.items() if automl["default"]}
    assert chosen == {
        "train.epoch",
        "train.optm_lr",
        "train.optm_decay_type",
        "train.optm_weight_decay",
        "train.train_batch_per_replica",
        "policy.lora.r",
        "policy.lora.lora_alpha",
        "policy.lora.lora_dropout",
    }
