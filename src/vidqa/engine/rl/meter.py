"""Metrics of a GRPO run (rewards, groups, lengths, policy statistics, seconds of each phase of a step), and early
stopping if metrics leave the bounds of the spec: the run warns first, then ends saved and resumable."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from vidqa.core.metric_names import ACCURACY, COUNTS, PHASES, REWARD, REWARD_STD
from vidqa.data.problems import EMPTY
from vidqa.engine.data.dataloader import StepSchedule
from vidqa.engine.problems import CHECK_LOG
from vidqa.engine.rl.rollout import Drawn, Group, Rollouts
from vidqa.engine.rl.update import PackedUpdate
from vidqa.engine.training.learner import StepOutcome, flops_of, peak_flops
from vidqa.spec.models import GrpoSpec

# By the spec's key in engine.stop: the metric, and whether it must not rise above (1) or fall below (-1) the bound.
BOUNDS = {
    "entropy_below": ("train/entropy", -1),
    "kl_above": ("train/kl", 1),
    "truncated_above": ("rollout/truncated", 1),
}
Value = TypeVar("Value")


class StepMeter:
    """Collects the metrics of a step. Every method that returns metrics gathers over all ranks: call it on every rank;
    the values are the same on every rank."""

    def __init__(self, schedule: StepSchedule[GrpoSpec], model: Any) -> None:
        self.schedule, self.world = schedule, schedule.world
        self.flops, self.peak = flops_of(model, schedule.spec), peak_flops(self.world.device)
        self.started, self.seconds = time.perf_counter(), dict.fromkeys(PHASES, 0.0)
        self.trained_tokens, self.trained_flops = 0, 0.0
        self.empty_steps = 0  # in a row: no question could be decoded

    def timed(self, phase: str, call: Callable[[], Value]) -> Value:
        """Call `call`, add its time to `phase`, one of PHASES, and return its result."""
        started = time.perf_counter()
        value = call()
        self.seconds[phase] += time.perf_counter() - started
        return value

    def rollout_values(
        self, groups: Sequence[Group], dropped: Sequence[Group], accuracy: str, rollouts: Rollouts
    ) -> dict[str, float]:
        """Metrics of all drawn groups, including those that DAPO `dropped`. `accuracy` names the part of the reward for
        correctness of a completion; if it is empty the whole reward is used. Raises DATA_EMPTY after an epoch of which
        nothing could be decoded."""
        self._add_waits(rollouts)
        counts, completions = np.zeros(len(COUNTS)), []
        for number, group in enumerate([*groups, *dropped]):
            scores = group.part(accuracy) if accuracy else group.rewards
            best, same_score = scores.max(), scores.max() == scores.min()
            same_reward = group.rewards.max() == group.rewards.min()
            counts += [1, number >= len(groups), same_reward, same_score and best > 0, same_score and best <= 0]
            completions += [(*_measured(drawn), dict(drawn.reward.parts)) for drawn in group.drawn]
        by_rank = self.world.gather((counts, completions))
        completions = [completion for _, of_rank in by_rank for completion in of_rank]
        self.empty_steps = 0 if completions else self.empty_steps + 1
        if self.empty_steps >= min(self.schedule.steps_per_epoch, self.schedule.total):
            raise EMPTY.error("rollouts", "no question could be decoded", CHECK_LOG)
        values = {
            **_summary("rollout", [row[:3] for row in completions]),
            "rollout/length_max": float(max((row[1] for row in completions), default=0)),
            **{f"rollout/{name}": float(count) for name, count in zip(COUNTS, sum(c for c, _ in by_rank), strict=True)},
        }
        parts = [completion[3] for completion in completions]
        for name in dict.fromkeys(name for part in parts for name in part):
            part_rewards = np.array([part.get(name, 0.0) for part in parts])
            values |= {f"reward/{name}": float(part_rewards.mean()), f"reward/{name}_std": float(part_rewards.std())}
        return values

    def _add_waits(self, rollouts: Rollouts) -> None:
        """Move the seconds that `rollouts` has waited for rewards and for video to this step's phases."""
        self.seconds["rewards"] += rollouts.reward_s
        self.seconds["data_wait"] += rollouts.waited_s
        rollouts.reward_s = rollouts.waited_s = 0.0

    def update_values(self, outcome: StepOutcome, update: PackedUpdate) -> dict[str, float]:
        """Metrics of one optimizer update; its tokens and FLOPs count for the speed of the step."""
        self.trained_tokens += sum(work.tokens for work in update.work)
        self.trained_flops += self.flops.training_flops(update.work)
        values = {"train/loss": outcome.loss, "train/grad_norm": outcome.grad_norm}
        return values | {f"train/{name}": value for name, value in {**outcome.metrics, **outcome.maxima}.items()}

    def step_values(self) -> dict[str, float]:
        """Seconds of each phase (the slowest rank's), tokens/s and MFU of all ranks, since the last call; restarts the
        measurement."""
        now = time.perf_counter()
        of_rank = ({**self.seconds, "step": now - self.started}, self.trained_tokens, self.trained_flops)
        self.started, self.trained_tokens, self.trained_flops = now, 0, 0.0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        by_rank = self.world.gather(of_rank)
        longest = {name: max(seconds[name] for seconds, _, _ in by_rank) for name in of_rank[0]}
        tokens, flops = sum(row[1] for row in by_rank), sum(row[2] for row in by_rank)
        values = {f"perf/{name}_s": seconds for name, seconds in sorted(longest.items())}
        if update := longest["update"]:
            values["perf/tokens_per_s"] = tokens / update
            if self.peak:
                values["perf/mfu"] = flops / (update * self.peak * self.world.size)
                values["perf/memory_gib"] = torch.cuda.max_memory_allocated() / 1024**3
        return values

    def validation_values(self, groups: Sequence[Group], rollouts: Rollouts) -> dict[str, float]:
        """Metrics of the answers of all ranks to the validation set; `groups` are this rank's. Accuracy is over the
        answers that can be checked, and is omitted without any. Raises DATA_EMPTY."""
        self._add_waits(rollouts)
        rows = [(*_measured(drawn), drawn.completion.item["correct"]) for group in groups for drawn in group.drawn]
        by_rank = self.world.gather((len(groups), rows))
        rows = [row for _, of_rank in by_rank for row in of_rank]
        if not rows:
            raise EMPTY.error("validation", "no question could be decoded", CHECK_LOG)
        checked = [row[3] for row in rows if row[3] is not None]  # None if it cannot be checked
        values = {**_summary("val", [row[:3] for row in rows]), "val/questions": float(sum(n for n, _ in by_rank))}
        return values | ({ACCURACY: sum(checked) / len(checked)} if checked else {})

    @staticmethod
    def line(values: Mapping[str, float]) -> str:
        """The line of a step on the terminal."""
        columns = (
            ("reward", "rollout/reward", "{:.3f}"),
            ("accuracy", "reward/accuracy", "{:.3f}"),
            ("val accuracy", ACCURACY, "{:.3f}"),
            ("length", "rollout/length", "{:.0f}"),
            ("entropy", "train/entropy", "{:.3f}"),
            ("", "perf/step_s", "{:.2f} s/step"),
        )
        return "  ".join(f"{name} {text.format(values[key])}".strip() for name, key, text in columns if key in values)


def _measured(drawn: Drawn) -> tuple[float, int, bool]:
    """Reward, length and whether it is truncated."""
    return drawn.reward.total, len(drawn.token_ids), drawn.is_truncated


def _summary(part: str, rows: Sequence[tuple[float, int, bool]]) -> dict[str, float]:
    """Metrics of the rows of `_measured`, named PART/NAME; 0 without any."""
    rewards, lengths, truncated = np.array(rows or [(0.0, 0, False)], np.float64).T
    columns = {"reward": rewards, "length": lengths, "truncated": truncated}
    means = {f"{part}/{name}": float(column.mean()) for name, column in columns.items()}
    return means | {f"{part}/reward_std": float(rewards.std())}


class EarlyStopping:
    """Stops a run after `rules.patience` measurements in a row beyond a bound. `rules` is the spec's engine.stop;
    `trainer` are the facts of the checkpoint that a run resumes from, empty for a new run."""

    def __init__(self, rules: Any, trainer: Mapping[str, Any]) -> None:
        self.rules = rules
        self.start: dict[str, float] = dict(trainer.get("validation_start", {}))  # the metrics of the first validation
        counts = trainer.get("times_crossed", {}).items()
        self.times_crossed = Counter({name: count for name, count in counts if getattr(rules, name, None)})  # in a row

    def facts(self) -> dict[str, Any]:
        """The state that a checkpoint stores. After a rule has ended the run, a resumed run counts from 0."""
        crossed = {} if self.stopping_rule else dict(self.times_crossed)
        return {"validation_start": dict(self.start), "times_crossed": crossed}

    def update(self, values: Mapping[str, float]) -> list[str]:
        """Count the metrics of a step, and return a warning for each bound that they cross."""
        warnings = []
        for name, text in self._rules_measured(values):
            self.times_crossed[name] = self.times_crossed[name] + 1 if text else 0
            warnings += [f"{text} ({self.times_crossed[name]} of {self.rules.patience} in a row)"] if text else []
        return warnings

    @property
    def stopping_rule(self) -> str:
        """The rule that ends the run, as its key in engine.stop; empty if none does."""
        return next((name for name, count in self.times_crossed.items() if count >= self.rules.patience), "")

    def _rules_measured(self, values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """Yield (rule, text) for every rule whose metric is in `values`; `text` is empty within the bound."""
        for name, (metric, sign) in BOUNDS.items():
            bound, value = getattr(self.rules, name), values.get(metric)
            if bound is not None and value is not None:
                text = f"{metric} {value:.4f} is {name.partition('_')[2]} {bound:g}"
                yield name, text if sign * (value - bound) > 0 else ""
        if self.rules.validation_below_start and REWARD in values:
            yield "validation_below_start", self._below_start(values)

    def _below_start(self, values: Mapping[str, float]) -> str:
        """A text about the drop of validation if it exceeds twice the standard error of the difference, else empty."""
        metric = ACCURACY if ACCURACY in values else REWARD
        now, before = values[metric], self.start.setdefault(metric, values[metric])
        if metric == ACCURACY:
            variance = before * (1 - before) + now * (1 - now)
        else:
            variance = self.start.setdefault(REWARD_STD, values[REWARD_STD]) ** 2 + values[REWARD_STD] ** 2
        deviation = math.sqrt(variance / max(values["val/questions"], 1))
        return f"{metric} fell from {before:.4f} to {now:.4f}" if now < before - 2 * deviation else ""
