"""Groups of completions of the last step of reinforcement learning: those with the highest and the lowest reward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vidqa.core.pages.page import card_images
from vidqa.core.rollouts import read_rollouts, rollout_files

SHOWN = 3  # groups of each end
Posters = Callable[[dict[str, Any]], list[bytes]]  # JPEG or PNG images of the media of a line. Raises ProblemError


def last_groups(run: Path, posters: Posters) -> list[dict[str, Any]]:
    """The best groups and the worst ones, by their mean reward, with frames of their media; none where the run drew no
    completions."""
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    last = 0
    for file in rollout_files(run):
        for line in read_rollouts(file):
            if line["step"] > last:
                last = line["step"]
                groups.clear()
            if line["step"] == last and not line.get("dropped"):
                groups[line["slot"]].append(line)
    ranked = sorted(groups.values(), key=lambda group: -_mean(group))
    chosen = ranked if len(ranked) <= 2 * SHOWN else [*ranked[:SHOWN], *ranked[-SHOWN:]]
    return [
        {
            "lines": sorted(group, key=lambda line: -line["reward"]),
            "first": group[0],
            "mean": _mean(group),
            **card_images(partial(posters, group[0])),
        }
        for group in chosen
    ]


def _mean(group: list[dict[str, Any]]) -> float:
    return sum(line["reward"] for line in group) / len(group)
