"""Other words for the same question, its counterpart with the other answer, and its mirror image."""

from __future__ import annotations

import re

# What a yes/no question may begin with, and how it is asked otherwise; {} is the rest without its question mark.
FORMS = ("{question}", "Answer yes or no: {question}", "Look at the video. {question}", "{question} Answer yes or no.")
SIDES = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
SIDES |= {"leftward": "rightward", "rightward": "leftward", "leftwards": "rightwards", "rightwards": "leftwards"}
SIDES |= {"clockwise": "counterclockwise", "counterclockwise": "clockwise"}
# Pairs of which a question that holds one, and only that, turns into one with the other answer.
OPPOSITES = (
    *(("open", "closed"), ("bigger", "smaller"), ("larger", "smaller"), ("faster", "slower"), ("empty", "full")),
    *(("on", "off"), ("before", "after"), ("inside", "outside"), ("more", "fewer"), ("first", "last")),
)
COUNTER = {"yes": "no"}  # only a yes has a sure counterpart: what is not bigger need not be smaller


def asks_for_time(question: str) -> bool:
    """Whether the answer may be another at another speed."""
    return bool(
        re.search(r"\b(fast|slow|quick|speed|long|short|second|minute|when|duration|time)", question.casefold())
    )


def reworded(question: str, number: int) -> str:
    """The question in one of the other forms, for yes/no questions; one that says so itself is not told it twice."""
    forms = [form for form in FORMS[1:] if "yes or no" not in form.casefold() or "yes or no" not in question.casefold()]
    return forms[number % len(forms)].format(question=question.strip())


def countered(question: str, answer: str) -> tuple[str, str] | None:
    """The question about the opposite, to which the answer is no; None where there is none that is sure."""
    if answer.strip().rstrip(".").casefold() not in COUNTER:
        return None
    for pair in OPPOSITES:
        for word, other in (pair, pair[::-1]):
            matches = re.findall(rf"\b{word}\b", question, re.IGNORECASE)
            if len(matches) == 1 and not re.search(rf"\b(?:{other}|not|n't|or)\b", question, re.IGNORECASE):
                return re.sub(rf"\b{word}\b", other, question, flags=re.IGNORECASE), "no"
    return None


def mirrored(text: str) -> str:
    """The text with left and right swapped, in the case they are written in."""

    def swapped(match: re.Match[str]) -> str:
        word = match.group()
        other = SIDES[word.casefold()]
        return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other

    return re.sub(rf"\b(?:{'|'.join(SIDES)})\b", swapped, text, flags=re.IGNORECASE)
