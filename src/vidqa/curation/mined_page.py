"""The page of mined samples: each gap with the rows that it took, with pictures."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidqa.datatools.outputs import write_page
from vidqa.evaluation.thumbnails import card_frames
from vidqa.pages.page import page

if TYPE_CHECKING:
    from vidqa.curation.mining import Mined

GAPS, FINDS, FRAMES = 24, 6, 3  # that are shown: of all, of one gap, of one video


def write(path: Path, mined: Mined) -> None:
    """Raises DATATOOLS_OUTPUT_UNWRITABLE."""
    rows_of = defaultdict(list)
    for chosen in mined.finds:
        rows_of[chosen.gap].append(chosen)
    shown: list[dict[str, Any]] = []
    for gap, finds in list(rows_of.items())[:GAPS]:
        rows = [
            {**texts, "similarity": chosen.similarity, "frames": pictures(texts["media"], FRAMES)}
            for chosen in finds[:FINDS]
            for texts in [mined.texts[chosen.row]]
        ]
        about = mined.gaps[gap]
        shown.append({**about, "frames": pictures(about["video_id"], FRAMES), "finds": rows, "count": len(finds)})
    write_page(path, page("curation/mined.html.j2", title="Mined samples", facts=mined.as_dict(), gaps=shown))


def pictures(video: str, count: int) -> list[str]:
    """Frames of a medium as data URLs; none where it cannot be decoded."""
    frames: list[str] = card_frames(video, count)["frames"]
    return frames
