"""GRPO from spec to export on one rank: what is copied to the rollout model, what ends a run, and where it goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import forked
import numpy as np
import pytest
import rl_ranks
import torch
from clips import undecodable, write_clip
from in_process import events, one_rank
from rl_world import UNCHANGED, require_unchanged, rl_here, rl_model, rl_spec
from tiny_world import engine_command, run_engine, tiny_data

from vidqa.core.pages.page import image_url
from vidqa.core.pages.training import report
from vidqa.core.pages.training_data import read_training
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import read_rollouts
from vidqa.data.record import Record, Turn
from vidqa.engine.actions import export
from vidqa.engine.data import prefetch
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.prefetch import MEDIUM_AT_LEAST
from vidqa.engine.families.qwen_vl import VISION_IDS
from vidqa.engine.model import quantized
from vidqa.engine.rl import rollout, rollout_model, train
from vidqa.engine.rl.rollout import Question, Rollouts
from vidqa.engine.rl.rollout_model import RolloutModel
from vidqa.engine.training.objectives import PolicyGradient
from vidqa.evaluation.pages import posters
from vidqa.planning.samples import Prompting, Sample

LORA = {"policy.lora": {}, "policy.lora.lora_dropout": 0.0, "policy.lora.init_lora_weights": False}
NEW_LORA = {**LORA, "policy.lora.init_lora_weights": True}
FAMILIES = ("qwen3_vl", "qwen2_5_vl")


@pytest.fixture(scope="module", params=FAMILIES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return rl_model(tmp_path_factory.mktemp(request.param), family=request.param)


@pytest.fixture(scope="module")
def one_world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return rl_model(tmp_path_factory.mktemp("one"))


def code_of(run: Any) -> str:
    with pytest.raises(ProblemError) as raised:
        run()
    return raised.value.problems[0].code


def difference_of(run: Any) -> str:
    """What of trainer and rollout model differs in a run that ends for it."""
    with pytest.raises(ProblemError, match="ENGINE_ROLLOUT_DIFFERS") as raised:
        run()
    return "log-probabilities" if raised.value.problems[0].where.startswith("step") else "weights"


@pytest.mark.parametrize("lora", [False, True])
def test_rollout_and_trainer_agree_on_every_token_after_every_update(
    world: tuple[Path, Path], tmp_path: Path, lora: bool
) -> None:
    """Step 1 has ratios of exactly 1 and a divergence from the start of exactly 0."""
    over = {"train.epoch": 2, "train.train_policy.kl_beta": 0.1, "train.optm_lr": 1e-2}
    run = rl_here(rl_spec(tmp_path, world, {**over, **(NEW_LORA if lora else {})}), tmp_path / "run")
    assert max(events(run, "train/rollout_difference_max").values()) < 1e-4
    assert events(run, "train/ratio_difference_max")[1] == 0.0
    divergence = events(run, "train/kl")
    assert divergence[1] == 0.0 and divergence[4] > 0
    proof = json.loads((run / "run.json").read_text())["export_proof"]
    assert proof["proved"]


@pytest.mark.parametrize(("lora", "steps"), [(False, 20), (True, 6)])
def test_weights_that_no_update_changes_leave_the_difference_flat(
    one_world: tuple[Path, Path], tmp_path: Path, lora: bool, steps: int
) -> None:
    """And every ratio to the old log-probabilities at exactly 1, every divergence from the start at exactly 0."""
    over = {**UNCHANGED, **(NEW_LORA if lora else {})}
    run = rl_here(rl_spec(tmp_path, one_world, {"train.epoch": steps // 2, **over}), tmp_path / "run")
    differences = events(run, "train/rollout_difference_max")
    assert len(differences) == steps and max(differences.values()) < 1e-5
    require_unchanged(run)


def test_rollout_and_trainer_agree_in_half_precision(one_world: tuple[Path, Path], tmp_path: Path) -> None:
    """By less than 0.01 on average, after updates too."""
    over = {"train.epoch": 2, "train.param_dtype": "bfloat16", "train.optm_lr": 1e-2}
    run = rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")
    assert max(events(run, "train/rollout_difference").values()) <= 1e-2


def skip_one_unit(tensors: Any, targets: Any) -> None:
    if not any("layers.1." in name for name in tensors):
        COPY(tensors, targets)


COPY = rollout_model.copy_weights


def test_a_unit_that_is_not_copied_ends_the_run(
    one_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_model, "copy_weights", skip_one_unit)
    spec = rl_spec(tmp_path, one_world)
    assert difference_of(lambda: rl_here(spec, tmp_path / "run")) == "weights"


def test_a_bias_that_is_a_copy_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-VL's biases of query, key and value stand together in one tensor."""
    world = rl_model(tmp_path, family="qwen2_5_vl")
    concatenated_views = quantized.concatenated_views

    def copied(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
        is_bias = parameters[0].ndim == 1
        return torch.cat([parameter.data for parameter in parameters]) if is_bias else concatenated_views(parameters)

    monkeypatch.setattr(quantized, "concatenated_views", copied)
    assert difference_of(lambda: rl_here(rl_spec(tmp_path, world), tmp_path / "run")) == "weights"


def test_an_adapter_of_an_earlier_step_ends_the_run(
    one_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied after the first time; every later tensor is compared all the same."""
    calls = []

    def once(tensors: Any, targets: Any) -> None:
        calls.append(1)
        if len(calls) <= UNITS:
            COPY(tensors, targets)

    monkeypatch.setattr(rollout_model, "copy_weights", once)
    with pytest.MonkeyPatch.context() as counting:
        counting.setattr(rollout_model, "copy_weights", COPY)
    UNITS = 10_000
    sync = RolloutModel.sync

    def counted(self: RolloutModel) -> None:
        nonlocal UNITS
        sync(self)
        UNITS = len(self.units)

    monkeypatch.setattr(RolloutModel, "sync", counted)
    spec = rl_spec(tmp_path, one_world, LORA)
    assert difference_of(lambda: rl_here(spec, tmp_path / "run")) == "weights"
    assert len(calls) > UNITS  # it is the second time that differs


def test_completions_of_another_question_end_the_run(
    one_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = rollout.Rollouts.draw

    def shifted(*how: Any, **keys: Any) -> Any:
        groups = draw(*how, **keys)
        for group, other in zip(groups, [[*each.drawn] for each in [*groups[1:], groups[0]]], strict=True):
            group.drawn = other
        return groups

    monkeypatch.setattr(rollout.Rollouts, "draw", shifted)
    assert difference_of(lambda: rl_here(rl_spec(tmp_path, one_world), tmp_path / "run")) == "log-probabilities"


def test_another_temperature_in_the_trainer_ends_the_run(
    one_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"temperature": 0.9}
    monkeypatch.setattr(train, "PolicyGradient", lambda policy, **keys: PolicyGradient(policy, **{**keys, **other}))
    assert difference_of(lambda: rl_here(rl_spec(tmp_path, one_world), tmp_path / "run")) == "log-probabilities"


def test_the_temperature_of_the_spec_is_that_of_both(one_world: tuple[Path, Path], tmp_path: Path) -> None:
    over = {"train.train_policy.temperature": 0.7}
    run = rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")
    assert max(events(run, "train/rollout_difference_max").values()) < 1e-4


def test_placeholders_and_unknown_ids_are_never_drawn(one_world: tuple[Path, Path], tmp_path: Path) -> None:
    run = rl_here(rl_spec(tmp_path, one_world, {"rollout.max_response_length": 40}), tmp_path / "run")
    drawn = np.concatenate([line["token_ids"] for line in read_rollouts(run / "rollouts-0.jsonl.zst")])
    config = json.loads((one_world[0] / "config.json").read_text())
    banned = {value for key, value in config.items() if key in VISION_IDS}
    assert len(drawn) > 1000 and not banned & set(drawn.tolist())


def test_a_resumed_run_takes_the_same_steps(one_world: tuple[Path, Path], tmp_path: Path) -> None:
    """Questions, completions, rewards, weights, and the step at which a stop rule ends it: as if nothing had ended."""
    over = {"train.epoch": 2, "train.ckpt.save_freq": 1, "train.ckpt.export_safetensors": False}
    over |= {"engine.stop.entropy_below": 1e9, "engine.stop.patience": 3}
    whole = rl_here(rl_spec(tmp_path / "whole", one_world, over), tmp_path / "whole/run")
    spec = rl_spec(tmp_path / "cut", one_world, {**over, "train.resume": True})
    cut = tmp_path / "cut/run"
    rl_here(spec, cut, stop_after=2)
    assert len(events(cut, "rollout/reward")) == 2
    rl_here(spec, cut)
    assert len(events(whole, "rollout/reward")) == 3
    for key in ("rollout/reward", "train/loss", "train/grad_norm", "train/entropy", "rollout/length"):
        assert events(cut, key) == events(whole, key), key
    lines = [
        [(line["step"], line["slot"], line["token_ids"]) for line in read_rollouts(run / "rollouts-0.jsonl.zst")]
        for run in (whole, cut)
    ]
    assert lines[0] == lines[1]


def test_several_updates_of_one_rollout_clip_their_ratios(one_world: tuple[Path, Path], tmp_path: Path) -> None:
    over = {
        "train.train_policy.mu_iterations": 2,
        "train.train_policy.batch_size_per_optimize": 8,
        "train.optm_lr": 3e-2,
        "train.epoch": 2,
    }
    run = rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")
    assert max(events(run, "train/ratio_difference_max").values()) > 0.05
    assert max(events(run, "train/clip_low").values()) > 0 or max(events(run, "train/clip_high").values()) > 0
    facts = json.loads(next((run / "checkpoints").glob("*/trainer.json")).read_text())
    assert facts["updates"] == 4 * facts["step"]


def test_dapo_draws_further_questions_for_groups_of_equal_rewards(one_world: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(
        "def even_slot(text, record, token_ids, finish_reason):\n"
        "    return float(token_ids[0] % 2) if record.id in ('r0', 'r2', 'r4', 'r6') else 0.5\n"
    )
    over = {
        "train.train_policy.variant": "dapo",
        "train.train_policy.reward_function": f"{tmp_path / 'reward.py'}:even_slot",
        "train.train_policy.filter_reward_metric": f"{tmp_path / 'reward.py'}:even_slot",
        "train.train_policy.max_retry_for_on_policy": 4,
        "rollout.n_generation": 8,
        "train.train_batch_per_replica": 16,
        "train.max_num_steps": 2,
    }
    run = rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")
    assert sum(events(run, "rollout/groups_dropped").values()) > 0
    lines = list(read_rollouts(run / "rollouts-0.jsonl.zst"))
    asked = [line["id"] for line in lines if not line["dropped"]]
    assert set(asked) <= {"r0", "r2", "r4", "r6"} and len(asked) == 2 * 16
    dropped = Counter((line["step"], line["slot"]) for line in lines if line["dropped"])
    assert set(dropped.values()) == {8}  # every completion of a group
    counts = Counter(step for step, _ in dropped)
    assert counts == {step: count for step, count in events(run, "rollout/groups_dropped").items() if count}
    assert not any(line["advantage"] for line in lines if line["dropped"])
    facts = json.loads(next((run / "checkpoints").glob("*/trainer.json")).read_text())
    assert facts["questions"] > 2 * facts["step"]


@pytest.mark.parametrize(
    ("reward", "code"),
    [
        ("return 1.0", "REWARD_CONSTANT"),
        ("return float('nan')", "USER_FUNCTION"),
        ("return 'much'", "USER_FUNCTION"),
        ("raise ValueError(record.id)", "USER_FUNCTION"),
        ("import os; os._exit(3)", "USER_FUNCTION"),
    ],
)
def test_rewards_of_ones_own_that_go_wrong_end_the_run(
    one_world: tuple[Path, Path], tmp_path: Path, reward: str, code: str
) -> None:
    (tmp_path / "own.py").write_text(f"def own(text, record, token_ids, finish_reason):\n    {reward}\n")
    over = {
        "train.train_policy.reward_function": f"{tmp_path / 'own.py'}:own",
        "engine.reward_timeout_s": 1.0,
        "train.max_num_steps": 1,
    }
    assert code_of(lambda: rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")) == code


def test_a_reward_that_hangs_ends_the_run_before_the_others_are_tried(
    one_world: tuple[Path, Path], tmp_path: Path
) -> None:
    """All 16 of the step would each take the limit."""
    calls = tmp_path / "calls"
    (tmp_path / "own.py").write_text(
        "import time\n"
        "def own(text, record, token_ids, finish_reason):\n"
        f"    with open({str(calls)!r}, 'a') as file:\n"
        "        file.write('called ')\n"
        "    time.sleep(30)\n"
    )
    over = {
        "train.train_policy.reward_function": f"{tmp_path / 'own.py'}:own",
        "engine.reward_timeout_s": 1.0,
        "train.max_num_steps": 1,
    }
    assert code_of(lambda: rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")) == "USER_FUNCTION"
    assert 1 <= len(calls.read_text().split()) <= 2  # the next one may have begun


def validated_on(root: Path) -> dict[str, Any]:
    return {
        "custom.val_dataset.annotation_path": str(root / "annotations.json"),
        "custom.val_dataset.media_path": str(root),
        "validation.enable": True,
        "validation.val_before_train": True,
    }


def test_validation_says_which_export_is_best(one_world: tuple[Path, Path], tmp_path: Path) -> None:
    """And its export is proved again, with a sample of a set that is read in another mode than the training set."""
    rows = json.loads((one_world[1] / "annotations.json").read_text())
    for row in rows:
        answer = row["conversations"][1]
        answer["value"] = f"<think>\nbits\n</think>\n\n<answer>\n{answer['value']}\n</answer>"
    (tmp_path / "reasoned.json").write_text(json.dumps(rows))
    over = {
        **validated_on(one_world[1]),
        "custom.train_dataset.response_mode": "think",
        "custom.val_dataset.annotation_path": str(tmp_path / "reasoned.json"),
        "validation.freq": 1,
        "train.ckpt.save_freq": 1,
        "train.epoch": 2,
    }
    run = rl_here(rl_spec(tmp_path / "run", one_world, over), tmp_path / "run")
    rewards = events(run, "val/reward")
    assert set(rewards) == {0, 1, 2, 3, 4}
    best = json.loads((run / "best.json").read_text())
    assert best["metric"] == "val/accuracy" and f"step_{best['step']}" == best["name"]
    trainer = json.loads((run / "checkpoints/step_4/trainer.json").read_text())
    assert trainer["validation_start"] == {"val/accuracy": events(run, "val/accuracy")[0]}
    export.main(Namespace(run=run, export=(run / "best").resolve(), out=tmp_path / "out", merge=False))


def test_a_validation_holds_the_frames_of_a_few_questions(
    one_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are not in the cache, those of a large set do not fit into memory."""
    questions, tickets, held = list[Question](), list[list[Any]](), list[int]()
    ask, frames, request = Rollouts.question, Rollouts.frames, FrameSource.request

    def counted(rollouts: Rollouts, question: Question, ticket: list[Any]) -> Any:
        shown = frames(rollouts, question, ticket)
        held.append(sum(map(bool, tickets)) + sum(one.frames is not None for one in questions))
        return shown

    monkeypatch.setattr(Rollouts, "question", lambda *asked: questions.append(ask(*asked)) or questions[-1])
    monkeypatch.setattr(Rollouts, "frames", counted)
    monkeypatch.setattr(FrameSource, "request", lambda *asked: tickets.append(request(*asked)) or tickets[-1])
    monkeypatch.setattr(prefetch, "DECODE_AHEAD", MEDIUM_AT_LEAST)
    over = {
        **validated_on(one_world[1]),
        "train.max_num_steps": 1,
        "train.train_batch_per_replica": 4,
        "engine.frame_cache_gb": 0,
    }
    run = rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")
    # Four rows at a time, one behind them that is decoded, the question of the step, and the batch that proves exports.
    assert events(run, "val/questions") == {0: 10, 1: 10} and max(held) <= 7


@pytest.mark.parametrize("on_bad_sample", ["fail", "quarantine"])
def test_a_bad_validation_sample_ends_a_run_or_is_left_out(
    one_world: tuple[Path, Path], tmp_path: Path, on_bad_sample: str
) -> None:
    root = Path(shutil.copytree(one_world[1], tmp_path / "held"))
    clip = root / "videos/1.mp4"
    clip.write_bytes(undecodable(write_clip(clip, frames=64, fps=8, height=64)))
    over = {
        **validated_on(root),
        "engine.on_bad_sample": on_bad_sample,
        "train.max_num_steps": 1,
    }
    spec, run = rl_spec(tmp_path, one_world, over), tmp_path / "run"
    if on_bad_sample == "fail":
        assert code_of(lambda: rl_here(spec, run)) == "ENGINE_BAD_SAMPLE"
    else:
        questions = len(json.loads((root / "annotations.json").read_text()))
        assert events(rl_here(spec, run), "val/questions") == {0: questions - 2, 1: questions - 2}
        assert (run / "quarantine.json").exists()


@pytest.mark.parametrize("part", ["rollouts", "validation"])
def test_a_run_without_any_question_that_can_be_decoded_ends(
    one_world: tuple[Path, Path], tmp_path: Path, part: str
) -> None:
    root = tiny_data(tmp_path, clips=1, images=0, texts=0)
    clip = root / "videos/0.mp4"
    clip.write_bytes(undecodable(write_clip(clip, frames=64, fps=8, height=64)))
    over = {"engine.on_bad_sample": "quarantine", "train.train_batch_per_replica": 4}
    over |= validated_on(root) if part == "validation" else {}
    spec = rl_spec(tmp_path, one_world if part == "validation" else (one_world[0], root), over)
    with pytest.raises(ProblemError, match=f"DATA_EMPTY at {part}"):
        rl_here(spec, tmp_path / "run")


def test_a_step_that_learns_nothing_hears_a_signal(
    one_world: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop_all(training: train.Training, _: Any) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    monkeypatch.setattr(train.Training, "_is_mixed", drop_all)
    over = {"train.train_policy.variant": "dapo", "train.train_policy.max_retry_for_on_policy": 0}
    run = rl_here(rl_spec(tmp_path, one_world, over), tmp_path / "run")
    assert set(events(run, "rollout/groups_dropped")) == {1}
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_1"]


@pytest.mark.parametrize(("longest_prompt", "is_permuted"), [(21, True), (20, False)])
def test_options_stay_where_the_permuted_prompt_would_be_the_longest(longest_prompt: int, is_permuted: bool) -> None:
    """The rollout model has room for the longest prompt, and would refuse a longer one as a bad sample."""
    turns = (Turn("user", ("Which?\n(A) red\n(B) blue\n(C) grey\n(D) white",)), Turn("assistant", ("(B)",)))
    sample = Sample(Record("r", turns), (), Prompting(), length=20, supervised=0)
    training = SimpleNamespace(
        longest_prompt=longest_prompt,
        policy=SimpleNamespace(dataloader_seed=0),
        spec=SimpleNamespace(engine=SimpleNamespace(shuffle_options=True)),
        schedule=SimpleNamespace(data=SimpleNamespace(train=[sample])),
        stream=SimpleNamespace(at=lambda _: 0),
        planner=SimpleNamespace(plan=lambda records: ([replace(sample, record=records[0], length=21)], [])),
        rollouts=SimpleNamespace(question=lambda _, asked: asked),
    )
    asked: Any = train.Training.question(cast(train.Training, training), 0)
    assert (asked.record is not sample.record) == is_permuted


@pytest.mark.parametrize("ended_by", ["signal", "rule"])
def test_a_stopped_run_is_measured_once_after_each_step(
    one_world: tuple[Path, Path], tmp_path: Path, ended_by: str
) -> None:
    """A signal leaves no time for a validation and an export, which the run that goes on makes up for: it logs them
    alone. A stop rule leaves time."""
    root = one_world[1]
    over = {
        "custom.val_dataset.annotation_path": str(root / "annotations.json"),
        "custom.val_dataset.media_path": str(root),
        "validation.enable": True,
        "validation.freq": 1,
        "train.max_num_steps": 2,
        "train.ckpt.save_freq": 1,
        "train.resume": True,
    }
    run, has_time = tmp_path / "run", ended_by == "rule"
    stop = {"engine.stop.entropy_below": 1e9, "engine.stop.patience": 1} if has_time else {}
    rl_here(rl_spec(tmp_path, one_world, {**over, **stop}), run, stop_after=None if has_time else 1)
    exports = [json.loads(path.read_text()) for path in run.glob("safetensors/*/export.json")]
    assert [bool(export["measured"]) for export in exports] == [True] * has_time
    rl_here(rl_spec(tmp_path, one_world, over), run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == ([1, 2] if has_time else [1, 1, 2])
    assert set(events(run, "val/reward")) == {1, 2}
    if not has_time:
        assert {"step", "time"} == set(lines[0]) & set(lines[1])
        assert "val/reward" in lines[1] and set(lines[0]) | set(lines[1]) == set(lines[2])


@pytest.mark.slow
@pytest.mark.parametrize("done", [0, 2])
def test_two_ranks_take_the_steps_of_one(one_world: tuple[Path, Path], tmp_path: Path, done: int) -> None:
    """The same questions and draws, whichever rank has them, and the same updates: from the start, or from a checkpoint
    of one rank on. And they replay what they did."""
    over = {"train.epoch": 2, "train.train_policy.kl_beta": 0.05, "train.ckpt.save_freq": 1}
    one = rl_here(rl_spec(tmp_path / "one", one_world, over), tmp_path / "one/run")
    over |= {"train.resume": str(one / f"checkpoints/step_{done}")} if done else {}
    spec = rl_spec(tmp_path / "two", one_world, {**over, "policy.parallelism.dp_shard_size": 2})
    two = tmp_path / "two/run"
    run_engine("grpo", spec, two, 2)
    for key in ("rollout/reward", "rollout/length", "train/loss", "train/grad_norm", "train/entropy", "train/kl"):
        of_one, of_two = (
            {step: value for step, value in events(run, key).items() if step > done} for run in (one, two)
        )
        assert of_two[done + 1] == pytest.approx(of_one[done + 1], rel=1e-6, abs=1e-7), key
        # Adam's first steps are as long for a gradient that is rounding alone as for any other.
        assert of_two == pytest.approx(of_one, rel=2e-4, abs=1e-6), key
    assert json.loads((two / "run.json").read_text())["export_proof"]["proved"]
    replayed = forked.run([*engine_command("grpo", spec, two / "proof", 2), "--verify"], timeout=180)
    assert replayed.returncode == 0, replayed.stderr[-3000:]
    assert json.loads((two / "proof/replay.json").read_text())["agree"]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["dp_shard_size", "dp_replicate_size"])
def test_two_ranks_have_the_gradient_of_one(one_world: tuple[Path, Path], tmp_path: Path, mesh: str) -> None:
    """Of the same completions, three quarters of them on one rank."""
    over = {"train.max_num_steps": 1, "train.train_policy.kl_beta": 0.05}
    alone = rl_spec(tmp_path / "alone", one_world, over)
    run = rl_here(alone, tmp_path / "alone/run")
    with one_rank():
        loss, norm, moments = rl_ranks.first_update(alone, run, tmp_path / "alone/again")
    assert (loss, norm) == (events(run, "train/loss")[1], events(run, "train/grad_norm")[1])
    spec = rl_spec(tmp_path / "two", one_world, {**over, f"policy.parallelism.{mesh}": 2})
    torchrun = [sys.executable, "-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", "2"]
    words = [rl_ranks.__file__, str(spec), str(run), str(tmp_path / "two.pt")]
    done = forked.run([*torchrun, *words], timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    loss_of_two, norm_of_two, moments_of_two = torch.load(tmp_path / "two.pt")
    assert loss_of_two == pytest.approx(loss, rel=1e-6, abs=1e-7)
    assert norm_of_two == pytest.approx(norm, rel=1e-6)
    assert (moments_of_two - moments).norm() <= 1e-6 * moments.norm()


def test_the_report_shows_rewards_and_groups_of_the_last_step_with_frames(
    one_world: tuple[Path, Path], tmp_path: Path
) -> None:
    run = rl_here(rl_spec(tmp_path, one_world), tmp_path / "run")
    lines = [line for line in read_rollouts(run / "rollouts-0.jsonl.zst") if line["step"] == 2]
    html = report(read_training(run), posters)
    assert html.count("mean reward") == 1 + 4 and "Completions of step 2" in html
    shown = {line["id"]: poster for line in lines for poster in [posters(line)]}
    assert any(len(images) == 4 for images in shown.values())
    for name, images in shown.items():
        _, behind = html.split(f"<h3>{name}, mean reward", 1)
        drawn = re.findall('<img src="([^"]+)"', behind.partition("<h3>")[0])
        assert drawn == [image_url(image) for image in images], name
    for title in (
        "Reward: odd",
        "Tokens per completion",
        "Entropy, nats per token",
        "Probability ratio",
        "Clipped tokens",
    ):
        assert title in html, title
    first = next(line for line in lines if line["media"])
    first["media"][0]["path"] = str(tmp_path / "gone.mp4")
    with pytest.raises(ProblemError):
        posters(first)
    assert "No frames: " in report(read_training(run), lambda line: posters(first))
