"""What trains, told from names and shapes, is what PEFT and the engine make of the real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import ProblemError
from vidqa.engine.families.tiny_qwen3_vl import write_tiny_model
from vidqa.engine.loading.freeze import choose_trainable
from vidqa.engine.loading.load import meta_model
from vidqa.families import family_of
from vidqa.planning.budget.params import parameters
from vidqa.spec.policy_tables import Policy

WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "frozen": {"freeze_pattern": ["visual"]},
    "only": {"trainable_pattern": ["merger", r"layers\.0\."]},
    "lora": {"lora": {}},
    "all-linear": {"lora": {"target_modules": "all-linear"}},
    "ranks": {"lora": {"target_modules": ["q_proj", "attn.qkv"], "r_pattern": {"q_proj": 4, "layers.0.*qkv": 2}}},
    "saved": {"lora": {"modules_to_save": ["visual"]}},
    "mergers": {"lora": {"target_modules": ["q_proj"], "modules_to_save": ["merger"]}},
    "part": {"lora": {"target_modules": ["linear_fc1"]}, "freeze_pattern": ["merger"]},
    "head": {"lora": {"target_modules": ["lm_head", "q_proj"]}},
    "a copy of the head": {"lora": {"target_modules": ["embed_tokens"], "modules_to_save": ["lm_head"]}},
    "embedding": {"lora": {"target_modules": ["embed_tokens", "o_proj"]}},
}


@pytest.fixture(scope="module", params=[False, True], ids=["head of its own", "tied head"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", tie=request.param)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_names_shapes_and_what_trains(folder: Path, way: str) -> None:
    policy = Policy.model_validate(WAYS[way])
    model = meta_model(folder)
    choose_trainable(model, policy)
    real = {(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()}
    family = family_of(folder)
    ours = parameters(family.tensors(family.sizes_of(folder)), policy)
    assert {(p.name, p.shape, p.trains) for p in ours} == real
    assert sum(p.numel for p in ours if p.trains) == sum(p.numel() for p in model.parameters() if p.requires_grad) > 0
    layers = {p.unit for p in ours if ".layers." in p.unit}
    assert len(layers) == model.config.text_config.num_hidden_layers
    assert all(p.name.startswith(p.unit) or "modules_to_save" in p.name or "original" in p.name for p in ours)


def test_sizes_that_are_missing_or_odd_are_named(folder: Path) -> None:
    import json

    config = json.loads((folder / "config.json").read_text())
    for table, key, value in (("text_config", "hidden_size", None), ("vision_config", "depth", 0)):
        broken = {**config, table: {**config[table], key: value}}
        with pytest.raises(ProblemError, match=f"{table}.{key}"):
            family_of(folder).sizes(broken, folder / "config.json")
    with pytest.raises(ProblemError, match="text_config must be"):
        family_of(folder).sizes({**config, "text_config": 3}, folder)
