"""The options that a multiple-choice question lists, by letter."""

from __future__ import annotations

import re
from functools import lru_cache

# "(A) left", "A. left", "A) left", "A: left", at the start or after a space. What stands before the letter is looked
# at last, which is several times faster than to look at every place where an option could begin.
_MARK = re.compile(r"([A-Za-z])[).:](?<![^\s,;?(].[).:])\s*(?=\S)")
_EDGES = " \t\r\n,;."
_SECOND = re.compile(r"[Bb][).:]")  # the cheapest sign that there are no options
# What follows the last option: a new line, or a sentence that tells how to answer.
_INSTRUCTION = re.compile(r"\n|(?<=[.?!])\s+(?=(?:Please|Answer|Choose|Select|Pick|Respond|Reply|Give|Only|Output)\b)")


def options_of(question: str) -> dict[str, str]:
    """Letter -> text for options A, B, ... of `question`; empty unless at least A and B are there in order."""
    return _read_options(question) if _SECOND.search(question) else {}


@lru_cache(maxsize=8192)
def _read_options(question: str) -> dict[str, str]:
    marks: list[re.Match[str]] = []
    upper = True
    for mark in _MARK.finditer(question):
        letter = mark[1]
        if not marks:
            upper = letter.isupper()
        opened, closed = question[mark.start() - 1 : mark.start()] == "(", question[mark.end(1)] == ")"
        if opened and not closed:
            continue
        if letter == chr(ord("A" if upper else "a") + len(marks)):
            marks.append(mark)
    if len(marks) < 2 or len(marks) > 26:
        return {}
    ends = [mark.start() for mark in marks[1:]]
    texts = [question[mark.end() : end] for mark, end in zip(marks, ends, strict=False)]
    texts.append(_INSTRUCTION.split(question[marks[-1].end() :], maxsplit=1)[0])
    return {mark[1].upper(): text.strip(_EDGES).rstrip("( ") for mark, text in zip(marks, texts, strict=True)}
