"""Which changes of a spec forbid to resume from a checkpoint."""

from __future__ import annotations

import pytest

from vidqa.planning.resume_compat import changes, weights_facts
from vidqa.spec import TrainSpec


@pytest.mark.parametrize(
    ("modules", "is_change"), [(["v_proj", "q_proj"], False), (["q_proj"], True), (["q_proj", "k_proj"], True)]
)
def test_the_order_of_adapted_modules_changes_nothing(modules: list[str], is_change: bool) -> None:
    def facts(targets: list[str]) -> dict[str, object]:
        lora = {"target_modules": targets, "modules_to_save": targets}
        return weights_facts(TrainSpec.model_validate({"policy": {"lora": lora}}), [], None)

    changed = changes(facts(["q_proj", "v_proj"]), facts(modules))
    assert bool(changed) is is_change and all(text.startswith("lora: ") for text in changed)
