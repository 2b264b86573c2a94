"""Proposed values that break a rule of the spec are mended, and what was changed is said."""

from __future__ import annotations

import pytest
from search_spaces import BATCH, DECAY, RATE, lora, space, template

from vidqa.automl.specs import repaired
from vidqa.core.problem import ProblemError
from vidqa.spec import DataFacts, check_with_data

MICRO = "train.train_policy.mini_batch"


def test_values_that_keep_the_rules_are_left_alone() -> None:
    found = space(template())
    values = found.default(template())
    assert repaired(found, template(), values) == (values, ())


def test_a_batch_becomes_a_multiple_of_the_micro_batch_and_no_more_than_a_rank_has() -> None:
    spec = template()
    found = space(spec, {MICRO: "1..8"}, {"train.epoch": 1}, samples=60, ranks=2)
    values = found.default(spec)
    assert repaired(found, spec, {**values, BATCH: 10, MICRO: 4}) == (
        {**values, BATCH: 8, MICRO: 4},
        (f"{BATCH} = 10 became 8: a multiple of mini_batch 4",),
    )
    made, notes = repaired(found, spec, {**values, BATCH: 64})
    assert made[BATCH] == 30 and "a rank has 30 samples" in notes[0]
    made, notes = repaired(found, spec, {**values, BATCH: 3, MICRO: 8})
    assert (made[BATCH], made[MICRO]) == (3, 3) and "the batch per rank is 3" in notes[0]
    assert not [
        each for each in check_with_data(found.trial_spec(spec, made), DataFacts(60, 0)) if each.severity == "error"
    ]


def test_the_micro_batch_gives_way_where_the_batch_is_fixed() -> None:
    found = space(template(), {MICRO: "1..8"}, {BATCH: 6})
    made, notes = repaired(found, template(), {**found.default(template()), MICRO: 4})
    assert made[MICRO] == 3 and notes == (f"{MICRO} = 4 became 3: the batch per rank is 6",)


def test_a_warm_up_is_shorter_than_the_training() -> None:
    found = space(template(), {"train.optm_warmup_epochs": ""})
    values = found.default(template()) | {"train.epoch": 2}
    made, notes = repaired(found, template(), {**values, "train.optm_warmup_epochs": 4.0})
    assert made["train.optm_warmup_epochs"] == 1.0 and "2 epochs" in notes[0]


def test_no_module_has_an_adapter_and_trains_in_full() -> None:
    targets, saved = "policy.lora.target_modules", "policy.lora.modules_to_save"
    both = {targets: '[["q_proj","attn.qkv"],"all-linear"]', saved: '[null,["visual"]]'}
    found = space(lora(), both)
    names = [parameter.name for parameter in found.parameters]
    assert names.index(saved) < names.index(targets)
    values = found.default(lora())
    made, notes = repaired(found, lora(), {**values, targets: ["q_proj", "attn.qkv"], saved: ["visual"]})
    assert made[targets] == ["q_proj"] and "attn.qkv" in notes[0]
    made, notes = repaired(found, lora(), {**values, targets: "all-linear", saved: ["visual"]})
    assert made[saved] is None and len(notes) == 1


def test_what_is_not_proposed_is_the_templates_and_what_does_not_apply_is_dropped() -> None:
    found = space(template(), {DECAY: "cosine,none", "train.optm_min_lr_factor": ""})
    made, notes = repaired(found, template(), {DECAY: "none", "train.optm_min_lr_factor": 0.3})
    assert "train.optm_min_lr_factor" not in made and made[RATE] == template().train.optm_lr
    assert f"train.optm_min_lr_factor was dropped: {DECAY} is 'none'" in notes
    assert f"{RATE} was not proposed: 1e-05" in notes


def test_what_no_change_mends_is_told_with_the_rule() -> None:
    found = space(lora(), {"policy.lora.target_modules": '[["q_proj"],[]]'})
    with pytest.raises(ProblemError, match=r"AUTOML_RANGE(.|\n)*SPEC_VALUE"):
        repaired(found, lora(), {"policy.lora.target_modules": []})
    with pytest.raises(ProblemError, match="AUTOML_RANGE"):
        repaired(found, lora(), {RATE: "fast"})
