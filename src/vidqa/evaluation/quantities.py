"""Numbers in answers: their value in any notation, and the units that change a number's meaning."""

from __future__ import annotations

import re
import unicodedata
from decimal import Context, Decimal, Inexact, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from vidqa.evaluation.choices import ANSWER_NOUN, CLAUSE, LINK, without_prefix
from vidqa.evaluation.numerals import TOKEN, numeral_at
from vidqa.evaluation.text import tokens

_ALIASES = {
    "seconds": "s sec secs second 秒 초",
    "milliseconds": "ms msec millisecond 毫秒",
    "minutes": "min mins minute 分 分钟 分鐘 분",
    "hours": "h hr hrs hour 小时 小時 時間 시간",
    "days": "day 天 日",
    "weeks": "week",
    "months": "month",
    "years": "year yr yrs 年",
    "frames": "frame",
    "metres": "m meter meters metre 米",
    "kilometres": "km kilometer kilometers kilometre 公里",
    "centimetres": "cm centimeter centimeters centimetre 厘米",
    "millimetres": "mm millimeter millimeters millimetre",
    "m2": "sqm",
    "km2": "",
    "m3": "",
    "feet": "ft foot",
    "yards": "yd yard",
    "inches": "inch",
    "miles": "mi mile",
    "km/h": "kmh kph kmph",
    "mph": "",
    "m/s": "mps",
    "%": "percent pct percentage percents",
    "‰": "permille",
    "degrees": "° deg degree 度",
    "°c": "celsius ℃",
    "°f": "fahrenheit ℉",
    "kg": "kilogram kilograms",
    "grams": "g gram",
    "tonnes": "ton tons tonne",
    "pounds": "lb lbs pound",
    "litres": "liter liters litre",
}
MOST_DIGITS = 2000  # of a number; powers in answers have fewer
UNITS = {alias: unit for unit, aliases in _ALIASES.items() for alias in (unit, *aliases.split())}
_COMPOUND = (
    (re.compile(r"\b(?:km|kilomet(?:er|re)s?)\s*(?:per|an|/)\s*(?:hour|hr|h)\b", re.IGNORECASE), "km/h"),
    (re.compile(r"\bmiles?\s*(?:per|an|/)\s*(?:hour|hr|h)\b", re.IGNORECASE), "mph"),
    (re.compile(r"\b(?:m|met(?:er|re)s?)\s*(?:per|/)\s*(?:second|sec|s)\b", re.IGNORECASE), "m/s"),
    (re.compile(r"\bper\s+(?:cent\b|100\b)", re.IGNORECASE), "percent"),
    (re.compile(r"°\s*([CF])\b|\bdegrees?\s+(c|f)(?:elsius|ahrenheit)\b", re.IGNORECASE), r"°\1\2"),
    (re.compile(r"百分之\s*([0-9.]+)"), r"\1%"),
)
_LISTED = re.compile(r"^[ \t]*[0-9]{1,2}[.)][ \t]", re.MULTILINE)  # "1. red" and "2. blue" are a list
_SIGNS = str.maketrans({"٫": ".", "٬": ",", "٪": "%", "⁄": "/", "∕": "/", "’": "'", "➖": "−", "˗": "-", "\u00a0": " "})
_UNIT = re.compile(r"(?P<space>[ \t-]?)(?P<unit>%|‰|°[CFcf]?|[^\W\d_/]+[23]?(?:/[a-z]+)?)")
_DASHES = "-−–—‒‐‑"
_SIGN = re.compile(rf"(?:(?<![\w)%°.])(?P<dash>[{_DASHES}])(?P<gap>\s*)|(?P<plus>\+)\s?|(?P<no>[±<>≤≥≠√]=?)\s*)$")
_NEGATIVE = re.compile(
    r"(?:\b(?:minus|negative|moins|menos|meno|минус|neg\.?)[\s-]+(?:an?\s+|of\s+)?|(?:负|負|マイナス|零下|마이너스|سالب)\s*)$",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"(?:\b(?:(?:more|less|fewer|greater|higher|lower|larger|smaller|longer|shorter)\s+than|at\s+(?:least|most)|over|under"
    r"|above|below|up\s+to|exceed(?:s|ing)?|min(?:imum)?(?:\s+of)?|max(?:imum)?(?:\s+of)?|between)\s+|(?:超过|超過|至少|至多|不到)\s*)$",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"(?:\b(?:not|never|nor|neither)|n't|n’t)\s+(?:(?:exactly|be|have|see|just|only)\s+)?$|(?:第|不是)\s*$", re.I
)
_BOUND_AFTER = re.compile(
    r"\s*(?:\+(?!\s?\d)|or\s+(?:more|less|fewer|above|below|higher|lower)\b|and\s+(?:more|above|up)\b|plus\b"
    r"|at\s+(?:least|most)\b|below\s*(?:[.,;]|$)|以上|以下|以内|未満|多|余|余り|이상|이하|[万萬千百亿億만천백억])",
    re.IGNORECASE,
)
_BELOW_ZERO = re.compile(r"\s+(?:below|under)\s+(?:zero|freezing|0)\b", re.IGNORECASE)
_NAMES = re.compile(r"番目|번째|号|號")
_CUE = re.compile(
    rf"(?:{ANSWER_NOUN}{CLAUSE}{LINK}{{0,12}}+|(?<![<>=≤≥])=\s*)"
    r"(?:(?:about|approximately|approx\.?|around|roughly|exactly|only|just)\b|[\s*\"'(~≈=:])*+",
    re.IGNORECASE,
)
_JOINED = re.compile(
    rf"\s*(?:[{_DASHES}~/+×x*,]{{1,2}}|,?\s*(?:or|to|and|and/or|y|o|et|ou|und|oder|bis|或|到|至|から|または))?\s*[$€£]?\s*",
    re.I,
)
_CLAUSE_END = re.compile(rf"[.:;,\n(]|\s[{_DASHES}]\s")

_COUNTED = re.compile(r"\b(?:how\s+many|count|number\s+of)\b([^.?!\n]*)", re.IGNORECASE)
_NONE = re.compile(
    r"\W{0,3}(?:(?:(?:there(?:\s+(?:is|are|was|were)|['’]s)|i\s+(?:can\s+)?(?:see|count))\s+)?(?:none|nobody|no[\s-]one|(?P<no>no))"
    r"|(?:there\s+(?:is|are)|i\s+(?:do|can))\s?(?:n['’]t|not)\s+(?:see\s+)?any(?:one|body)?)\b"
    r"(?P<rest>[^,.;:!?\n]*)(?:[.;:!\n]|$|,(?!\s*(?:but|except|apart|besides|only)\b))",
    re.IGNORECASE,
)
_THERE_ARE = re.compile(
    r"(?:there\s+(?:is|are|were)|i\s+(?:can\s+)?(?:see|count))(?:\s+a\s+total\s+of)?", re.IGNORECASE
)
_PLACES = {*tokens("is are was were can be in on at of this them there video clip scene seen visible present")}


class Quantity(NamedTuple):
    """A number in a text, in canonical form with its unit unless expected; `value` is None if it is ambiguous."""

    start: int
    end: int
    value: str | None


def is_number(expected: str) -> bool:
    """Whether an expected answer is one number, alone or with a known unit."""
    text = expected.strip()
    if len(text) > 60 or not TOKEN.search(prepared := _prepared(text)):
        return False
    numbers = _quantities(prepared, frozenset())
    return (
        len(numbers) == 1
        and numbers[0].value is not None
        and re.fullmatch(r"[^\w%°‰]{0,3}(?:a|an)?\s*", prepared[: numbers[0].start]) is not None
        and re.fullmatch(r"[^\w%°‰]{0,3}", prepared[numbers[0].end :]) is not None
    )


def parse_number(text: str, expected: str, question: str) -> str | None:
    """The one number in `text`, as shortest decimal or as fraction; None if there is none or several compete.

    A unit that neither the question nor the expected answer names stays in the answer: "12 minutes".
    """
    numbers = _quantities(text := _prepared(text), units_named(expected, question))
    if not numbers:
        return "0" if says_none(text, question) else None
    if len({number.value for number in numbers}) == 1:
        return numbers[0].value
    for cue in reversed(list(_CUE.finditer(text))):
        at = next((at for at, number in enumerate(numbers) if number.start <= cue.end() < number.end), None)
        if at is not None:
            return None if _is_joined(text, numbers, at) else numbers[at].value
    alone = [value for value in (_line(text, numbers, True), _line(text, numbers, False)) if value]
    if alone:
        return alone[0] if len(set(alone)) == 1 else None
    return numbers[0].value if _leads(text, numbers, question) else None


def says_none(text: str, question: str) -> bool:
    """Whether a text without a number answers 0 to a counting question: "none", "nobody", and "no" before the counted
    noun: "no cars are visible" answers only "How many cars are there?"."""
    match = _NONE.match(without_prefix(text)) if (counted := _COUNTED.findall(question)) else None
    if match is None or any(numeral_at(text, number) for number in TOKEN.finditer(text)):
        return False
    rest = _nouns(match["rest"])
    return rest <= _nouns(" ".join(counted)) and (match["no"] is None or bool(rest))


def _nouns(text: str) -> set[str]:
    """The counted nouns of a text, in the singular."""
    return {"person" if word == "people" else word.removesuffix("s") for word in {*tokens(text)} - _PLACES}


def _prepared(text: str) -> str:
    """The text with normalised signs, digits and units of two words."""
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text.translate(_SIGNS))
    if len(_LISTED.findall(text)) > 1:
        text = _LISTED.sub("", text)
    for pattern, name in _COMPOUND:
        text = pattern.sub(name, text)
    return text


def _line(text: str, numbers: list[Quantity], is_first: bool) -> str | None:
    """The number that is the whole first or last line."""
    start, end = (0, text.find("\n")) if is_first else (text.rfind("\n") + 1, len(text))
    inside = [number for number in numbers if start <= number.start < end]
    if "\n" not in text or len(inside) != 1:
        return None
    around = text[start : inside[0].start], text[inside[0].end : end]
    return inside[0].value if not any(part.strip(" \t\r*•>#\"'().,:;!=≈~") for part in around) else None


def _is_joined(text: str, numbers: list[Quantity], at: int) -> bool:
    """Whether the next number is coordinated with this one: "3 or 4", "3-4", "3, 4"."""
    return at + 1 < len(numbers) and _JOINED.fullmatch(text[numbers[at].end : numbers[at + 1].start]) is not None


def _leads(text: str, numbers: list[Quantity], question: str) -> bool:
    """Whether the first number is an answer before the sentence continues: not in "3 or 4", nor in "3 out of 4". For
    "How many cars?" it is in "There are 3 cars: 2 red, 1 blue"."""
    before, between = text[: numbers[0].start].strip(" \n*\"'("), text[numbers[0].end : numbers[1].start]
    if _is_joined(text, numbers, 0):
        return False
    if before:
        counted = _nouns(between.partition(":")[0]) if ":" in between and _THERE_ARE.fullmatch(before) else set()
        return bool(counted) and counted <= _nouns(question)
    end = _CLAUSE_END.search(between)
    if end and (end[0] in ":(" or re.search(r"[^\W\d_]", between)):
        return True
    return re.match(r"\s+(?:[^\W\d_]+\s+)?of\b", between) is not None and "out of" not in between


def _quantities(text: str, units: frozenset[str]) -> list[Quantity]:
    """All numbers of the text, in order, without those that are denied ("not 5") or are part of a name ("3rd")."""
    numbers, at = list[Quantity](), 0
    while match := TOKEN.search(text, at):
        at = match.end()
        if (numeral := numeral_at(text, match)) is None:
            continue
        start, value = _signed(text, numeral.start, numeral.value)
        unit, end = _unit(text, numeral.end, is_word=numeral.is_word)
        at = max(at, end if unit is not None else numeral.end)
        if unit is None or _NOT.search(text[max(0, start - 24) : start]):
            continue
        if below := _BELOW_ZERO.match(text, end):
            value, end = None if value is None else -abs(value), below.end()
            at = end
        if _BOUND_AFTER.match(text, end) or _BOUND.search(text[max(0, start - 24) : start]):
            value = None
        canonical = None if value is None else _canonical(value) + _foreign(unit, units)
        numbers.append(Quantity(start, end, canonical))
    return numbers


def _signed(text: str, start: int, value: Fraction | None) -> tuple[int, Fraction | None]:
    """The start of the number with its sign, and its value. A dash with a space, which may be a bullet, is no sign."""
    before = text[max(0, start - 24) : start]
    if negative := _NEGATIVE.search(before):
        return start - (len(before) - negative.start()), None if value is None else -value
    sign = _SIGN.search(before)
    if sign is None:
        return start, value
    begin = start - (len(before) - sign.start())
    if sign["no"]:
        return begin, None
    if not sign["dash"]:
        return begin, value
    if sign["gap"] and sign["dash"] != "−":
        is_bullet = not text[:begin].rpartition("\n")[2].strip()
        return (begin, None) if is_bullet else (start, value)
    return begin, None if value is None else -value


def _unit(text: str, end: int, is_word: bool) -> tuple[str | None, int]:
    """The unit after a number or "", and its end; None as unit if the number is part of a name ("3rd")."""
    match = _UNIT.match(text, end)
    if match is None:
        is_percent = (
            re.search(r"(?:^|[^\d\s])\s*%\s?$", text[max(0, end - 24) : end].rstrip("0123456789.,")) is not None
        )
        return ("%" if is_percent else ""), end
    unit = UNITS.get(match["unit"].lower())
    if unit is not None and not (match["space"] == "-" and len(match["unit"]) < 3):
        return unit, match.end()
    is_attached = not match["space"] and match["unit"][0].isascii() and not is_word
    return (None if is_attached or _NAMES.match(text, end) else ""), end


def _canonical(value: Fraction) -> str:
    """The shortest decimal, or a fraction if no exact decimal exists."""
    with localcontext(Context(prec=MOST_DIGITS, traps=[Inexact])):
        try:
            return format(Decimal(value.numerator) / value.denominator, "f")
        except Inexact:
            return f"{value.numerator}/{value.denominator}"


def _foreign(unit: str, units: frozenset[str]) -> str:
    is_named = not unit or unit in units or (unit == "degrees" and not units.isdisjoint(("°c", "°f")))
    return "" if is_named else f" {unit}"


@lru_cache(maxsize=8192)
def units_named(expected: str, question: str) -> frozenset[str]:
    """The units in the expected answer or, if it has none, those that the question spells out."""
    pattern = r"%|‰|°[cf]?|[^\W\d_]+[23]?(?:/[a-z]+)?"
    own = {UNITS[word] for word in re.findall(pattern, _prepared(expected).lower()) if word in UNITS}
    if own:
        return frozenset(own)
    words = re.findall(pattern, _prepared(question).lower())
    return frozenset(
        UNITS[word] for word in words if word in UNITS and (len(word) > 3 or not word.isascii() or word in ("%", "mph"))
    )
