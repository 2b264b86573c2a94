"""The page of what was mined: each gap with the rows that it took, with pictures."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidqa.contract.problem import ProblemError
from vidqa.datatools.outputs import write_page
from vidqa.evaluation.thumbnails import spread_frames
from vidqa.pages.page import image_url, page

if TYPE_CHECKING:
    from vidqa.curation.mining import Mined

GAPS, FINDS, FRAMES = 24, 6, 3  # that are shown: of all, of one gap, of one video


def pictures(media: str, count: int = FRAMES) -> list[str]:
    """Frames of a medium as data URLs; none where it cannot be decoded."""
    try:
        return [image_url(frame) for frame in spread_frames(media, count)] if media else []
    except ProblemError:
        return []


def write(path: Path, mined: Mined) -> None:
    """Raises DATATOOLS_OUTPUT_UNWRITABLE."""
    taken = defaultdict(list)
    for each in mined.finds:
        taken[each.gap].append(each)
    shown: list[dict[str, Any]] = []
    for gap, finds in list(taken.items())[:GAPS]:
        about = mined.gaps[gap]
        rows = [
            {**mined.texts[each.row], "similarity": each.similarity, "frames": pictures(mined.texts[each.row]["media"])}
            for each in finds[:FINDS]
        ]
        shown.append({**about, "frames": pictures(about["video_id"]), "finds": rows, "count": len(finds)})
    write_page(path, page("curation/mined.html.j2", title="Mined samples", facts=mined.as_dict(), gaps=shown))
