"""Rules by which a run that goes wrong warns, and then ends: saved, resumable, its best export kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

# The metric of a bound, and whether it is crossed above (1) or below it (-1).
BOUNDS = {
    "entropy_below": ("train/entropy", -1),
    "kl_above": ("train/kl", 1),
    "truncated_above": ("rollout/truncated", 1),
}


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
