"""The demo's last screen: accuracy before and after, time per step, and where everything lies."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from vidqa.contract.run_folder import read_metrics

WEAK_KIND = "diagonal"  # asked of clips such as the training set has none of


def summary(before: Path, trained: Path, after: Path, gaps: Path) -> str:
    """The final table, from the run folders of the two evaluations and of the training."""
    first, last = _scores(before), _scores(after)
    rows: list[tuple[str, ...]] = [("kind", "questions", "before", "after", "95 % interval")]
    for kind in sorted(last["by_kind"], key=lambda kind: (kind == WEAK_KIND, kind)):
        label = f"{kind} (not in the training set)" if kind == WEAK_KIND else kind
        rows.append(_row(label, first["by_kind"][kind], last["by_kind"][kind]))
    rows.append(_row("all", first, last))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    steps = [event["perf/step_s"] for event in read_metrics(trained / "metrics.jsonl") if "perf/step_s" in event]
    places = {
        "training": f"{median(steps):.3f} s per step (median), run {trained}",
        "export": trained / "best",
        "report": after / "report.html",
        "gaps": gaps,
    }
    return "\n".join([*lines, "", *(f"{name:<9} {place}" for name, place in places.items())])


def _scores(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text(encoding="utf-8"))


def _row(label: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    return label, str(after["n"]), _share(before), _share(after), _interval(after)


def _share(scores: dict[str, Any]) -> str:
    return f"{100 * scores['accuracy']:.1f} %"


def _interval(scores: dict[str, Any]) -> str:
    low, high = scores["accuracy_ci95"]
    return f"{100 * low:.1f} .. {100 * high:.1f}"
