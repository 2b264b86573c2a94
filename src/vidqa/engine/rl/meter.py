"""The numbers of a GRPO run: rewards, groups, lengths, policy statistics, and the seconds of each phase of a step; and
the rules by which a run that goes wrong warns, and then ends: saved, resumable, its best export kept."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from vidqa.engine.distributed import World
from vidqa.engine.rl.rollout import Group, Rollouts
from vidqa.engine.rl.update import Micro
from vidqa.engine.training.learner import StepOutcome, flops_of, peak_flops
from vidqa.spec.models import GrpoSpec

PHASES = ("rollout", "rewards", "data_wait", "plan", "old", "reference", "update", "sync", "validation")
COUNTS = ("groups", "groups_dropped", "groups_equal", "groups_all_right", "groups_all_wrong")
# The metric of a bound, and whether it is crossed above (1) or below it (-1).
BOUNDS = {
    "entropy_below": ("train/entropy", -1),
    "kl_above": ("train/kl", 1),
    "truncated_above": ("rollout/truncated", 1),
}
Value = TypeVar("Value")


class StepMeter:
    """Of one step after the other. What it returns is the same on every rank."""

    def __init__(self, spec: GrpoSpec, model: Any, world: World) -> None:
        self.world, self.flops, self.peak = world, flops_of(model, spec), peak_flops(world.device)
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
        self, groups: Sequence[Group], dropped: Sequence[Group], accuracy: str, rollouts: Rollouts
    ) -> dict[str, float]:
        """Of all groups that were drawn, those that dapo `dropped` included; `accuracy` is the part of the reward that
        says whether a completion is right, else it is the reward itself."""
        self._waited(rollouts)
        counts, completions = np.zeros(len(COUNTS)), []
        for number, group in enumerate([*groups, *dropped]):
            judged = group.part(accuracy) if accuracy else group.rewards
            highest, is_equal = judged.max(), judged.max() == judged.min()
            equal = group.rewards.max() == group.rewards.min()
            counts += [1, number >= len(groups), equal, is_equal and highest > 0, is_equal and highest <= 0]
            completions += [
                (one.reward.total, len(one.token_ids), one.is_truncated, dict(one.reward.parts)) for one in group.drawn
            ]
        everyone = self.world.gather((counts, completions))
        completions = [completion for _, part in everyone for completion in part]
        rewards, lengths, truncated = np.array([row[:3] for row in completions], np.float64).reshape(-1, 3).T
        values = {
            "rollout/reward": _mean(rewards),
            "rollout/reward_std": float(rewards.std()) if len(rewards) else 0.0,
            "rollout/length": _mean(lengths),
            "rollout/length_max": float(lengths.max(initial=0)),
            "rollout/truncated": _mean(truncated),
            **{
                f"rollout/{name}": float(count) for name, count in zip(COUNTS, sum(c for c, _ in everyone), strict=True)
            },
        }
        parts = [completion[3] for completion in completions]
        for name in parts[0] if parts else ():
            share = np.array([part.get(name, 0.0) for part in parts])
            values |= {f"reward/{name}": _mean(share), f"reward/{name}_std": float(share.std())}
        return values

    def _waited(self, rollouts: Rollouts) -> None:
        """Take the seconds that drawing has waited for rewards and for video since the last time."""
        self.seconds["rewards"] += rollouts.reward_s
        self.seconds["data_wait"] += rollouts.waited
        rollouts.reward_s = rollouts.waited = 0.0

    def updated(self, outcome: StepOutcome, micro: Micro) -> dict[str, float]:
        """The values of an update."""
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
        mine = np.array([len(groups), len(drawn), len(judged) - judged.count(None), judged.count(True)], np.float64)
        answers_N3 = np.array([(one.reward.total, one.is_truncated, len(one.token_ids)) for one in drawn], np.float64)
        own = np.concatenate([mine, answers_N3.reshape(-1, 3).sum(0)])
        questions, answers, counted, right, *sums = (float(total) for total in sum(self.world.gather(own)))
        means = zip(("val/reward", "val/truncated", "val/length"), sums, strict=True)
        values = {name: total / max(answers, 1) for name, total in means} | {"val/questions": questions}
        return values | ({"val/accuracy": right / counted} if counted else {})

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


class StopWatch:
    """Counts in a row the measurements that cross a bound of `rules`, a spec's engine.stop."""

    def __init__(self, rules: Any, start: Mapping[str, float] | None = None) -> None:
        self.rules = rules
        self.start = dict(start or {})  # of the validation before the first step, or the first one
        self.crossed = Counter[str]()

    def judge(self, values: Mapping[str, float]) -> list[str]:
        """What crosses a bound now, for a warning."""
        warnings = []
        for name, text in self._measured(values):
            self.crossed[name] = self.crossed[name] + 1 if text else 0
            warnings += [f"{text} ({self.crossed[name]} of {self.rules.patience} in a row)"] if text else []
        return warnings

    @property
    def ended(self) -> str:
        """The rule that ends the run; empty while none does."""
        return next((name for name, count in self.crossed.items() if count >= self.rules.patience), "")

    def _measured(self, values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """Each rule that these values tell of, and how its bound is crossed; empty where it is not."""
        for name, (metric, sign) in BOUNDS.items():
            bound, value = getattr(self.rules, name), values.get(metric)
            if bound is not None and value is not None:
                text = f"{metric} {value:.4f} is {name.partition('_')[2]} {bound:g}"
                yield name, text if sign * (value - bound) > 0 else ""
        if self.rules.validation_below_start and "val/reward" in values:
            yield "validation_below_start", self._below_start(values)

    def _below_start(self, values: Mapping[str, float]) -> str:
        """How far validation fell, where it is by more than twice the standard error of the difference."""
        metric = "val/accuracy" if "val/accuracy" in values else "val/reward"
        now, count = values[metric], values.get("val/questions", 0)
        before = self.start.setdefault(metric, now)
        deviation = math.sqrt(max(before * (1 - before) + now * (1 - now), 0.0) / max(count, 1))
        return f"{metric} fell from {before:.4f} to {now:.4f}" if now < before - 2 * deviation else ""
