"""GRPO's loss and gradient against another implementation in float64: one completion at a time, by transformers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import one_rank
from rl_world import rl_model, rl_spec

from vidqa.data import load_records
from vidqa.engine import distributed
from vidqa.engine.data.collate import stock_inputs
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.distributed import World
from vidqa.engine.families import torch_half
from vidqa.engine.loading.load import load_reference, load_sharded
from vidqa.engine.rl.rollout import Drawn, Group, Question
from vidqa.engine.rl.update import UpdatePlanner, without_adapters
from vidqa.engine.training.objectives import PolicyGradient
from vidqa.evaluation.rewards import Completion, Reward
from vidqa.families import family_of
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE
from vidqa.planning.rollouts import prompt_planner
from vidqa.spec import load

BANNED = (5, 17, 300)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # policy keys, and what the objective is told besides
    "as it comes": ({}, {}),
    "each completion the same": ({"loss_type": "seq-mean-token-mean"}, {}),
    "sums of tokens": ({"loss_type": "seq-mean-token-sum"}, {}),
    "sums of tokens over a constant": ({"loss_type": "seq-mean-token-sum", "unbiased_loss_max_tokens": 50}, {}),
    "no division by the deviation": ({"unbiased_advantage": True}, {}),
    "one ratio for a completion": ({"variant": "gspo"}, {"old": True}),
    "old log-probabilities": ({"epsilon_low": 0.1, "epsilon_high": 0.3, "lower_bound_ratio": 1.5}, {"old": True}),
    "a reference": ({"kl_beta": 0.7}, {"reference": True}),
    "a reference and old ones": (
        {"kl_beta": 0.2, "loss_type": "seq-mean-token-mean"},
        {"old": True, "reference": True},
    ),
    "weighed by the rollout": ({"behav_imp_weight_cap": 1.1}, {"old": True}),
    "another temperature": ({"temperature": 0.6}, {"old": True}),
}


@dataclass
class Scene:
    spec: Any
    folder: Path
    planner: Any
    groups: list[Group]
    world: World

    @cached_property
    def trainer(self) -> Any:
        """The sharded model, whose weights no test changes."""
        return load_model(self, self.spec)

    @cached_property
    def stock(self) -> tuple[Any, list[torch.Tensor]]:
        """The model of transformers in float64, and its logits [S, V] of every completion alone behind its prompt."""
        family = torch_half(self.planner.family)
        model = family.model_class.from_pretrained(self.folder, dtype=torch.float64, attn_implementation="eager")
        logits = []
        for group in self.groups:
            question = group.question
            for one in group.drawn:
                row = np.concatenate([question.prompt_ids, np.array(one.token_ids, np.int32)])
                media = [question.sample.plans], [question.frames]
                inputs = stock_inputs(self.planner, [row], *media, torch.device("cpu"))
                inputs = {
                    name: value.double() if value.is_floating_point() else value for name, value in inputs.items()
                }
                logits.append(model(**inputs).logits[0])
        return model, logits


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen2_5_vl"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Three questions with four completions each, of lengths 1 to 9, drawn by nobody."""
    folder = tmp_path_factory.mktemp(request.param)
    world = rl_model(folder, family=request.param)
    spec = load(rl_spec(folder, world), "grpo")
    planner = prompt_planner(spec, world[0])
    samples, problems = planner.plan(load_records(world[1] / "annotations.json", world[1]))
    assert not problems
    draw = np.random.default_rng(0)
    source = FrameSource(1, 60.0, None)
    groups = []
    for slot, sample in enumerate((samples[0], samples[3], samples[-1])):  # two clips, and text alone
        (frames,), _ = source.collect(source.request([sample]))
        question = Question(slot, sample, planner.encode(sample).token_ids, frames)
        group = Group(question)
        for number in range(4):
            ids = tuple(int(i) for i in draw.integers(20, 200, size=1 + (3 * number + slot) % 9))
            completion = Completion(sample.record, "", ids, "stop" if number else "length")
            logprobs = draw.normal(-5.5, 0.3, len(ids)).astype(np.float32)
            group.drawn.append(Drawn(ids, logprobs, completion, Reward(float(draw.integers(0, 3)) / 2, {})))
        groups.append(group)
    source.close()
    groups[2].drawn = [replace_reward(drawn, 1.0) for drawn in groups[2].drawn]  # all alike: no advantage
    with one_rank():
        yield Scene(spec, world[0], planner, groups, distributed.start(1, 1, 60.0))


def replace_reward(drawn: Drawn, total: float) -> Drawn:
    return Drawn(drawn.token_ids, drawn.logprobs, drawn.completion, Reward(total, {}))


def objective_of(policy: Any) -> PolicyGradient:
    return PolicyGradient(policy, temperature=policy.temperature or 1.0, banned=torch.tensor(BANNED))


def planted(drawn: Drawn, shift: float) -> np.ndarray:
    """Log-probabilities that are not the model's: some ratios are clipped, some are not."""
    pattern = np.array([0.4, -0.4, 0.05, -0.9, 0.9, 0.0])
    return (drawn.logprobs + shift * np.resize(pattern, len(drawn.token_ids))).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_float64(scene: Scene, case: str) -> None:
    keys, told = CASES[case]
    policy = scene.spec.train.train_policy.model_copy(update=keys)
    spec = scene.spec.model_copy(update={"train": scene.spec.train.model_copy(update={"train_policy": policy})})
    expected_loss, expected = by_hand(scene, policy, told)
    for pack_tokens in (100_000, 64):  # all in one pack; groups that are split over several
        loss, gradients = ours(scene, spec, told, pack_tokens)
        assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-6), pack_tokens
        for name, gradient in expected.items():
            error = (gradients[name].double() - gradient).norm() / max(gradient.norm().item(), 1e-4)
            assert error < 1e-5, (pack_tokens, name, error)


def test_packs_and_shared_prompts_change_nothing(scene: Scene) -> None:
    """All in one pack, prompts shared; and every completion alone behind a prompt of its own."""
    (loss, together), *others = [ours(scene, scene.spec, {}, pack_tokens) for pack_tokens in (100_000, 64, 1)]
    size = flat(together, together).norm()
    for other_loss, gradients in others:
        assert other_loss == pytest.approx(loss, rel=1e-6, abs=1e-7)
        assert (flat(gradients, together) - flat(together, together)).norm() <= 1e-6 * size


def flat(gradients: dict[str, torch.Tensor], names: Iterable[str]) -> torch.Tensor:
    return torch.cat([gradients[name].double().flatten() for name in names])


@pytest.mark.parametrize("lora", [False, True])
def test_before_the_first_update_ratios_are_1_and_the_divergence_is_0(scene: Scene, tmp_path: Path, lora: bool) -> None:
    """Exactly, however completions are packed: what has gradients computes as what has none, and as the reference."""
    table = {"policy.lora": {}, "policy.lora.lora_dropout": 0.0} if lora else {}
    spec = load(rl_spec(tmp_path, (scene.folder, scene.folder.parent / "data"), table), "grpo")
    model = load_model(scene, spec)
    objective = objective_of(spec.train.train_policy)
    sizes = family_of(scene.folder).sizes_of(scene.folder).vision
    for pack_tokens in (100_000, 64):
        updates = UpdatePlanner(spec, scene.planner, sizes, objective, scene.world, pack_tokens)
        micro = updates.with_values(updates.plan(scene.groups), "old", model)
        frozen = None if lora else load_reference(scene.folder, spec.policy, spec.train, scene.world, NO_RECOMPUTE)
        with without_adapters(model) if lora else nullcontext(frozen) as reference:
            micro = updates.with_values(micro, "reference", reference)
        for batch in [loaded.batch for loaded in updates.batches(micro)]:
            sums = objective(model, batch)
            assert sums.sum.requires_grad and sums.maxima["ratio_difference_max"].max() == 0
            assert sums.metrics["ratio"] == len(batch.target_N) and sums.metrics["kl"] == 0


def test_a_rank_that_has_no_group_left_takes_part(scene: Scene) -> None:
    """As in a step of dapo that drops all of its groups: in the loss and in the backward, with nothing of its own."""
    model, objective = scene.trainer, objective_of(scene.spec.train.train_policy)
    sizes = family_of(scene.folder).sizes_of(scene.folder).vision
    updates = UpdatePlanner(scene.spec, scene.planner, sizes, objective, scene.world, 400)
    micro = updates.with_values(updates.plan([]), "old", model)
    assert micro.packs == [[]]
    (batch,) = [loaded.batch for loaded in updates.batches(micro)]
    sums = objective(model, batch)
    sums.sum.backward()
    assert sums.sum == 0 and sums.count == 0 and sums.metrics.keys() == set(objective.metrics)


def load_model(scene: Scene, spec: Any) -> Any:
    with load_sharded(scene.folder, spec.policy, spec.train, scene.world, NO_RECOMPUTE) as model:
        pass
    return model


def ours(scene: Scene, spec: Any, told: dict[str, Any], pack_tokens: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by name of the packed forward."""
    model = scene.trainer
    model.zero_grad()
    sizes = family_of(scene.folder).sizes_of(scene.folder).vision
    objective = objective_of(spec.train.train_policy)
    updates = UpdatePlanner(spec, scene.planner, sizes, objective, scene.world, pack_tokens)
    micro = updates.plan(scene.groups)
    drawn = [one for group in scene.groups for one in group.drawn]
    for name, shift in (("old", 1.0), ("reference", 0.5)):
        if told.get(name):
            samples = []
            for sample, one in zip(micro.samples, drawn, strict=True):
                value = np.zeros(sample.length, np.float32)
                value[-sample.completion :] = planted(one, shift)
                samples.append(replace(sample, values={**sample.values, name: value}))
            micro = replace(micro, samples=samples)
    assert (len(micro.packs) > 1) == (pack_tokens < 1000) and (pack_tokens > 1 or len(micro.packs) == len(drawn))
    total = 0.0
    for loaded in updates.batches(micro):
        sums = objective(model, loaded.batch)
        (sums.sum / micro.tokens).backward()
        total += sums.sum.item() / micro.tokens
    gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}
    return total, gradients


def by_hand(scene: Scene, policy: Any, told: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """The same in float64, each completion alone behind its prompt, token after token."""
    model, logits_of_all = scene.stock
    model.zero_grad()
    completions = [(group, one) for group in scene.groups for one in group.drawn]
    tokens = sum(len(one.token_ids) for _, one in completions)
    total = torch.zeros((), dtype=torch.float64)
    for (group, one), logits in zip(completions, logits_of_all, strict=True):
        question = group.question
        logits = logits / (policy.temperature or 1.0)
        logits[:, list(BANNED)] = -torch.inf
        logprobs = logits.log_softmax(-1)
        rewards = [drawn.reward.total for drawn in group.drawn]
        mean = sum(rewards) / len(rewards)
        deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
        advantage = one.reward.total - mean
        if not policy.unbiased_advantage:
            advantage /= deviation + 1e-6
        count = len(one.token_ids)
        new = [logprobs[len(question.prompt_ids) - 1 + at, token] for at, token in enumerate(one.token_ids)]
        old = planted(one, 1.0).tolist() if told.get("old") else [value.item() for value in new]
        log_ratio = [now - before for now, before in zip(new, old, strict=True)]
        if policy.variant == "gspo":
            log_ratio = [sum(log_ratio) / count] * count
        weight = {
            "token-mean": 1 / tokens,
            "seq-mean-token-mean": 1 / (len(completions) * count),
            "seq-mean-token-sum": 1 / len(completions) / (policy.unbiased_loss_max_tokens or 1),
        }[policy.loss_type]
        loss = torch.zeros((), dtype=torch.float64)
        for at in range(count):
            ratio = torch.exp(log_ratio[at])
            low, high = 1 - policy.epsilon_low, 1 + policy.epsilon_high
            clipped = min(max(ratio.item(), low), high) if not low <= ratio.item() <= high else ratio
            gain = min((ratio * advantage, clipped * advantage), key=lambda value: torch.as_tensor(value).item())
            term = -gain
            if advantage < 0 and float(term) > -policy.lower_bound_ratio * advantage:
                term = torch.tensor(-policy.lower_bound_ratio * advantage, dtype=torch.float64)
            if told.get("reference"):
                gap = planted(one, 0.5).tolist()[at] - new[at]
                term = term + policy.kl_beta * (torch.exp(gap) - gap - 1)
            if policy.behav_imp_weight_cap:
                correction = np.exp(old[at] - float(one.logprobs[at]))
                term = term * min(correction, policy.behav_imp_weight_cap)
            loss = loss + weight * term
        total = total + loss
    total.backward(retain_graph=True)  # the next case has the same logits
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return total.item(), gradients
