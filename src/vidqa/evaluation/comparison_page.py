"""The page and the text of a comparison: the difference with its interval, slices, and what was broken and fixed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vidqa.core.pages.page import page, percent
from vidqa.evaluation.comparison import Comparison, Difference, Pair, Side
from vidqa.evaluation.drop_gate import DropGate
from vidqa.evaluation.text import as_text
from vidqa.evaluation.thumbnails import card_frames

CARDS = 60  # questions of each side that are shown with frames
FRAMES = 4
SHOWN = 1000  # characters of one text
SLICES = 20  # on the terminal


def comparison_page(comparison: Comparison, gate: DropGate | None = None) -> str:
    """HTML of one file that needs no network."""
    sides = [
        ("Broken", comparison.broken, "wrong now, right before"),
        ("Fixed", comparison.fixed, "right now, wrong before"),
    ]
    return page(
        "evaluation/comparison.html.j2",
        title=f"{Path(comparison.folders[1]).name} against {Path(comparison.folders[0]).name}",
        filters={"points": points},
        comparison=comparison,
        gate=gate,
        sides=[(name, why, len(pairs), _cards(pairs[:CARDS])) for name, pairs, why in sides],
    )


def comparison_text(comparison: Comparison, gate: DropGate | None = None) -> str:
    """The difference, and the slices that stand out or are largest."""
    whole = comparison.whole
    lines = [
        f"{comparison.sentence}: {percent(whole.before)} -> {percent(whole.after)}, {_interval(whole)}",
        f"{whole.fixed} fixed, {whole.broken} broken of {whole.n} questions about {whole.n_videos} videos; "
        f"p = {whole.p_value:.4g} by video, McNemar's {whole.mcnemar_p:.4g}",
        *(f"{name}: {_side(side)}" for name, side in zip(("before", "after"), comparison.sides, strict=True)),
        *comparison.reservations,
        *(gate.lines if gate else ()),
    ]
    ordered = sorted(comparison.slices, key=lambda part: (part.verdict == "not told apart", part.p_corrected, -part.n))
    for part in ordered[:SLICES]:
        change = f"{percent(part.before):>8} -> {percent(part.after):>8}  {_interval(part)}"
        lines.append(f"  {part.name[:24]:24} {part.n:6}  {change}  {part.verdict}")
    if len(ordered) > SLICES:
        lines.append(f"  ... and {len(ordered) - SLICES} more, in --json and --html")
    return "\n".join(lines)


def _side(side: Side) -> str:
    return (
        f"{side['truncated']} truncated, {side['unparsed']} unparsed, {side['empty']} empty; "
        f"the majority-class baseline scores {percent(side['majority_accuracy'])}"
    )


def points(value: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def _interval(difference: Difference) -> str:
    low, high = difference.ci95
    return f"{points(difference.difference)} points (95 %: {points(low)} to {points(high)})"


def _cards(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The card of each question; those about one video share one decoding."""
    frames = cache(lambda video: card_frames(video, FRAMES))
    cards = []
    for before, after in pairs:
        texts = {name: as_text(after[name])[:SHOWN] for name in ("sample_id", "kind", "question", "gt", "video_id")}
        responses = {name: as_text(item["response"])[:SHOWN] for name, item in (("before", before), ("after", after))}
        cards.append({**texts, **responses, **frames(as_text(before["video_id"]))})
    return cards
