"""Parsing of written numbers: digits with separators, fractions and powers, and English number words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {**{word: at for at, word in enumerate(_ONES)}, **{word: 10 * at for at, word in enumerate(_TENS, 2)}}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_PARTS = {
    **dict.fromkeys(("half", "halves"), 2),
    **dict.fromkeys(("quarter", "quarters", "fourth", "fourths"), 4),
    **dict.fromkeys(("third", "thirds"), 3),
    **{
        name + plural: value
        for value, name in enumerate(("fifth", "sixth", "seventh", "eighth", "ninth", "tenth"), 5)
        for plural in ("", "s")
    },
    **dict.fromkeys(("hundredth", "hundredths"), 100),
    **dict.fromkeys(("thousandth", "thousandths"), 1000),
}
_PLURAL = frozenset(name for name in _PARTS if name.endswith("s"))
_TIMES = {"once": 1, "twice": 2, "thrice": 3}
_DETERMINERS = frozenset(
    ("the", "this", "that", "which", "each", "every", "another", "other", "no", "any", "some", "last", "first", "next")
)
MOST_DIGITS = 30
_DIGITS = r"[0-9]+(?:[.,'_][0-9]+| [0-9]{3}(?![0-9]))*|\.[0-9]+"
_WORDS = "|".join(sorted((*_SMALL, *_SCALES, *_PARTS, *_TIMES), key=len, reverse=True))
TOKEN = re.compile(
    rf"(?P<digits>(?<![\w.])\.[0-9]+|(?<![A-Za-z0-9À-ÖØ-öø-ɏ_./^])(?<![0-9]:){_DIGITS})|\b(?P<word>{_WORDS})\b",
    re.IGNORECASE,
)
_OVER = re.compile(r"\s?[/⁄∕]\s?([0-9]+)(?![0-9/⁄∕])(?!\.[0-9])")
_MIXED = re.compile(r"(?:\s|-|\s+and\s+)([0-9]+)\s?[/⁄∕]\s?([0-9]+)(?![0-9/⁄∕])")
_POWER = re.compile(r"\s?\^\s?\{?\(?([-+−]?[0-9]{1,3})\)?\}?")
_SCIENTIFIC = re.compile(r"(?:\s?[×x*·]\s?10\s?\^\s?\{?\(?|[eE])([-+−]?[0-9]{1,2})\)?\}?(?![0-9.])")


class Numeral(NamedTuple):
    """A number in a text; `value` is None if it is ambiguous ("1,2,3", "3/4/2020", "two third")."""

    start: int
    end: int
    value: Fraction | None
    is_word: bool


def numeral_at(text: str, match: re.Match[str]) -> Numeral | None:
    """The longest numeral that begins with a match of TOKEN; None if it is not a number ("third car")."""
    return _digits(text, match) if match["digits"] else _words(text, match)


def _digits(text: str, match: re.Match[str]) -> Numeral | None:
    start, end = match.span()
    value = _literal(match["digits"])
    if re.match(":[0-9]", text[end : end + 2]):  # a time of day, a ratio
        return None
    if value is None:
        return Numeral(start, end, None, False)
    if mixed := _MIXED.match(text, end):
        part = _ratio(Fraction(int(mixed[1][:MOST_DIGITS])), mixed[2])
        return Numeral(start, mixed.end(), None if part is None else value + part, False)
    if over := _OVER.match(text, end):
        return Numeral(start, over.end(), _ratio(value, over[1]), False)
    if date := re.match(r"(?:\s?[/⁄∕.-]\s?[0-9]+){2,}", text[end : end + 20]):
        return Numeral(start, end + date.end(), None, False)
    if power := _SCIENTIFIC.match(text, end):
        return Numeral(start, power.end(), value * Fraction(10) ** _exponent(power[1]), False)
    if power := _POWER.match(text, end):
        exponent = _exponent(power[1])
        is_small = abs(exponent) <= MOST_DIGITS and value and value < 10**6
        return Numeral(start, power.end(), value**exponent if is_small else None, False)
    return _scaled(text, start, end, value, is_word=False)


def _exponent(written: str) -> int:
    return int(written.replace("−", "-"))


def _ratio(value: Fraction, over: str) -> Fraction | None:
    below = int(over[:MOST_DIGITS])
    return value / below if below else None


def _literal(written: str) -> Fraction | None:
    """The value of digits with separators: "1,250", "1.250,5", "1 250", "3,5"; None if they fit no number format."""
    if len(written) > MOST_DIGITS:
        return None
    marks = re.sub(r"[0-9]", "", written)
    if not marks:
        return Fraction(int(written))
    decimal = _decimal_mark(written, marks)
    whole, _, fraction = written.rpartition(decimal) if decimal else (written, "", "")
    groups = re.split(r"[.,'_ ]", whole)
    is_grouped = len(groups) > 1
    if is_grouped and (not 1 <= len(groups[0]) <= 3 or any(len(group) != 3 for group in groups[1:])):
        return None
    return Fraction(f"{''.join(groups) or '0'}.{fraction or '0'}")


def _decimal_mark(written: str, marks: str) -> str:
    """The decimal mark, or "". One comma before three digits separates thousands."""
    if len(set(marks)) == 2 and marks[-1] in ".," and marks.count(marks[-1]) == 1:
        return marks[-1]
    if marks == ".":
        return "."
    if marks == ",":
        before, _, after = written.partition(",")
        return "" if len(after) == 3 and len(before) <= 3 and before != "0" else ","
    return ""


def _words(text: str, match: re.Match[str]) -> Numeral | None:
    word = match["word"].lower()
    before = re.search(r"([A-Za-z]+)[\s-]+$", text[max(0, match.start() - 20) : match.start()])
    previous = before[1].lower() if before else ""
    start, end = match.span()
    if word in _TIMES:
        return Numeral(start, end, Fraction(_TIMES[word]), True) if _ends(text, end) else None
    if word in _PARTS:
        return _part(text, start, end, word, previous)
    if word == "one" and _is_pronoun(text, start, end, previous):
        return None
    if word in _SCALES:
        vague = previous in ("few", "several", "many", "of", "couple")
        return _scaled(text, start, end, None if vague else Fraction(_SCALES[word]), is_word=True)
    return _cardinal(text, start, end, word)


def _part(text: str, start: int, end: int, word: str, previous: str) -> Numeral | None:
    """Parse "half", "a third of": a fraction without a number before it, but not "the third car"."""
    is_known = previous in ("", "a", "an", "is", "are", "about", "only", "exactly", "minus", "negative")
    if word in _PLURAL or not (is_known or (word == "half" and re.match(r"\s+an?\s", text[end : end + 60]))):
        return None
    if previous == "" and word != "half" and not re.match(r"\s+of\b", text[end : end + 60]):
        return None
    after = re.match(r"\s+(?:a|an)\s+(dozen|hundred|thousand|million)\b", text[end : end + 60], re.IGNORECASE)
    if after:
        return Numeral(start, end + after.end(), Fraction(_SCALES[after[1].lower()], 2), True)
    if word not in ("half", "quarter") and not (_ends(text, end) or re.match(r"\s+of\b", text[end : end + 60])):
        return None
    article = re.match(r"\s+an?(?=\s)", text[end : end + 60])
    return Numeral(start, end + (article.end() if article else 0), Fraction(1, _PARTS[word]), True)


def _is_pronoun(text: str, start: int, end: int, previous: str) -> bool:
    """Whether "one" is a pronoun: "the red one", "no one", "one another"."""
    if re.match(
        r"[\s-]+(?:half|third|quarter|fourth|fifth|hundred|thousand|million|dozen|point)\b", text[end : end + 60], re.I
    ):
        return False
    if previous in _DETERMINERS or previous in _PARTS:
        return True
    if not _ends(text, end):
        return re.match(r"\s+(?:another|can|could|who|that|which)\b", text[end : end + 60], re.IGNORECASE) is not None
    counts = "is are was were only just exactly about approximately equals be answer see saw count minus negative"
    return previous not in ("", *counts.split())


def _ends(text: str, end: int) -> bool:
    return re.match(r"\s*(?:[.,;:!?)\"'\n]|$)", text[end : end + 60]) is not None


def _cardinal(text: str, start: int, end: int, word: str) -> Numeral | None:
    """Parse "twenty-one", "one hundred and five", "three point five", "two and a half", "two thirds"."""
    total, run = 0, _SMALL[word]
    last = run  # bounds the next word: ones follow tens, anything follows a scale
    while step := _next(text, end, (*_SMALL, "hundred", "thousand", "million", "billion", "dozen")):
        following, joined, at = step
        if following in _SCALES:
            if joined != " ":
                break
            total, run = _with_scale(total, run, _SCALES[following])
            last = 100 if run else 1000
        elif _SMALL[following] < _room(last) and (joined == " " or last >= 100):
            run, last = run + _SMALL[following], _SMALL[following]
        else:
            break
        end = at
    value = Fraction(total + run)
    if point := re.match(r"\s+point((?:\s+(?:" + "|".join(_ONES[:10]) + r")\b)+)", text[end : end + 60], re.IGNORECASE):
        digits = "".join(str(_SMALL[name]) for name in point[1].lower().split())
        return Numeral(start, end + point.end(), Fraction(f"{value.numerator}.{digits}"), True)
    return _scaled(text, start, end, value, is_word=True)


def _room(last: int) -> int:
    """The exclusive upper bound of the next word of a number."""
    return 10 if 20 <= last < 100 else 100 if last == 100 else 1000 if last == 1000 else 0


def _with_scale(total: int, run: int, scale: int) -> tuple[int, int]:
    return (total, run * scale) if scale == 100 else (total + (run or 1) * scale, 0)


def _next(text: str, end: int, words: Sequence[str]) -> tuple[str, str, int] | None:
    """The next word if it is one of `words`, the separator (" " or "and"), and the end of the word."""
    join = re.match(r"(\s+and\s+|[\s-]+)([A-Za-z]+)\b", text[end : end + 40], re.IGNORECASE)
    if join is None or join[2].lower() not in words:
        return None
    return join[2].lower(), "and" if "and" in join[1].lower() else " ", end + join.end()


def _scaled(text: str, start: int, end: int, value: Fraction | None, *, is_word: bool) -> Numeral | None:
    """Apply the following words that change a value: "1.5 million", "two thirds", "2 and a half"."""
    if (step := _next(text, end, tuple(_SCALES))) and step[1] == " " and value is not None:
        value, end = value * _SCALES[step[0]], step[2]
    if (step := _next(text, end, tuple(_PARTS))) and step[1] == " " and value is not None:
        if step[0] in _PLURAL:
            return Numeral(start, step[2], value / _PARTS[step[0]], is_word)
        if value != 1:
            is_ordinal = is_word and value.denominator == 1 and value % 10 == 0  # "twenty-fifth"
            return None if is_ordinal else Numeral(start, step[2], None, is_word)
        return Numeral(start, step[2], Fraction(1, _PARTS[step[0]]), is_word)
    more = re.match(
        r"\s+and\s+(?:(an?|one|two|three|four)\s+)(" + "|".join(_PARTS) + r")\b", text[end : end + 50], re.IGNORECASE
    )
    if more and value is not None:
        count = {"a": 1, "an": 1}.get(more[1].lower()) or _SMALL[more[1].lower()]
        return Numeral(start, end + more.end(), value + Fraction(count, _PARTS[more[2].lower()]), is_word)
    return Numeral(start, end, value, is_word)
