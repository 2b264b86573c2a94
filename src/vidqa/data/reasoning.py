"""Where the thinking of an answer ends: in annotations, whose answers begin with it, and in what a model wrote."""

from __future__ import annotations

import re

_LEADING = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_TAGS = re.compile(r"(</?think>)", re.IGNORECASE)


def split_thinking(answer: str) -> tuple[str, str]:
    """(thinking, the rest) of an annotated answer, as written; the first has its tags and the space around them, and is
    empty where the answer does not begin with thinking."""
    match = _LEADING.match(answer)
    return (match.group(), answer[match.end() :]) if match else ("", answer)


def without_thinking(response: str) -> tuple[str, bool]:
    """(what a model said beside its thinking, whether thinking never ended).

    A template may open <think> itself: then only its end is there.
    """
    pieces = _TAGS.split(response)
    outside, inside = [pieces[0]], False
    for tag, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if tag.startswith("</"):
            outside = [piece] if not inside else [*outside, piece]
            inside = False
        else:
            inside = True
    return "".join(outside).strip(), inside


def unclosed(answer: str) -> str:
    """What is wrong with the tags of thinking in an annotated answer; empty where they are in order."""
    depth = 0
    for tag in _TAGS.findall(answer) if ">" in answer else ():
        depth += -1 if tag.startswith("</") else 1
        if depth not in (0, 1):
            return "</think> without <think> before it" if depth < 0 else "<think> inside <think>"
    return "<think> without </think> after it" if depth else ""
