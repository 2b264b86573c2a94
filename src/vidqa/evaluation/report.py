"""report.html of an evaluation: scores with intervals, tables per kind, and every failure with frames of its video.

One file that needs no network. Everything that came from a model or a user is escaped, and a content policy lets
only the page's own script run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vidqa.core.files import write_text
from vidqa.core.pages.page import card_images, page
from vidqa.evaluation.results import Item
from vidqa.evaluation.text import as_text

CARDS = 200  # failures shown with frames; the others follow as rows
ROWS = 2000  # failures shown as rows; the results file has all
SHOWN = 1500  # characters of one text
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

    The page names `run_dir`, the folder with the results, and says how long answering `took`. `metrics` is what
    `score(items)` gave. `posters(item)` gives JPEG or PNG images of the item's video; a ProblemError from it is shown
    in the card instead.
    """
    failures = [item for item in items if item["correct"] is False]
    html = page(
        "evaluation/report.html.j2",
        title=title,
        run_dir=as_text(str(run_dir)),
        took=took,
        filters={"shade": _shade},
        metrics=metrics,
        cards=_cards(failures[:CARDS], posters),
        rows=[_shown(item) for item in failures[CARDS : CARDS + ROWS]],
        n_failures=len(failures),
        n_hidden=max(0, len(failures) - CARDS - ROWS),
        kinds=sorted({as_text(item["kind"]) for item in failures}),
        errors=Counter(_error(item) for item in failures),
        recipe=as_text(json.dumps(recipe, indent=2, ensure_ascii=False, default=str)),
    )
    write_text(path, html)


def _cards(failures: Sequence[Item], posters: Posters) -> list[dict[str, Any]]:
    """The failures with their frames; questions about one video share one decoding."""
    images: dict[str, dict[str, Any]] = {}
    cards = []
    for item in failures:
        name = as_text(item["video_id"])
        if name not in images:
            images[name] = card_images(partial(posters, item))
        cards.append({**_shown(item), **images[name]})
    return cards


def _shown(item: Item) -> dict[str, Any]:
    """What the page shows of one failure, every text bounded."""
    names = ("video_id", "sample_id", "kind", "question", "response", "gt", "parsed_response", "parsed_gt")
    texts = {name: _bounded(as_text(item[name])) for name in names}
    return {**texts, "error": _error(item), "finish_reason": as_text(item["finish_reason"])}


def _bounded(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} … ({len(text) - SHOWN} more characters)"


def _error(item: Item) -> str:
    return "wrong" if item["parse_status"] == "parsed" else as_text(item["parse_status"])


def _shade(count: int, total: int) -> str:
    """Opacity of a matrix cell by its share of the row."""
    return f"{0.08 + 0.72 * count / total:.2f}" if count and total else "0"
