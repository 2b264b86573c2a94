"""The pages of an evaluation (report.html) and of a comparison: scores, and failures with frames of their videos.

    python -m vidqa.evaluation.pages RUN_FOLDER        writes report.html of reinforcement learning

Each page is one file that needs no network. All text from a model or a user is escaped and bounded, and a content
policy lets only the page's own script run.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from vidqa.core.files import write_text
from vidqa.core.pages.page import card_images, page, percent
from vidqa.core.pages.training import main as write_training_page
from vidqa.evaluation.comparison import Comparison, Difference, DropGate, Pair, Side
from vidqa.evaluation.results import Item
from vidqa.evaluation.text import as_text
from vidqa.evaluation.thumbnails import card_frames, poster_frames

FAILURES = 200  # failures with frames; the others follow as rows
ROWS = 2000  # failures as rows; the results file has all
CHANGES = 60  # questions with frames for each side of a comparison
FRAMES = 4  # frames of each of these
SHOWN = 1500  # characters of one text
SLICES = 20  # slices of a comparison in terminal output
Posters = Callable[[Item], list[bytes]]


def write_report(
    path: Path,
    *,
    title: str,
    run_dir: Path,
    took: str,
    items: Sequence[Item],
    metrics: dict[str, Any],
    recipe: dict[str, Any],
    posters: Posters,
) -> None:
    """Write the report.

    The page names `run_dir`, the folder with the results, and the duration of answering, `took`. `metrics` is the
    result of `score(items)`. `posters(item)` returns JPEG or PNG images of the item's video; a ProblemError from it is
    shown in the card instead.
    """
    failures = [item for item in items if item["correct"] is False]
    html = page(
        "evaluation/report.html.j2",
        title=title,
        run_dir=as_text(str(run_dir)),
        took=took,
        filters={"shade": _shade},
        metrics=metrics,
        cards=_failure_cards(failures[:FAILURES], posters),
        rows=[_failure(item) for item in failures[FAILURES : FAILURES + ROWS]],
        n_failures=len(failures),
        n_hidden=max(0, len(failures) - FAILURES - ROWS),
        kinds=sorted({as_text(item["kind"]) for item in failures}),
        errors=Counter(_error(item) for item in failures),
        recipe=as_text(json.dumps(recipe, indent=2, ensure_ascii=False, default=str)),
    )
    write_text(path, html)


def _failure_cards(failures: Sequence[Item], posters: Posters) -> list[dict[str, Any]]:
    """The cards of failures with their frames; questions about one video share one decoding."""
    items = {as_text(item["video_id"]): item for item in reversed(failures)}
    images = {name: card_images(partial(posters, item)) for name, item in items.items()}
    return [{**_failure(item), **images[as_text(item["video_id"])]} for item in failures]


def _failure(item: Item) -> dict[str, Any]:
    """The texts of one failure for the page."""
    names = ("video_id", "sample_id", "kind", "question", "response", "gt", "parsed_response", "parsed_gt")
    texts = {name: _bounded(item[name]) for name in names}
    return {**texts, "error": _error(item), "finish_reason": as_text(item["finish_reason"])}


def _bounded(value: object) -> str:
    text = as_text(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} … ({len(text) - SHOWN} more characters)"


def _error(item: Item) -> str:
    return "wrong" if item["parse_status"] == "parsed" else as_text(item["parse_status"])


def _shade(count: int, total: int) -> str:
    """Opacity of a matrix cell by its share of the row."""
    return f"{0.08 + 0.72 * count / total:.2f}" if count and total else "0"


# --- comparison -------------------------------------------------------------------------------------------------------


def comparison_page(comparison: Comparison, gate: DropGate | None = None) -> str:
    """HTML of the difference with its interval, the slices, and the broken and fixed questions."""
    sides = [
        ("Broken", comparison.broken, "Correct before, incorrect after."),
        ("Fixed", comparison.fixed, "Incorrect before, correct after."),
    ]
    return page(
        "evaluation/comparison.html.j2",
        title=f"Comparison of {' and '.join(Path(folder).name for folder in comparison.folders)}",
        filters={"points": points, "chance": _chance},
        comparison=comparison,
        gate=gate,
        sides=[(name, why, len(pairs), _change_cards(pairs[:CHANGES])) for name, pairs, why in sides],
    )


def _change_cards(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """A card for each question; those about one video share one decoding."""
    frames = cache(lambda video: card_frames(video, FRAMES))
    cards = []
    for before, after in pairs:
        texts = {name: _bounded(after[name]) for name in ("sample_id", "kind", "question", "gt", "video_id")}
        responses = {name: _bounded(item["response"]) for name, item in (("before", before), ("after", after))}
        cards.append({**texts, **responses, **frames(as_text(before["video_id"]))})
    return cards


def comparison_text(comparison: Comparison, gate: DropGate | None = None) -> str:
    """Terminal text with the difference, and the slices that are significant or largest."""
    whole = comparison.whole
    lines = [
        f"{comparison.sentence}: {percent(whole.before)} -> {percent(whole.after)}, {_interval(whole)}",
        f"{whole.fixed} fixed, {whole.broken} broken of {whole.n} questions about {whole.n_videos} videos; "
        f"p by video {_chance(whole.p_value)}, by McNemar's test {_chance(whole.mcnemar_p)}",
        *(f"{name}: {_side(side)}" for name, side in zip(("before", "after"), comparison.sides, strict=True)),
        *comparison.reservations,
        *(gate.lines if gate else ()),
    ]
    ordered = sorted(
        comparison.slices, key=lambda part: (part.verdict == "no significant difference", part.p_corrected, -part.n)
    )
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
    """Format a difference of shares in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def _chance(p: float) -> str:
    return f"{p:.2g}" if p >= 0.0001 else "< 0.0001"


def _interval(difference: Difference) -> str:
    low, high = difference.ci95
    return f"{points(difference.difference)} points (95 %: {points(low)} to {points(high)})"


# --- reinforcement learning ------------------------------------------------------------------------------------------


def posters(line: dict[str, Any]) -> list[bytes]:
    """JPEG images of the frames that a line of a rollouts file lists, for the page of a training. Raises
    MEDIA_UNREADABLE."""
    media = line.get("media") or ()  # older files have none
    return [jpeg for medium in media for jpeg in poster_frames(medium["path"], medium["member"], medium["frames"])]


if __name__ == "__main__":
    sys.exit(write_training_page(Path(sys.argv[1]), posters))
