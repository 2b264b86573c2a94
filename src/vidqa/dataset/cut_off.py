"""Tells an annotation file that was cut off, by a full disk or a broken copy, from one that is written wrongly."""

from __future__ import annotations

import json
import re

WRITE_AGAIN = "The file was cut off, by a full disk or a copy that was broken off: write or copy it again."
LONGEST_ESCAPE = 6  # characters, as of \u00e9
SPACE = re.compile(r"[ \t\n\r]*")
LITERALS = ("true", "false", "null")


def cut_off_list(text: str) -> str | None:
    """How a JSON list that was cut off ends, in words; None where it was not, or something else is wrong with it."""
    decoder = json.JSONDecoder()
    at, whole = text.index("[") + 1, 0
    while (at := _past_space(text, at)) < len(text):
        if text[at] == "]":
            return None
        try:
            _, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as broken:
            return cut_off_record(whole + 1, whole) if reached_the_end(broken) else None
        except (ValueError, RecursionError):
            return None
        whole += 1
        at = _past_space(text, at)
        if at < len(text) and text[at] != ",":
            return None
        at += 1
    return f"the file ends after {whole} whole record{'s' * (whole != 1)}, without the ] of the list"


def _past_space(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    return match.end() if match else len(text)


def cut_off_record(number: int, whole: int) -> str:
    """A file that ends in the middle of its record `number`, counted from 1."""
    are = f"{whole} are" if whole > 1 else "1 is" if whole else "none is"
    return f"the file ends in the middle of record {number}, {are} whole"


def reached_the_end(broken: json.JSONDecodeError) -> bool:
    """Whether a parser failed because there was no more text, rather than at something wrong."""
    rest = broken.doc[broken.pos :].rstrip()
    if broken.msg.startswith("Unterminated string"):
        return True
    if broken.msg.startswith("Invalid \\"):
        return len(rest) < LONGEST_ESCAPE
    return rest in ("", "-") or any(word.startswith(rest) and word != rest for word in LITERALS)
