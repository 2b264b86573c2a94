"""Rules by which a run that goes wrong warns, and then ends: saved, resumable, its best export kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any


class StopWatch:
    """Counts in a row the measurements that cross a bound of `rules`, a spec's engine.stop."""

    def __init__(self, rules: Any, start: Mapping[str, float] | None = None) -> None:
        self.rules = rules
        self.start = dict(start or {})  # of the validation before the first step, or the first one
        self.crossed = Counter[str]()

    def judge(self, values: Mapping[str, float]) -> list[str]:
        """What crosses a bound now, for a warning."""
        found = dict(self._crossings(values))
        for name in {name for name, needed in NEEDED.items() if needed in values} - set(found):
            self.crossed[name] = 0
        self.crossed.update(found.keys())
        return [f"{text} ({self.crossed[name]} of {self.rules.patience} in a row)" for name, text in found.items()]

    @property
    def ended(self) -> str:
        """The rule that ends the run; empty while none does."""
        return next((name for name, count in self.crossed.items() if count >= self.rules.patience), "")

    def _crossings(self, values: Mapping[str, float]) -> list[tuple[str, str]]:
        rules, found = self.rules, []
        bounds = (
            ("entropy_below", "train/entropy", rules.entropy_below, -1),
            ("kl_above", "train/kl", rules.kl_above, 1),
            ("truncated_above", "rollout/truncated", rules.truncated_above, 1),
        )
        for name, metric, bound, sign in bounds:
            value = values.get(metric)
            if bound is not None and value is not None and sign * (value - bound) > 0:
                found.append((name, f"{metric} {value:.4f} is {name.partition('_')[2]} {bound:g}"))
        if rules.validation_below_start and (text := self._below_start(values)):
            found.append(("validation_below_start", text))
        return found

    def _below_start(self, values: Mapping[str, float]) -> str:
        """Whether validation fell by more than twice the standard error of the difference."""
        metric = "val/accuracy" if "val/accuracy" in values else "val/reward"
        if metric not in values:
            return ""
        self.start.setdefault(metric, values[metric])
        before, now, count = self.start[metric], values[metric], values.get("val/questions", 0)
        deviation = math.sqrt(max(before * (1 - before) + now * (1 - now), 0.0) / max(count, 1))
        return f"{metric} fell from {before:.4f} to {now:.4f}" if now < before - 2 * deviation else ""


# The metric that tells whether a rule's bound is crossed.
NEEDED = {
    "entropy_below": "train/entropy",
    "kl_above": "train/kl",
    "truncated_above": "rollout/truncated",
    "validation_below_start": "val/reward",
}
