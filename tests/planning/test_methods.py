"""Memory and time of bases in few bits, 8-bit moments and offload, by hand and for published models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vidqa.families import family_of
from vidqa.families.published import published
from vidqa.planning.budget.autotune import least_policy
from vidqa.planning.budget.memory import training_setup, weights_and_optimizer
from vidqa.planning.budget.methods import Fit, fitting_methods, host_bytes, micro_step_seconds, step_seconds
from vidqa.planning.budget.params import count_params, parameters
from vidqa.planning.budget.speed import GPUS
from vidqa.spec import Layer, check, resolve
from vidqa.spec.keys import with_values
from vidqa.spec.models import TrainSpec

LORA = {"policy.lora": {}}
FEW: dict[str, dict[str, Any]] = {
    "nf4": LORA | {"policy.quantization": "nf4"},
    "fp8": LORA | {"policy.quantization": "fp8"},
}


def spec_of(keys: dict[str, Any]) -> TrainSpec:
    data = {"custom.train_dataset.annotation_path": "annotations.json", "engine.validation_generate": 0}
    spec = resolve("train", [Layer("test", data)]).spec
    assert isinstance(spec, TrainSpec)
    return with_values(spec, keys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = published("nvidia/Cosmos-Reason2-8B")
    assert settings is not None
    folder = tmp_path_factory.mktemp("8b")
    (folder / "config.json").write_text(json.dumps(settings.config))
    (folder / "processor_config.json").write_text(json.dumps(settings.processor))
    return folder


def of(folder: Path, keys: dict[str, Any]) -> tuple[Any, Any]:
    spec, family = spec_of(keys), family_of(folder)
    sizes = family.sizes_of(folder)
    model = count_params(sizes, parameters(family.tensors(sizes), spec.policy))
    return model, training_setup(spec, least_policy(spec, model))


def test_a_quantized_base_is_counted_by_its_matrices(folder: Path) -> None:
    model, setup = of(folder, FEW["nf4"])
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 12288)
    assert model.every.quantizable == 36 * layer
    _, ordinary = of(folder, LORA)
    saved = weights_and_optimizer(model, ordinary) - weights_and_optimizer(model, setup)
    assert saved == pytest.approx(36 * layer * (2 - 0.5159), rel=1e-3)


def test_a_quantized_base_is_whole_on_every_rank(folder: Path) -> None:
    shards = {"policy.parallelism.dp_shard_size": 4}
    model, setup = of(folder, FEW["fp8"] | shards)
    assert weights_and_optimizer(model, setup) > model.every.quantizable


def test_moments_of_8_bits_take_a_quarter(folder: Path) -> None:
    model, setup = of(folder, {"train.optm_name": "AdamW8bit"})
    _, usual = of(folder, {})
    saved = weights_and_optimizer(model, usual) - weights_and_optimizer(model, setup)
    assert saved == pytest.approx(model.every.moments_8bit * (8 - 2.03125))
    assert 0.9 < model.every.moments_8bit / model.every.trained < 1


def test_what_is_offloaded_is_on_the_host_and_costs_time(folder: Path) -> None:
    model, setup = of(folder, {"train.fsdp_offload": True})
    assert weights_and_optimizer(model, setup) == 0
    assert host_bytes(model, setup) == 16 * model.every.trained
    assert micro_step_seconds(model, setup, GPUS["H100"]) > 1 and step_seconds(model, setup) > 1
    model, setup = of(folder, {})
    assert host_bytes(model, setup) == micro_step_seconds(model, setup, GPUS["H100"]) == step_seconds(model, setup) == 0


def test_8b_fits_a_card_of_24_gb_in_4_bits(folder: Path) -> None:
    family, card = family_of(folder), GPUS["RTX 4090"]
    sizes = family.sizes_of(folder)
    fits: dict[str, Fit] = {
        fit.method: fit
        for fit in fitting_methods(spec_of({}), sizes, family.tensors(sizes), card.memory_gib, card, "RTX 4090")
    }
    assert fits["full"].longest == fits["full, AdamW8bit"].longest == 0 and fits["full"].tokens_per_s is None
    assert fits["LoRA"].longest < fits["LoRA, nf4 base"].longest >= 16384


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"policy.quantization": "nf4"}, "policy.quantization"),
        (FEW["fp8"] | {"policy.parallelism.cp_size": 2}, "policy.quantization"),
    ],
)
def test_a_base_in_few_bits_that_would_have_to_train_is_a_conflict(keys: dict[str, Any], place: str) -> None:
    problems = [problem for problem in check(spec_of(keys)) if problem.severity == "error"]
    assert [(problem.code, problem.where) for problem in problems] == [("SPEC_CONFLICT", place)]


def test_the_profile_of_small_cards_is_lora_in_4_bits() -> None:
    from vidqa.core.actions import action

    spec = spec_of(dict(action("train").profiles["small-card"]))
    assert (
        spec.policy.lora and spec.policy.quantization == "nf4" and not [p for p in check(spec) if p.severity == "error"]
    )
