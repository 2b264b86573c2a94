"""The container image of a job: named by the user, or recorded in config.json by tag and digest.

python -m vidqa.jobs.images TAG IMAGE [CONFIG]     records an image; docker/build.sh calls it
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from vidqa.core import files
from vidqa.core.cli import NOT_AGREED, SKILL_ROOT
from vidqa.jobs.problems import IMAGE_UNUSABLE

CONFIG = SKILL_ROOT / "config.json"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def choose(named: str | None, *, agreed: bool) -> str:
    """Choose the image to run. Raises IMAGE_UNUSABLE, and NOT_AGREED unless it was named or agreed to."""
    if named:
        return named
    image_entry = recorded(CONFIG)
    if image_entry is None:
        raise IMAGE_UNUSABLE.error(CONFIG, "it records no image yet")
    tag, image = image_entry
    if not agreed:
        raise NOT_AGREED.error("--image", f"config.json records {tag} as {image}")
    return image


def recorded(config: Path) -> tuple[str, str] | None:
    """The recorded tag, and REPOSITORY@DIGEST of a pushed image or the bare id of a local one; None without."""
    engine = json.loads(config.read_text(encoding="utf-8"))["images"]["engine"]
    return (engine["tag"], engine["image"]) if engine else None


def record(tag: str, image: str, config: Path) -> None:
    """Write the image of a tag into config.json. `image` is an id, or REPOSITORY@DIGEST."""
    if not DIGEST.fullmatch(image.rpartition("@")[2]):
        raise ValueError(f"not a digest: {image}")
    text = config.read_text(encoding="utf-8")
    entry = json.dumps({"tag": tag, "image": image})
    changed, count = re.subn(r'("images": \{\s*"engine": )(?:null|\{[^{}]*\})', lambda m: m[1] + entry, text)
    if count != 1:
        raise ValueError(f"{config} has no images.engine to write to")
    files.write_text(config, changed)


def main(words: Sequence[str]) -> None:
    tag, image, *config = words
    record(tag, image, Path(*config) if config else CONFIG)


if __name__ == "__main__":
    main(sys.argv[1:])
