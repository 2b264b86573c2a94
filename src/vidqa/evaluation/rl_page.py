"""Writes the page of reinforcement learning: python -m vidqa.evaluation.rl_page RUN_FOLDER

It is that of any training, with frames of the clips beside the best and the worst completions of the last step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from vidqa.core.pages.training import main
from vidqa.evaluation.thumbnails import poster_frames


def posters(line: dict[str, Any]) -> list[bytes]:
    """JPEG of the frames that a line of a rollouts file names. Raises POSTER_UNREADABLE."""
    media = line.get("media") or ()  # older files have none
    return [jpeg for medium in media for jpeg in poster_frames(medium["path"], medium["member"], medium["frames"])]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), posters))
