"""Platforms run jobs; records say what became of them."""

from vidqa.platforms._base import Platform
from vidqa.platforms.problems import PLATFORM_UNKNOWN

NAMES = ("local",)


def platform(name: str) -> Platform:
    """The platform of this name. Raises PLATFORM_UNKNOWN."""
    from vidqa.platforms.local import LOCAL

    for candidate in (LOCAL,):
        if candidate.name == name:
            return candidate
    raise PLATFORM_UNKNOWN.error("--platform", f"there is no platform {name!r}; there are: {', '.join(NAMES)}")
