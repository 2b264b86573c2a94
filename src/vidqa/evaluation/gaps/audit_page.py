"""The page on which a person answers whether labels are right; it saves a file that --audit-answers takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vidqa.contract.problem import ProblemError
from vidqa.evaluation.gaps.audit_answers import SCHEMA, VERDICTS
from vidqa.evaluation.thumbnails import spread_frames
from vidqa.pages.page import image_url, page

CARDS = 200  # labels on the page, the most doubtful first
FRAMES = 6
SHOWN = 1500  # characters of one text


def audit_page(items: Sequence[dict[str, Any]]) -> str:
    """HTML of one file that needs no network."""
    frames: dict[str, tuple[list[str], str]] = {}
    cards = []
    for item in items[:CARDS]:
        video = str(item["video_id"])
        if video not in frames:
            frames[video] = _frames(video)
        texts = {name: str(value)[:SHOWN] for name, value in item.items() if name != "reasons"}
        images, fault = frames[video]
        cards.append({**texts, "reasons": item["reasons"], "frames": images, "fault": fault})
    return page(
        "evaluation/gaps/audit.html.j2",
        title="Are these labels right?",
        cards=cards,
        count=len(items),
        verdicts=VERDICTS,
        schema=SCHEMA,
    )


def _frames(video: str) -> tuple[list[str], str]:
    if not video:
        return [], ""
    try:
        return [image_url(image) for image in spread_frames(video, FRAMES)], ""
    except ProblemError as wrong:
        return [], wrong.problems[0].message
