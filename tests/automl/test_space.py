"""The search space: what the schema declares, what a user adds, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from search_spaces import BATCH, DECAY, RATE, lora, space, template

from vidqa.automl.parameters import Condition
from vidqa.automl.space import Space
from vidqa.core.problem import ProblemError
from vidqa.spec import TrainSpec
from vidqa.spec.keys import value_at

NO_ENDS = (0, 0)


def codes(spec: TrainSpec, ranges: Mapping[str, str] = {}, fixed: Mapping[str, Any] = {}) -> list[str]:
    with pytest.raises(ProblemError) as wrong:
        space(spec, ranges, fixed)
    assert all(problem.remedy and problem.where for problem in wrong.value.problems)
    return [problem.code for problem in wrong.value.problems]


def test_a_full_fine_tune_searches_what_the_schema_says() -> None:
    found = space(template())
    assert [parameter.name for parameter in found.parameters] == [
        "train.epoch",
        BATCH,
        RATE,
        "train.optm_weight_decay",
        DECAY,
    ]
    assert (found[RATE].low, found[RATE].high, found[RATE].log) == (1e-6, 1e-3, True)
    assert (found[BATCH].low, found[BATCH].high) == (1, 32)
    assert found[DECAY].options == ("linear", "sqrt", "cosine", "none") and found[DECAY].weights == (0.1, 0.1, 0.4, 0.4)


def test_lora_adds_its_own_keys_and_begins_at_a_higher_rate() -> None:
    found = space(lora())
    assert found["policy.lora.r"].options == tuple(2**power for power in range(9))
    assert found["policy.lora.lora_alpha"].options == tuple(2.0**power for power in range(11))
    assert (found["policy.lora.lora_dropout"].low, found["policy.lora.lora_dropout"].high) == (0.0, 0.1)
    assert (found[RATE].low, found[RATE].high) == (1e-5, 1e-3)
    assert found["policy.lora.r"].inherited and not found["policy.lora.lora_alpha"].inherited


def test_batches_are_multiples_of_the_micro_batch_and_at_most_the_samples_of_a_rank() -> None:
    found = space(template(train__train_policy__mini_batch=4), samples=90, ranks=4)
    assert {found[BATCH].at(unit / 100) for unit in range(101)} == {4, 8, 12, 16, 20}
    assert any("ends at 20" in note for note in found.notes)
    only = space(template(train__train_policy__mini_batch=4), samples=24, ranks=4)
    assert BATCH not in only and any("is not searched" in note for note in only.notes)
    with pytest.raises(ProblemError, match="AUTOML_RANGE"):
        space(template(train__train_policy__mini_batch=8), samples=24, ranks=4)


def test_a_study_that_counts_steps_searches_no_epochs() -> None:
    assert "train.epoch" in space(template()) and "train.epoch" not in space(template(), by_steps=True)
    assert "train.epoch" not in space(template(train__max_num_steps=10))
    assert "train.epoch" in space(template(), {"train.epoch": "1..5"}, by_steps=True)


@pytest.mark.parametrize(
    ("key", "text", "kind", "options", "ends"),
    [
        ("policy.lora.r", "4,8,16", "int", (4, 8, 16), (4, 16)),
        ("policy.lora.r", "16, 4", "int", (4, 16), (4, 16)),
        ("policy.lora.r", "4..64:log2", "int", (4, 8, 16, 32, 64), (4, 64)),
        ("policy.lora.lora_alpha", "8,16", "float", (8.0, 16.0), (8.0, 16.0)),
        ("learning_rate", "1e-6..1e-3:log", "float", (), (1e-6, 1e-3)),
        ("train.epsilon", "1e-9..1e-6:log", "float", (), (1e-9, 1e-6)),
        ("batch_size", "4..32:4", "int", (), (4, 32)),
        ("train.optm_warmup_steps", "0..100", "int", (), (0, 100)),
        ("train.optm_warmup_steps", "0..0.2", "float", (), (0, 0.2)),
        ("train.optm_decay_type", "cosine:3,none:1", "categorical", ("cosine", "none"), NO_ENDS),
        ("policy.lora.use_rslora", "", "categorical", (True, False), NO_ENDS),
        ("train.optm_name", "", "categorical", ("AdamW", "AdamW8bit", "Adam"), NO_ENDS),
        ("policy.lora.target_modules", '[["q_proj"],"all-linear"]', "categorical", (["q_proj"], "all-linear"), NO_ENDS),
        ("train.optm_betas", "[[0.9,0.95],[0.9,0.999]]", "categorical", ([0.9, 0.95], [0.9, 0.999]), NO_ENDS),
    ],
)  # fmt: skip
def test_a_range_is_read_as_it_is_meant(key: str, text: str, kind: str, options: tuple[Any, ...], ends: Any) -> None:
    found = space(lora(), {key: text})
    name = {"learning_rate": RATE, "batch_size": BATCH}.get(key, key)
    made = found[name]
    assert (made.kind, made.options, (made.low, made.high)) == (kind, options, ends)
    assert {type(option) for option in made.options} == {type(option) for option in options}
    for place in (0, 0.3, 1):
        value = made.at(place)
        assert made.holds(value) and value_at(found.trial_spec(lora(), {name: value}), name) == value


def test_weights_say_how_often_a_value_is_drawn() -> None:
    made = space(template(), {DECAY: "cosine:3,none:1"})[DECAY]
    assert [made.at((place + 0.5) / 8) for place in range(8)] == ["cosine"] * 6 + ["none"] * 2


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [
        ("train.optm_l", "1..2", "AUTOML_RANGE"),
        ("train", "1..2", "AUTOML_RANGE"),
        ("train.epsilon", "", "AUTOML_RANGE"),
        ("train.seed", "", "AUTOML_RANGE"),
        ("train.optm_betas", "", "AUTOML_RANGE"),
        ("custom.system_prompt", "", "AUTOML_RANGE"),
        (RATE, "1e-3..1e-6", "AUTOML_RANGE"),
        (RATE, "0..1e-3:log", "AUTOML_RANGE"),
        (RATE, "-1..1", "AUTOML_RANGE"),
        (RATE, "1e-5", "AUTOML_RANGE"),
        (RATE, "1e-5,", "AUTOML_RANGE"),
        (RATE, "high,low", "AUTOML_RANGE"),
        (RATE, "1e-5:0,1e-4:0", "AUTOML_RANGE"),
        ("train.epoch", "1.5..3", "AUTOML_RANGE"),
        ("train.epoch", "0..3", "AUTOML_RANGE"),
        ("train.epoch", "1..9:20", "AUTOML_RANGE"),
        ("policy.lora.r", "4,4", "AUTOML_RANGE"),
        ("policy.lora.r", "5..7:log2", "AUTOML_RANGE"),
        ("policy.lora.r", "4..8:log3", "AUTOML_RANGE"),
        ("policy.lora.r", "[4", "AUTOML_RANGE"),
        (DECAY, "1..2", "AUTOML_RANGE"),
        (DECAY, "cosine,zigzag", "AUTOML_RANGE"),
        ("redis", "1,2", "AUTOML_RANGE"),
    ],
)
def test_a_range_that_means_nothing_is_refused(key: str, text: str, code: str) -> None:
    assert codes(lora(), {key: text}) == [code]


def test_every_wrong_range_is_told_at_once() -> None:
    assert codes(template(), {"train.optm_l": "", "redis": "1,2"}) == ["AUTOML_RANGE", "AUTOML_RANGE"]
    assert codes(template(), {"train.epsilon": "", RATE: "2..1"}) == ["AUTOML_RANGE", "AUTOML_RANGE"]


def test_fps_and_nframes_are_never_searched_together_and_one_of_them_unsets_the_other() -> None:
    both = {"custom.vision.fps": "", "custom.vision.nframes": ""}
    assert codes(template(), both) == ["AUTOML_RANGE"]
    found = space(template(), {"custom.vision.fps": "1..3"})
    made = found.trial_spec(template(), {"custom.vision.fps": 2.0})
    assert (made.custom.vision.fps, made.custom.vision.nframes) == (2.0, None)
    assert found.notes == ("custom.vision.nframes is unset, as custom.vision.fps is searched",)
    assert found.default(template())["custom.vision.fps"] == 2.0


def test_what_is_fixed_is_not_searched_and_stands_in_every_trial() -> None:
    found = space(lora(), fixed={"policy.lora.r": 8, "num_epochs": 2})
    assert "policy.lora.r" not in found and "train.epoch" not in found
    made = found.trial_spec(lora(), {RATE: 2e-4})
    assert made.policy.lora and (made.policy.lora.r, made.train.epoch, made.train.optm_lr) == (8, 2, 2e-4)
    assert codes(lora(), {"policy.lora.r": "4,8"}, {"policy.lora.r": 8}) == ["AUTOML_RANGE"]
    assert codes(lora(), fixed={"policy.lora.r": 0, "train.epoch": "x"}) == ["AUTOML_RANGE", "AUTOML_RANGE"]
    assert codes(lora(), fixed={"policy.lora.rank": 8}) == ["AUTOML_RANGE"]
    everything = {parameter.name: value_at(template(), parameter.name) for parameter in space(template()).parameters}
    assert codes(template(), fixed=everything) == ["AUTOML_RANGE"]


def test_keys_of_lora_mean_nothing_without_it() -> None:
    assert codes(template(), {"policy.lora.r": "4,8"}) == ["AUTOML_RANGE"]
    assert codes(template(), fixed={"policy.lora.r": 8}) == ["AUTOML_RANGE"]


def test_what_falls_is_searched_only_where_the_rate_falls() -> None:
    found = space(template(), {"train.optm_decay_ratio": "", DECAY: "cosine,none"})
    assert found["train.optm_decay_ratio"].condition == Condition(DECAY, ("cosine",))
    names = [parameter.name for parameter in found.parameters]
    assert names.index(DECAY) < names.index("train.optm_decay_ratio")
    assert "train.optm_decay_ratio" not in found.applicable_values({DECAY: "none", "train.optm_decay_ratio": 0.5})
    assert "train.optm_decay_ratio" in found.applicable_values({DECAY: "cosine", "train.optm_decay_ratio": 0.5})
    assert space(template(), {"train.optm_decay_ratio": ""}, {DECAY: "cosine"}).parameters[-1].condition is None
    assert codes(template(), {"train.optm_decay_ratio": ""}, {DECAY: "none"}) == ["AUTOML_RANGE"]
    warm = space(template(), {"train.optm_warmup_epochs": ""})
    assert warm.fixed == {"train.optm_warmup_steps": None}


def test_the_template_is_a_point_of_the_space_even_outside_of_its_ranges() -> None:
    spec = lora(train__optm_lr=5e-3)
    found = space(spec)
    values = found.default(spec)
    assert values[RATE] == 5e-3 and values["policy.lora.lora_alpha"] == 32.0
    assert found.trial_spec(spec, values) == spec
    assert found[RATE].unit(5e-3) == 1.0


def test_what_someone_proposes_outside_of_the_space_is_told() -> None:
    found = space(lora())
    assert found.problems({RATE: 1e-4, "policy.lora.r": 16}) == []
    told = found.problems({RATE: 1.0, "policy.lora.r": 3, "train.seed": 1, DECAY: True})
    assert [each.code for each in told] == ["AUTOML_RANGE"] * 4


def test_a_changed_space_has_another_description_and_the_same_one_the_same() -> None:
    def text(one: Space) -> str:
        return json.dumps(one.as_dict(), sort_keys=True)

    one = text(space(lora(), {RATE: "1e-5..1e-3:log"}, samples=100))
    assert one == text(space(lora(), {"learning_rate": "1e-5..1e-3:log"}, samples=100))
    others = [space(lora(), {RATE: "1e-5..1e-3"}), space(lora(), samples=50), space(lora(), fixed={"train.epoch": 1})]
    assert len({one, *map(text, others)}) == 4


def test_only_the_named_keys_are_searched() -> None:
    found = space(template(), only=["learning_rate", "train.optm_warmup_epochs"])
    assert [parameter.name for parameter in found.parameters] == [RATE, "train.optm_warmup_epochs"]
    assert space(template(), {RATE: "1e-5..1e-4"}, only=[RATE])[RATE].high == 1e-4
    for ranges, only, where in (({DECAY: ""}, [RATE], f"--range {DECAY}"), ({}, ["train.wings"], "--only train.wings")):
        with pytest.raises(ProblemError) as wrong:
            space(template(), ranges, only=only)
        assert [problem.where for problem in wrong.value.problems] == [where]


def test_a_range_that_leaves_the_templates_value_out_is_said() -> None:
    outside = space(template(train__optm_lr=1e-5), {RATE: "1e-4..1e-2", DECAY: "linear,cosine"})
    (note,) = [note for note in outside.notes if RATE in note]
    assert "1e-05 is outside of 0.0001..0.01 (log)" in note and "trial 0" in note
    assert not [note for note in space(template(train__optm_lr=1e-5), {RATE: "1e-6..1e-2:log"}).notes if RATE in note]


PART_RATES = {"decoder": 1e-5, "vision": 1e-6}
OF_DECODER, OF_VISION = f"{RATE}.decoder", f"{RATE}.vision"


def test_each_rate_of_a_part_is_searched_by_itself() -> None:
    spec = template(train__optm_lr=PART_RATES)
    parts = space(spec, {OF_VISION: "1e-7..1e-5:log"})
    assert RATE not in parts and (parts[OF_VISION].low, parts[OF_VISION].high) == (1e-7, 1e-5)
    assert (parts[OF_DECODER].low, parts[OF_DECODER].high, parts[OF_DECODER].log) == (1e-6, 1e-3, True)
    values = parts.default(spec)
    assert (values[OF_DECODER], values[OF_VISION]) == (1e-5, 1e-6)
    trial = parts.trial_spec(spec, {**values, OF_VISION: 3e-6})
    assert trial.train.optm_lr == {"decoder": 1e-5, "vision": 3e-6} and spec.train.optm_lr == PART_RATES
    fixed = space(spec, {}, {OF_VISION: 2e-6})
    assert OF_VISION not in fixed and value_at(fixed.trial_spec(spec, {}), OF_VISION) == 2e-6
    assert RATE not in space(spec, {}, {RATE: 1e-5})


@pytest.mark.parametrize(
    ("rates", "ranges", "fixed"),
    [
        (1e-5, {OF_VISION: "1e-7..1e-5"}, {}),  # the template has one rate
        (1e-5, {}, {OF_VISION: 1e-6}),
        (PART_RATES, {RATE: "1e-7..1e-5"}, {}),  # it has one for each part
        (PART_RATES, {f"{RATE}.merger": "1e-7..1e-5"}, {}),
        (PART_RATES, {OF_VISION: "1e-7..1e-5"}, {RATE: 1e-5}),
        ([1e-5, 1e-6], {}, {}),
    ],
)
def test_rates_of_parts_that_the_template_does_not_have_are_refused(
    rates: Any, ranges: dict[str, str], fixed: dict[str, Any]
) -> None:
    assert codes(template(train__optm_lr=rates), ranges, fixed) == ["AUTOML_RANGE"]
