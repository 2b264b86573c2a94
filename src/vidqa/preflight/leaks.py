"""leaks.json: everything that two sets share; problems name only the first few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vidqa.contract.files import write_json
from vidqa.preflight import media_probe
from vidqa.preflight._base import Context

NAME = "leaks.json"
SHOWN = 3  # that a problem names


def listed(context: Context, where: str, what: str, found: Sequence[Any]) -> str:
    """The first shared items in words, and the file with all of them. An empty result is written, too, over an earlier
    file."""
    place = media_probe.place_for(context.spec_path).with_name(NAME)
    context.leaks.setdefault(where, {})[what] = list(found)
    counts = {sets: {name: len(each) for name, each in shared.items()} for sets, shared in context.leaks.items()}
    context.facts["leaks"] = {"file": str(place), "counts": counts}
    first = "; ".join(" and ".join(each) if isinstance(each, tuple) else each for each in found[:SHOWN])
    shown = f", such as {first}"
    if context.at_launch or (not found and not place.is_file()):
        return shown
    try:
        write_json(place, context.leaks)
    except (OSError, ValueError):  # a name that cannot be encoded
        return shown
    return f"{shown}; all are listed in {place}"
