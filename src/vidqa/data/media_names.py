"""Which files are videos and images, by their names."""

from __future__ import annotations

VIDEOS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".3gp", ".ogv")
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def kind_of(name: str) -> str | None:
    """video or image, by the ending of a file's name; None for other files."""
    lower = name.lower()
    return "video" if lower.endswith(VIDEOS) else "image" if lower.endswith(IMAGES) else None


def is_medium(name: str) -> bool:
    """Whether a file is a video or an image by its name, and neither hidden nor in a hidden folder: other systems leave
    such files beside those of a user."""
    parts = name.split("/")
    return not any(part.startswith(".") and part != "." for part in parts) and kind_of(name) is not None
