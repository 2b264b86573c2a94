"""Which changes of a spec forbid to resume from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from vidqa.planning.resume_compat import changes, compare, weights_facts
from vidqa.spec import TrainSpec


@pytest.mark.parametrize(
    ("modules", "is_change"), [(["v_proj", "q_proj"], False), (["q_proj"], True), (["q_proj", "k_proj"], True)]
)
def test_the_order_of_adapted_modules_changes_nothing(modules: list[str], is_change: bool) -> None:
    def facts(targets: list[str]) -> dict[str, object]:
        lora = {"target_modules": targets, "modules_to_save": targets}
        return weights_facts(TrainSpec.model_validate({"policy": {"lora": lora}}), [], None)

    changed = changes(facts(["q_proj", "v_proj"]), facts(modules), [])
    assert bool(changed) is is_change and all(text.startswith("lora: ") for text in changed)


@pytest.mark.parametrize(("objective", "is_change"), [("sft", False), ("dpo", True)])
def test_initial_adapter_values_matter_only_for_the_reference_of_dpo(objective: str, is_change: bool) -> None:
    def facts(**lora: object) -> dict[str, object]:
        table = {"policy": {"lora": lora}, "engine": {"objective": objective}}
        return weights_facts(TrainSpec.model_validate(table), [], None)

    recorded = {
        **facts(),
        "lora": {**facts()["lora"], "init_lora_weights": True},
    }  # as checkpoints of earlier versions have it
    changed = changes(recorded, facts(init_lora_weights=False), [])
    assert changed == ["lora: {'init_lora_weights': True} -> {'init_lora_weights': False}"] * is_change
    assert changes(recorded, facts(r=4, init_lora_weights=True), ["q_proj"])[0].startswith("lora: {'r': ")


@pytest.mark.parametrize("pattern", ["r_pattern", "alpha_pattern"])
@pytest.mark.parametrize(
    ("before", "now", "is_change"),
    [
        ({"layers.0.*": 4, ".*q_proj": 8}, {".*q_proj": 8, "layers.0.*": 4}, True),
        ({"layers.0.*": 4, "layers.1.*": 8}, {"layers.1.*": 8, "layers.0.*": 4}, False),
        ({"layers.0.*": 4, ".*": 8}, {"layers.1.*": 8, "layers.0.*": 4}, False),
        ({"layers.0.*": 4}, {"layers.0.*": 5}, True),
        ({"layers.9.*": 4}, None, False),
    ],
)
def test_patterns_are_what_they_give_each_adapted_module(
    pattern: str, before: dict[str, int], now: dict[str, int] | None, is_change: bool, tmp_path: Path
) -> None:
    names = [
        f"model.layers.{layer}.q_proj.{matrix}.default.weight" for layer in (0, 1) for matrix in ("lora_A", "lora_B")
    ]
    facts = [
        {"weights": {"lora": {"r": 2, "lora_alpha": 2.0, pattern: patterns}}, "spec": {}} for patterns in (before, now)
    ]
    refused, _ = compare(tmp_path, *facts, tmp_path, names)
    assert bool(refused) is is_change
