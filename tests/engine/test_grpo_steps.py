"""Questions of every step, advantages of groups, weights of tokens, and the rules that end a run."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vidqa.core.problem import ProblemError
from vidqa.engine.rl.meter import PHASES, EarlyStopping, StepMeter
from vidqa.engine.rl.rollout import Drawn, Group, QuestionStream, advantages
from vidqa.engine.rl.train import Training
from vidqa.engine.rl.update import token_weights
from vidqa.evaluation.rewards import Reward

POLICY = SimpleNamespace(dataloader_seed=0, dataloader_shuffle=True)
LABELS = ["A"] * 80 + ["B"] * 15 + ["C"] * 5


def test_every_question_comes_once_in_an_epoch_and_in_another_order() -> None:
    stream = QuestionStream(100, [], POLICY)
    epochs = [stream.take(100 * epoch, 100) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    in_order = SimpleNamespace(dataloader_seed=0, dataloader_shuffle=False)
    assert QuestionStream(100, [], in_order).take(0, 100) == list(range(100))


def test_a_position_alone_says_which_question_comes() -> None:
    whole = QuestionStream(100, LABELS, POLICY).take(0, 500)
    later = QuestionStream(100, LABELS, POLICY)
    assert later.take(217, 100) == whole[217:317]


def test_labels_are_even_in_every_step_where_they_are_balanced() -> None:
    stream = QuestionStream(100, LABELS, POLICY)
    for step in range(20):
        drawn = Counter(LABELS[number] for number in stream.take(12 * step, 12))
        assert drawn == {"A": 4, "B": 4, "C": 4}


def test_equal_rewards_have_no_advantage_whatever_their_rounding() -> None:
    assert (advantages(np.full(8, 0.1 + 0.2), divided=True) == 0).all()
    found = advantages(np.array([1.0, 0.0, 0.0, 0.0]), divided=True)
    assert found == pytest.approx([3**0.5, *[-(3**-0.5)] * 3], rel=1e-4)
    assert advantages(np.array([1.0, 0.0]), divided=False).tolist() == [0.5, -0.5]


def test_token_weights_add_up_to_what_the_kind_of_loss_says() -> None:
    lengths, tokens = [2, 6], 8
    each = {kind: token_weights(lengths, kind, tokens, 2, None) for kind in ("token-mean", "seq-mean-token-mean")}
    for weights in each.values():
        assert sum(w * n for w, n in zip(weights, lengths, strict=True)) == pytest.approx(tokens)
    assert each["seq-mean-token-mean"][0] == 3 * each["seq-mean-token-mean"][1]
    assert token_weights(lengths, "seq-mean-token-sum", tokens, 2, 4) == [1.0, 1.0]


def test_updates_have_equally_many_questions_on_any_number_of_ranks() -> None:
    slots_by_rank = [5, 2, 9], [4]  # a rank begins with its longest question

    def slots_of(rank: int) -> list[list[int]]:
        policy = SimpleNamespace(batch_size_per_optimize=16)
        spec = SimpleNamespace(train=SimpleNamespace(train_batch_per_replica=32))
        training = SimpleNamespace(spec=spec, policy=policy, world=SimpleNamespace(gather=lambda _: slots_by_rank))
        groups = [SimpleNamespace(question=SimpleNamespace(slot=slot)) for slot in slots_by_rank[rank]]
        return [[group.question.slot for group in part] for part in Training._parts(training, groups)]

    assert (slots_of(0), slots_of(1)) == ([[2], [5, 9]], [[4], []])


def rules(**changes: object) -> SimpleNamespace:
    usual = {"patience": 2, "entropy_below": None, "kl_above": None, "truncated_above": 0.9}
    return SimpleNamespace(**{**usual, "validation_below_start": True, **changes})


def test_a_rule_ends_a_run_when_it_holds_for_its_patience() -> None:
    stopping = EarlyStopping(rules(), {})
    assert stopping.update({"rollout/truncated": 0.95}) and not stopping.stopping_rule
    assert not stopping.update({"rollout/truncated": 0.5}) and not stopping.stopping_rule  # it begins anew
    stopping.update({"rollout/truncated": 0.95})
    stopping.update({"train/kl": 9.0})  # says nothing of it
    resumed, off = (EarlyStopping(rules(truncated_above=bound), stopping.facts()) for bound in (0.9, None))
    for run in (stopping, resumed, off):
        run.update({"rollout/truncated": 1.0})
    assert (stopping.stopping_rule, resumed.stopping_rule, off.stopping_rule) == (*["truncated_above"] * 2, "")
    again = EarlyStopping(rules(), stopping.facts())  # after the rule ended it
    assert again.update({"rollout/truncated": 1.0}) and not again.stopping_rule


def test_validation_is_compared_with_its_start_and_its_error() -> None:
    stopping = EarlyStopping(rules(patience=1), {})
    start = {"val/reward": 0.6, "val/accuracy": 0.6, "val/questions": 100.0}
    assert not stopping.update(start)
    assert (
        not stopping.update({**start, "val/accuracy": 0.5}) and not stopping.stopping_rule
    )  # within twice the standard error
    assert stopping.update({**start, "val/accuracy": 0.4}) and stopping.stopping_rule == "validation_below_start"
    resumed = EarlyStopping(rules(patience=1), stopping.facts())
    assert resumed.update({**start, "val/accuracy": 0.4}) and resumed.stopping_rule
    # Rewards have any range: their own deviation counts, here 0.28 of the difference of the means.
    rewards = {"val/reward": 6.0, "val/reward_std": 2.0, "val/questions": 100.0}
    stopping = EarlyStopping(rules(), {})
    warnings = [bool(stopping.update({**rewards, "val/reward": reward})) for reward in (6.0, 5.5, 5.3)]
    assert warnings == [False, False, True]


def test_what_a_validation_waits_for_is_of_its_own_step() -> None:
    meter = StepMeter.__new__(StepMeter)
    meter.world, meter.seconds = SimpleNamespace(gather=lambda mine: [mine]), dict.fromkeys(PHASES, 0.0)
    rollouts = SimpleNamespace(reward_s=1.0, waited_s=5.0)
    with pytest.raises(ProblemError, match="DATA_EMPTY"):
        meter.validation_values([], rollouts)
    assert (meter.seconds["rewards"], meter.seconds["data_wait"]) == (1.0, 5.0)
    assert rollouts.reward_s == rollouts.waited_s == 0.0


def test_a_part_of_the_reward_that_only_later_completions_have_is_measured() -> None:
    meter = StepMeter.__new__(StepMeter)
    meter.world, meter.seconds = SimpleNamespace(gather=lambda mine: [mine]), dict.fromkeys(PHASES, 0.0)
    meter.schedule = SimpleNamespace(steps_per_epoch=1, total=1)
    completion: Any = SimpleNamespace(finish_reason="stop")
    rewards = (Reward(1.0, {"odd": 1.0}), Reward(2.0, {"odd": 1.0, "short": 1.0}))
    question: Any = None
    group = Group(question, [Drawn((7,), np.zeros(1, np.float32), completion, reward) for reward in rewards])
    rollouts: Any = SimpleNamespace(reward_s=0.0, waited_s=0.0)
    values = meter.rollout_values([group], [], "", rollouts)
    assert (values["reward/odd"], values["reward/short"]) == (1.0, 0.5)
