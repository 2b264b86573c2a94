"""The numbers of a GRPO run: rewards, groups, lengths, policy statistics, and the seconds of each phase of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from vidqa.engine.distributed import World
from vidqa.engine.families import family_of
from vidqa.engine.meter import peak_flops
from vidqa.engine.rl.rollout import Group, Rollouts
from vidqa.engine.rl.update import Micro

PHASES = ("rollout", "rewards", "data_wait", "plan", "old", "reference", "update", "sync", "validation")
Value = TypeVar("Value")


class StepMeter:
    """Of one step after the other. What it returns is the same on every rank."""

    def __init__(self, spec: Any, model: Any, world: World) -> None:
        self.world, self.peak = world, peak_flops(world.device)
        family, full = family_of(model), spec.policy.lora is None
        vision_trains = bool(family.trained_vision(model))
        self.flops = family.flops(model.config, vision_trains=vision_trains, decoder_trains=full)
        self.started = time.perf_counter()
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.trained_tokens, self.work = 0, 0.0

    def timed(self, phase: str, work: Callable[[], Value]) -> Value:
        """The value of `work`, whose time counts for `phase`."""
        began = time.perf_counter()
        value = work()
        self.seconds[phase] += time.perf_counter() - began
        return value

    def rollouts(
        self, groups: Sequence[Group], kept: Sequence[Group], right: str, rollouts: Rollouts
    ) -> dict[str, float]:
        """Of all groups that were drawn, those that dapo dropped included; `right` is the part of the reward that says
        whether a completion is right, else it is the reward itself."""
        self._waited(rollouts)
        drawn = [one for group in groups for one in group.drawn]
        judged = [group.part(right) if right else group.rewards for group in groups]
        equal = [values for values in judged if values.max() == values.min()]
        mine = {
            "reward": [one.reward.total for one in drawn],
            "length": [len(one.token_ids) for one in drawn],
            "truncated": [float(one.is_truncated) for one in drawn],
            "groups": len(groups),
            "dropped": len(groups) - len(kept),
            "equal": len([group for group in groups if group.rewards.max() == group.rewards.min()]),
            "all_right": sum(bool(values.max() > 0) for values in equal),
            "all_wrong": sum(bool(values.max() <= 0) for values in equal),
            "parts": [dict(one.reward.parts) for one in drawn],
        }
        everyone = self.world.gather(mine)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([np.array(found[name], np.float64) for found in everyone])

        counts = {name: sum(found[name] for found in everyone) for name in ("groups", "dropped", "equal")}
        rewards, lengths = joined("reward"), joined("length")
        parts = [part for found in everyone for part in found["parts"]]
        values = {
            "rollout/reward": _mean(rewards),
            "rollout/reward_std": float(rewards.std()) if len(rewards) else 0.0,
            "rollout/length": _mean(lengths),
            "rollout/length_max": float(lengths.max(initial=0)),
            "rollout/truncated": _mean(joined("truncated")),
            "rollout/groups": float(counts["groups"]),
            "rollout/groups_dropped": float(counts["dropped"]),
            "rollout/groups_equal": float(counts["equal"]),
            "rollout/groups_all_right": float(sum(found["all_right"] for found in everyone)),
            "rollout/groups_all_wrong": float(sum(found["all_wrong"] for found in everyone)),
        }
        for name in parts[0] if parts else ():
            share = np.array([part.get(name, 0.0) for part in parts])
            values |= {f"reward/{name}": _mean(share), f"reward/{name}_std": float(share.std())}
        return values

    def _waited(self, rollouts: Rollouts) -> None:
        """Take the seconds that drawing has waited for rewards and for video since the last time."""
        self.seconds["rewards"] += rollouts.reward_s
        self.seconds["data_wait"] += rollouts.waited
        rollouts.reward_s = rollouts.waited = 0.0

    def updated(self, outcome: Any, micro: Micro) -> dict[str, float]:
        """After an update (a `learner.StepOutcome`)."""
        self.trained_tokens += sum(work.tokens for work in micro.work)
        self.work += self.flops.training_flops(micro.work)
        values = {"train/loss": outcome.loss, "train/grad_norm": outcome.grad_norm}
        return values | {f"train/{name}": value for name, value in {**outcome.metrics, **outcome.maxima}.items()}

    def step_values(self) -> dict[str, float]:
        """Times and speed since the last call: of the slowest rank each, tokens and work over all ranks."""
        now = time.perf_counter()
        mine = ({**self.seconds, "step": now - self.started}, self.trained_tokens, self.work)
        self.started, self.trained_tokens, self.work = now, 0, 0.0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        everyone = self.world.gather(mine)
        names = {name for seconds, _, _ in everyone for name in seconds}
        longest = {name: max(seconds.get(name, 0.0) for seconds, _, _ in everyone) for name in names}
        tokens, work = sum(one[1] for one in everyone), sum(one[2] for one in everyone)
        values = {f"perf/{name}_s": seconds for name, seconds in sorted(longest.items())}
        if update := longest.get("update"):
            values["perf/tokens_per_s"] = tokens / update
            if self.peak:
                values["perf/mfu"] = work / (update * self.peak * self.world.size)
                values["perf/memory_gib"] = torch.cuda.max_memory_allocated() / 1024**3
        return values

    def validation(self, groups: Sequence[Group], rollouts: Rollouts) -> dict[str, float]:
        """Of answers to the held-out set."""
        self._waited(rollouts)
        drawn = [one for group in groups for one in group.drawn]
        judged = [one.completion.item["correct"] for one in drawn]
        mine = np.array(
            [
                len(groups),
                len(drawn),
                sum(correct is not None for correct in judged),
                sum(correct is True for correct in judged),
                sum(one.reward.total for one in drawn),
                sum(one.is_truncated for one in drawn),
                sum(len(one.token_ids) for one in drawn),
            ],
            np.float64,
        )
        questions, answers, counted, right, reward, truncated, tokens = sum(self.world.gather(mine))
        values = {
            "val/reward": reward / max(answers, 1),
            "val/truncated": truncated / max(answers, 1),
            "val/length": tokens / max(answers, 1),
            "val/questions": questions,
        }
        return {name: float(value) for name, value in values.items()} | (
            {"val/accuracy": float(right / counted)} if counted else {}
        )

    @staticmethod
    def line(values: Mapping[str, float]) -> str:
        """What a person sees of a step."""
        shown = (
            ("reward", "rollout/reward", "{:.3f}"),
            ("accuracy", "reward/accuracy", "{:.3f}"),
            ("val accuracy", "val/accuracy", "{:.3f}"),
            ("length", "rollout/length", "{:.0f}"),
            ("entropy", "train/entropy", "{:.3f}"),
            ("", "perf/step_s", "{:.2f} s/step"),
        )
        return "  ".join(f"{name} {text.format(values[key])}".strip() for name, key, text in shown if key in values)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
