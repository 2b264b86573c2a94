"""How a source is written: a path, and behind `#` the part of it that is meant.

sets/nexar#train[:100]                    a split of a data set folder, or rows of one
sets/reason1#robovqa:understanding        a subset and its split
loaders/mine.py:records#train             a function of the user's, and what it is given
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

FUNCTION = re.compile(r"(?P<file>[^#]+\.py):(?P<name>[A-Za-z_]\w*)(?:#(?P<given>.*))?", re.DOTALL)


class Address(NamedTuple):
    """`part` is what stands behind `#`; empty where all is meant."""

    place: str
    part: str


def address_of(written: str) -> Address:
    """What is written, taken apart. A file whose name holds `#` is that file."""
    place = os.path.expanduser(written)
    if "#" not in written or os.path.exists(place):
        return Address(place, "")
    place, _, part = place.partition("#")
    return Address(place, part)


def file_of(written: str) -> str:
    """The file or folder that a source is: what must be there."""
    function = FUNCTION.fullmatch(written)
    if function:
        return function["file"]
    return written if os.path.exists(os.path.expanduser(written)) else written.partition("#")[0]


def read_by(written: str) -> list[str]:
    """Every file and folder that reading a source may need, its media aside: beside a user's function lies what it
    imports, in a snapshot of the hub's cache are links to the files behind it."""
    place = file_of(written)
    function = FUNCTION.fullmatch(written)
    if function:
        argument = function["given"]
        return [os.path.dirname(place) or os.curdir, *([argument] if argument and os.path.exists(argument) else [])]
    if "*" in place or "{" in place:
        return [place if os.path.exists(place) else os.path.dirname(place)]
    above = os.path.dirname(place)
    blobs = os.path.join(os.path.dirname(above), "blobs")
    return [place, *([blobs] if os.path.basename(above) == "snapshots" and os.path.isdir(blobs) else [])]


def functions_in(value: Any) -> list[str]:
    """The functions of the user's that a key of a spec names: its text, or those of a list or of a table's names."""
    return [name for name in ([value] if isinstance(value, str) else value) if FUNCTION.fullmatch(name)]


def with_absolute_functions(value: Any) -> Any:
    """The same value, whose functions are found wherever the spec is read."""
    absolute = {name: made_absolute(name) for name in functions_in(value)}
    if isinstance(value, str):
        return absolute.get(value, value)
    if isinstance(value, Mapping):
        return {absolute.get(name, name): weight for name, weight in value.items()}
    return [absolute.get(name, name) for name in value]


def made_absolute(written: str) -> str:
    """The same source wherever it is opened from. What a user's function is given is a path where there is a file."""
    place, function = file_of(written), FUNCTION.fullmatch(written)
    rest = written[len(place) :]
    if function and function["given"] and os.path.exists(os.path.expanduser(function["given"])):
        rest = f":{function['name']}#{_absolute(function['given'])}"
    return _absolute(place) + rest


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
