"""The page of previewed samples: the chat as the model sees it, learned text on a coloured ground, planned frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vidqa.core.pages.page import image_url, page
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.record import MediaRef
from vidqa.datatools.preview import Piece, Preview, token_line
from vidqa.evaluation.thumbnails import poster_frames

MOST_FRAMES = 32  # pictures of one medium; the line above them names how many there are


def preview_page(title: str, rendered: Sequence[Preview], problems: Sequence[Problem]) -> str:
    """The page as HTML. Of long videos `MOST_FRAMES` of the planned frames are shown, evenly spread."""
    samples = [
        {**preview.as_dict(), "for_generation": preview.for_generation, "pieces": list(map(_shown, preview.pieces))}
        for preview in rendered
    ]
    return page("datatools/preview.html.j2", title=title, samples=samples, problems=problems)


def _shown(piece: Piece) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": piece.kind, "text": piece.text, "plan": piece.plan}
    if piece.plan is None or piece.ref is None:
        return shown
    indices, times = piece.plan.indices, piece.plan.times_s or (0.0,)
    step = max(1, -(-len(indices) // MOST_FRAMES))
    urls, fault = frame_urls(piece.ref, indices[::step])
    frames = [
        {"url": url, "index": index, "time": time}
        for url, index, time in zip(urls, indices[::step], times[::step], strict=False)
    ]
    return {**shown, "token_line": token_line(piece), "frames": frames, "fault": fault}


def frame_urls(ref: MediaRef, indices: Sequence[int], width: int = 200) -> tuple[list[str], str]:
    """(frames of a medium as data URLs, what is wrong with it or "")."""
    try:
        frames = poster_frames(ref.path, ref.member, indices, width)
    except ProblemError as unreadable:
        return [], unreadable.problems[0].message
    return [image_url(frame) for frame in frames], ""
