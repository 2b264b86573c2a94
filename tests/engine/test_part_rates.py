"""Learning rates by part of the model, from the spec to the optimizer's groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process import events, train_here
from safetensors.torch import load_file
from tiny_world import tiny_data, tiny_model, tiny_spec

from vidqa.core.problem import ProblemError
from vidqa.preflight.report import preflight
from vidqa.spec import Layer, resolve
from vidqa.spec.schedule import part_of, part_problems, rate_of

NAMES = {
    "model.visual.patch_embed.proj.weight": "vision",
    "model.visual.blocks.0.attn.qkv.lora_A.default.weight": "vision",
    "model.visual.merger.linear_fc1.weight": "merger",
    "model.visual.deepstack_merger_list.1.norm.weight": "merger",
    "model.visual.merger.modules_to_save.default.norm.weight": "merger",
    "model.language_model.layers.0.mlp.up_proj.weight": "decoder",
    "lm_head.weight": "decoder",
}


def test_every_parameter_is_of_one_part() -> None:
    assert {name: part_of(name) for name in NAMES} == NAMES


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (1e-5, (1e-5, 1e-5, 1e-5)),
        ([1e-5, 1e-6], (1e-5, 1e-6, 1e-6)),
        ({"global": 1e-5, "visual": 1e-6}, (1e-5, 1e-6, 1e-6)),
        ({"decoder": 1e-5, "vision": 1e-6, "merger": 1e-4}, (1e-5, 1e-6, 1e-4)),
        ({"global": 1e-5, "merger": 1e-4}, (1e-5, 1e-5, 1e-4)),
        ({"decoder": 1e-5}, (1e-5, None, None)),
    ],
)
def test_rates_of_parts(rates: Any, expected: tuple[float | None, ...]) -> None:
    assert tuple(rate_of(rates, part) for part in ("decoder", "vision", "merger")) == expected


def test_a_part_that_is_frozen_and_has_a_rate_is_a_problem_as_is_the_other_way_round() -> None:
    decoder = ["model.language_model.layers.0.mlp.up_proj.weight"]
    assert part_problems([1e-5, 1e-6], NAMES) == [] == part_problems({"global": 1e-5}, decoder)
    (frozen,) = part_problems([1e-5, 1e-6], decoder)
    assert (frozen.code, frozen.where) == ("SPEC_CONFLICT", "train.optm_lr.vision")
    without = part_problems({"decoder": 1e-5}, NAMES)
    assert [problem.code for problem in without] == ["SPEC_VALUE"] * 2


@pytest.mark.parametrize(("rates", "where"), [([1e-5] * 2 + [1e-6], "train.optm_lr"), ({"tower": 1e-5}, "tower")])
def test_other_shapes_are_problems(tmp_path: Path, rates: Any, where: str) -> None:
    with pytest.raises(ProblemError) as wrong:
        resolve("train", [Layer("x", {"custom.train_dataset.annotation_path": "/d", "train.optm_lr": rates})])
    assert any(problem.code == "SPEC_VALUE" and where in problem.where for problem in wrong.value.problems)


def test_parts_move_by_their_rates_and_a_run_goes_on_with_them(tmp_path: Path) -> None:
    """Adam's first steps are of the size of the rate, whatever the gradient."""
    model, root = tiny_model(tmp_path), tiny_data(tmp_path)
    rates = {"decoder": 1e-3, "vision": 1e-5, "merger": 1e-4}
    over = {"train.train_batch_per_replica": 7, "train.optm_decay_type": "none", "train.ckpt.save_freq": 1}
    over |= {"train.optm_lr": rates, "train.optm_weight_decay": 0.0, "train.max_num_steps": 2, "train.resume": True}
    spec = tiny_spec(tmp_path, model, root, over)
    run = train_here(spec, tmp_path / "run", stop_after=1)
    before, after = load_file(model / "model.safetensors"), {}
    train_here(spec, run)
    assert events(run, "train/lr") == {1: 1e-3, 2: 1e-3}
    after = load_file(next((run / "safetensors").glob("*/model.safetensors")))
    moved: dict[str, float] = {}
    for name, value in after.items():
        change = (value.float() - before[name].float()).abs().max().item()
        moved[part_of(name)] = max(moved.get(part_of(name), 0.0), change)
    assert moved["decoder"] > 5 * moved["merger"] > 25 * moved["vision"] > 0


def test_preflight_names_a_rate_of_a_frozen_part(tmp_path: Path) -> None:
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=1)
    over = {"train.optm_lr": [1e-5, 1e-6], "policy.freeze_pattern": ["visual"], "train.train_batch_per_replica": 1}
    spec = tiny_spec(tmp_path, model, root, over)
    problems = preflight(spec, "local", group="model").problems
    assert "train.optm_lr.vision" in [problem.where for problem in problems if problem.code == "SPEC_CONFLICT"]
    with pytest.raises(ProblemError, match="vision has no trainable parameters"):
        train_here(spec, tmp_path / "run")
