"""The committed pages are what the code makes, and what they say is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from reference_pages import parameters, template, toml_template
from write_pages import differing, generated, main

from vidqa.core.cli import SKILL_ROOT
from vidqa.spec import Layer, read_layer, resolve
from vidqa.spec.keys import leaves


def test_nothing_has_drifted() -> None:
    assert list(differing(SKILL_ROOT)) == [], "run `make generate`"


def test_check_names_what_differs_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--root", str(tmp_path)]
    assert main([*words, "--check"]) == 1 and not list(tmp_path.iterdir())
    named = capsys.readouterr().out
    assert all(path in named for path in generated())
    assert (main(words), main([*words, "--check"])) == (0, 0)
    (tmp_path / "references/parameters_train.md").write_text("changed by hand")
    capsys.readouterr()
    assert main([*words, "--check"]) == 1
    assert capsys.readouterr().out == "differs: references/parameters_train.md\n"


@pytest.mark.parametrize("action", ["train", "evaluate", "inference", "embed"])
def test_a_schema_has_the_template_as_its_default_and_the_manifest_says_what_a_search_varies(action: str) -> None:
    """As TAO's schemas and manifest do."""
    schema = json.loads(generated()[f"schemas/{action}.schema.json"])
    Draft202012Validator(schema).validate(schema["default"])
    assert schema["default"] == yaml.safe_load(template(action))
    entry = json.loads(generated()["schemas/manifest.json"])["actions"][action]
    searched, disabled = entry["automl_default_parameters"], entry["automl_disabled_parameters"]
    keys = set(leaves(action))
    assert {*searched, *disabled, *entry["popular"]} <= keys and not {*searched} & {*disabled}
    if action == "train":
        assert {"train.optm_lr", "policy.lora.r"} <= {*searched} and "train.seed" in disabled
        assert {"train.epoch", "policy.model_name_or_path", "custom.vision.nframes"} <= {*entry["popular"]}
    else:
        assert (searched, {*disabled}) == ([], keys)


@pytest.mark.parametrize("action", ["train", "evaluate", "inference", "embed"])
def test_the_template_read_back_is_the_default_spec(tmp_path: Path, action: str, data: Layer, eval_data: Layer) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(template(action))
    paths = data if action == "train" else eval_data
    assert resolve(action, [read_layer(path), paths]).spec == resolve(action, [paths]).spec
    (tmp_path / "t.toml").write_text(toml_template(action))
    assert resolve(action, [read_layer(tmp_path / "t.toml"), paths]).spec == resolve(action, [paths]).spec
    assert yaml.safe_load(path.read_text())  # any YAML reader takes it
    assert max(map(len, path.read_text().splitlines())) <= 120


def test_the_templates_numbers_are_numbers_to_any_yaml_reader() -> None:
    read = yaml.safe_load(template("train"))
    assert read["train"]["optm_lr"] == 1e-5 and read["train"]["epsilon"] == 1e-8
    assert "lora" not in read["policy"]  # there as a comment


@pytest.mark.parametrize("action", ["train", "evaluate", "inference", "embed"])
def test_every_key_has_its_row(action: str) -> None:
    rows = [line for line in parameters(action).splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(leaves(action))
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
