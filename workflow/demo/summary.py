"""The demo's last screen: accuracy before and after training and after the loop, and where everything lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from vidqa.core.run_folder import read_metrics

_ACCURACY = "reward/accuracy"
WEAK_KIND = "diagonal"  # asked of clips such as the training set has none of


def summary(before: Path, trained: Path, after: Path, gaps: Path, loop: Path) -> str:
    """The final table, from the run folders of the first two evaluations and of the training, and the loop's folder."""
    report = _read(loop / "report.json")
    first, last, improved = _scores(before), _scores(after), _scores(Path(report["final"]["kpi"]["run_dir"]))
    rows: list[tuple[str, ...]] = [("kind", "questions", "before", "trained", "after the loop", "95 % interval")]
    for kind in sorted(last["by_kind"], key=lambda kind: (kind == WEAK_KIND, kind)):
        label = f"{kind} (not in the training set)" if kind == WEAK_KIND else kind
        rows.append(_row(label, *(scores["by_kind"][kind] for scores in (first, last, improved))))
    rows.append(_row("all", first, last, improved))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    steps = [event["perf/step_s"] for event in read_metrics(trained / "metrics.jsonl") if "perf/step_s" in event]
    places = {
        "training": f"{median(steps):.3f} s per step (median), run {trained}",
        "export": trained / "best",
        "report": after / "report.html",
        "gaps": gaps,
        "loop": report["ending"]["sentence"],
        "": loop / "report.html",
    }
    return "\n".join([*lines, "", *(f"{name:<9} {place}" for name, place in places.items())])


def rl_summary(comparison: Mapping[str, Any], refined: Path, page: Path) -> str:
    """The last screen of the workflow of reinforcement learning, from the data of compare.py and the GRPO run."""
    first, second = (comparison["whole"][side] for side in ("before", "after"))
    sampled = [event[_ACCURACY] for event in read_metrics(refined / "metrics.jsonl") if _ACCURACY in event]
    rows = {
        "accuracy": f"{100 * first:.1f} % after SFT, {100 * second:.1f} % after RL",
        "verdict": comparison["sentence"],
        "sampled": f"{100 * sampled[0]:.1f} % of completions were right in step 1, {100 * sampled[-1]:.1f} % in step "
        f"{len(sampled)}",
        "comparison": page,
        "report": refined / "report.html",
    }
    return "\n".join(f"{name:<10}  {value}" for name, value in rows.items())


def _scores(run: Path) -> dict[str, Any]:
    return _read(run / "metrics.json")


def _read(path: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return scores


def _row(label: str, *scores: dict[str, Any]) -> tuple[str, ...]:
    return label, str(scores[-1]["n"]), *map(_share, scores), _interval(scores[-1])


def _share(scores: dict[str, Any]) -> str:
    return f"{100 * scores['accuracy']:.1f} %"


def _interval(scores: dict[str, Any]) -> str:
    low, high = scores["accuracy_ci95"]
    return f"{100 * low:.1f} .. {100 * high:.1f}"
