"""Numbers in answers: digits, number words, and the few units that change what a number means."""

from __future__ import annotations

import re
from functools import lru_cache

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
WORDS = {**{word: str(value) for value, word in enumerate(_SMALL)}, "once": "1", "twice": "2"}
_ALIASES = {
    "seconds": "s sec secs second",
    "milliseconds": "ms msec millisecond",
    "minutes": "min mins minute",
    "hours": "h hr hrs hour",
    "metres": "m meter meters metre",
    "kilometres": "km kilometer kilometers kilometre",
    "centimetres": "cm centimeter centimeters centimetre",
    "millimetres": "mm millimeter millimeters millimetre",
    "feet": "ft foot",
    "miles": "mi mile",
    "km/h": "kmh kph kmph",
    "mph": "",
    "m/s": "mps",
    "%": "percent pct",
    "degrees": "° deg degree",
    "kg": "kilogram kilograms",
}
UNITS = {alias: unit for unit, aliases in _ALIASES.items() for alias in (unit, *aliases.split())}
_NUMBER = re.compile(
    r"(?<![\w.:])([-+−]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(\.[0-9]+)?(?!:?[0-9])(\s?)(%|°|[^\W\d_/]+(?:/[a-z]+)?)?"
)
_WORD = re.compile(r"\b(?:" + "|".join(WORDS) + r")\b(?:\s+([a-z%/]+))?", re.IGNORECASE)
_CUE = re.compile(r"\banswer(?:\s+is)?\s*[:=]?\s*|(?<![<>=])=\s*", re.IGNORECASE)
_WHOLE = re.compile(r"\W{0,3}[-+−]?[0-9][0-9,]*(?:\.[0-9]+)?\s?([^\W\d_][\w/]*|%|°)?\W{0,3}")


def is_number(expected: str) -> bool:
    """Whether an expected answer is one number, alone or with a unit that is known here."""
    text = expected.strip()
    if text.lower().strip(".") in WORDS:
        return True
    whole = _WHOLE.fullmatch(text)
    return whole is not None and (not whole[1] or whole[1].lower() in UNITS)


def parse_number(text: str, units: frozenset[str]) -> str | None:
    """The one number that `text` gives, as shortest decimal; None when there is none or several compete.

    A unit outside `units` (those the question or the expected answer names) stays in the answer: "12 minutes".
    """
    found = _quantities(text, units)
    if len({value for _, value in found}) == 1:
        return found[0][1]
    for cue in reversed(list(_CUE.finditer(text))):
        if (after := next((v for at, v in found if at == cue.end()), None)) is not None:
            return after
    return found[0][1] if found and not text[: found[0][0]].strip(" \n*\"'(") and _leads(text, found[0][0]) else None


def _leads(text: str, start: int) -> bool:
    """Whether the number at `start` answers before a sentence goes on: not "3 or 4", not "3-4"."""
    rest = re.sub(r"^[-+]?[0-9a-z.,]*", "", text[start:], count=1, flags=re.IGNORECASE)
    return not re.match(r"\s*(?:[-–/~]|or\b|to\b|and\b)", rest, re.IGNORECASE)


def _quantities(text: str, units: frozenset[str]) -> list[tuple[int, str]]:
    """(position, canonical value) of every number with digits, or of every number word where there are no digits."""
    found = []
    for match in _NUMBER.finditer(text):
        sign, whole, fraction, space, word = match.groups()
        unit = UNITS.get((word or "").lower())
        if word and not space and unit is None:
            continue  # "3rd", "2x": a name, not an amount
        found.append((match.start(), _canonical(sign, whole, fraction) + _foreign(unit, units)))
    if not any(digit in text for digit in "0123456789"):
        for match in _WORD.finditer(text):
            value = WORDS[match[0].split()[0].lower()]
            found.append((match.start(), value + _foreign(UNITS.get((match[1] or "").lower()), units)))
    return found


def _canonical(sign: str, whole: str, fraction: str | None) -> str:
    digits = whole.replace(",", "").lstrip("0") or "0"
    decimals = (fraction or "").rstrip("0").rstrip(".")
    value = f"{digits}{decimals}"
    return f"-{value}" if sign in ("-", "−") and value != "0" else value


def _foreign(unit: str | None, units: frozenset[str]) -> str:
    return "" if unit is None or unit in units else f" {unit}"


@lru_cache(maxsize=8192)
def units_named(expected: str, question: str) -> frozenset[str]:
    """The units that the expected answer has, or, where it has none, that the question spells out."""
    own = {UNITS[word] for word in re.findall(r"%|°|[a-z]+(?:/[a-z]+)?", expected.lower()) if word in UNITS}
    if own:
        return frozenset(own)
    words = re.findall(r"%|[a-z]+(?:/[a-z]+)?", question.lower())
    return frozenset(UNITS[word] for word in words if word in UNITS and (len(word) > 3 or word in ("%", "mph")))
