"""Frames of media for the pages of the data tools."""

from __future__ import annotations

from collections.abc import Sequence

from vidqa.contract.problem import ProblemError
from vidqa.dataset.record import MediaRef
from vidqa.evaluation.thumbnails import poster_frames
from vidqa.pages.page import image_url


def frame_urls(ref: MediaRef, indices: Sequence[int], width: int = 200) -> tuple[list[str], str]:
    """(frames of a medium as data URLs, what is wrong with it or "")."""
    try:
        frames = poster_frames(ref.path, ref.member, indices, width)
    except ProblemError as unreadable:
        return [], unreadable.problems[0].message
    return [image_url(frame) for frame in frames], ""
