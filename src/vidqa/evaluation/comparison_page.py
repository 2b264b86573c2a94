"""The page and the text of a comparison: the difference with its interval, slices, and what was broken and fixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidqa.contract.problem import ProblemError
from vidqa.evaluation.comparison import Comparison, Difference, Pair
from vidqa.evaluation.drop_gate import DropGate
from vidqa.evaluation.reservations import Side
from vidqa.evaluation.text import as_text
from vidqa.evaluation.thumbnails import spread_frames
from vidqa.pages.page import image_url, page, percent

CARDS = 60  # questions of each side that are shown with frames
FRAMES = 4
SHOWN = 1000  # characters of one text
SLICES = 20  # on the terminal


def comparison_page(found: Comparison, gate: DropGate | None = None) -> str:
    """HTML of one file that needs no network."""
    sides = [("Broken", found.broken, "wrong now, right before"), ("Fixed", found.fixed, "right now, wrong before")]
    return page(
        "evaluation/comparison.html.j2",
        title=f"{Path(found.folders[1]).name} against {Path(found.folders[0]).name}",
        filters={"points": points},
        found=found,
        gate=gate,
        sides=[(name, why, len(pairs), _cards(pairs[:CARDS])) for name, pairs, why in sides],
    )


def comparison_text(found: Comparison, gate: DropGate | None = None) -> str:
    """The difference, and the slices that stand out or are largest."""
    whole = found.whole
    lines = [
        f"{found.sentence}: {percent(whole.before)} -> {percent(whole.after)}, {_interval(whole)}",
        f"{whole.fixed} fixed, {whole.broken} broken of {whole.n} questions about {whole.n_videos} videos; "
        f"p = {whole.p_value:.4g} by video, McNemar's {whole.mcnemar_p:.4g}",
        *(f"{name}: {_side(side)}" for name, side in zip(("before", "after"), found.sides, strict=True)),
        *found.reservations,
        *(gate.lines if gate else ()),
    ]
    ordered = sorted(found.slices, key=lambda each: (each.verdict == "not told apart", each.p_corrected, -each.n))
    for each in ordered[:SLICES]:
        change = f"{percent(each.before):>8} -> {percent(each.after):>8}  {_interval(each)}"
        lines.append(f"  {each.name[:24]:24} {each.n:6}  {change}  {each.verdict}")
    if len(ordered) > SLICES:
        lines.append(f"  ... and {len(ordered) - SLICES} more, in --json and --html")
    return "\n".join(lines)


def _side(side: Side) -> str:
    return (
        f"{side.truncated} truncated, {side.unparsed} unparsed, {side.empty} empty; the majority-class baseline scores "
        f"{percent(side.majority_accuracy)}"
    )


def points(value: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def _interval(each: Difference) -> str:
    low, high = each.ci95
    return f"{points(each.difference)} points (95 %: {points(low)} to {points(high)})"


def _cards(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """What the page shows of questions; those about one video share one decoding."""
    frames: dict[str, tuple[list[str], str]] = {}
    cards = []
    for before, after in pairs:
        video = as_text(before["video_id"])
        if video not in frames:
            frames[video] = _frames(video)
        texts = {name: as_text(after[name])[:SHOWN] for name in ("sample_id", "kind", "question", "gt", "video_id")}
        responses = {name: as_text(item["response"])[:SHOWN] for name, item in (("before", before), ("after", after))}
        images, fault = frames[video]
        cards.append({**texts, **responses, "frames": images, "fault": fault})
    return cards


def _frames(video: str) -> tuple[list[str], str]:
    if not video:
        return [], ""
    try:
        return [image_url(image) for image in spread_frames(video, FRAMES)], ""
    except ProblemError as wrong:
        return [], wrong.problems[0].message
