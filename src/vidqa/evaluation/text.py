"""Text normalisation: cleaning, removal of LaTeX, Markdown and HTML, the normalised form, token F1 and ROUGE-L."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter

LONGEST = 20_000  # characters of an answer that are read: the first and the last half of this
ARTICLES = frozenset(("a", "an", "the"))
# Numbers keep their inner separators ("3.5", "12:30"), words their apostrophes; everything else separates.
_TOKEN = re.compile(r"[0-9]+(?:[.,:/][0-9]+)*|[^\W_]+(?:['’][^\W_]+)*")


# "10³" and "2½" are not "103" and "21/2"; a superscript or enclosed digit after a digit is a separate character.
_ANNEXED = re.compile(r"(?<=\d)[⁺⁻]?[⁰¹²³⁴-⁹]+|(?<=\d)[¼-¾⅐-⅟↉₀-₉①-⓿❶-➓⑴-⒛]+")


def _apart(annexed: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", annexed[0])
    return f"^{digits}" if annexed[0][0] in "⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹" else f" {digits}"


def as_text(value: object) -> str:
    """Any JSON value as text without characters that cannot be encoded; None and NaN are empty."""
    if not isinstance(value, str):
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        value = json.dumps(value, ensure_ascii=False, default=str)
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def clean(value: object) -> str:
    """Bounded `as_text`: at most LONGEST characters, with full-width and other character variants unified (NFKC)."""
    text = as_text(value)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n{text[-LONGEST // 2 :]}"
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", _ANNEXED.sub(_apart, text))
    return "".join(c for c in text if unicodedata.category(c) != "Cf")  # zero-width and direction marks


# --- marks of style --------------------------------------------------------------------------------------------------

_STRUCK = re.compile(r"~~[^~\n]{1,200}~~|<(s|del|strike)>[^<>]{0,200}</\1>", re.IGNORECASE)  # withdrawn by the writer
_BREAK = re.compile(r"<(?:br|/p|/div|/li)\b[^<>]{0,40}>", re.IGNORECASE)
_ANGLES = re.compile(r"<([A-Za-z])>", re.IGNORECASE)  # "<B>" that is not a tag
_RAISED = re.compile(r"(?<=\d)<sup>", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:b|strong|i|em|u|mark|code|span|p|div|li|ul|ol|font|small|big|sup|sub|center|h[1-6])\b[^<>]{0,80}>", re.I
)
_BOLD = re.compile(r"(?<!\d)(?:\*\*|__)|(?:\*\*|__)(?!\d)")  # "3**2" is a power
_EMPHASIS = re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_\n]{1,200})(?<!\s)\1(?![\w*])")
_DOLLARS = re.compile(r"\$\$?\s*(\(?[A-Za-z]\)?|[-+−]?[0-9][0-9.,/^ ×]*%?)\s*\$\$?(?!\d)")

_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([^{}]{1,20}?)\s*\}|(\d))\s*(?:\{\s*([^{}]{1,20}?)\s*\}|(\d))")
_SIGNS = {
    **dict.fromkeys(("times", "cdot", "ast"), "×"),
    **dict.fromkeys(("rightarrow", "to", "Rightarrow", "implies", "longrightarrow"), "→"),
    **dict.fromkeys(("geq", "ge"), "≥"),
    **dict.fromkeys(("leq", "le"), "≤"),
    **dict.fromkeys(("approx", "sim", "simeq"), "≈"),
    **{"pm": "±", "neq": "≠", "ne": "≠", "circ": "°", "degree": "°", "lt": "<", "gt": ">"},
    **dict.fromkeys(("quad", "qquad", "newline", "par"), " "),
}
_STYLE = re.compile(
    r"\\(?:text[a-z]*|math[a-z]*|emph|underline|boldsymbol|bm|[mh]box|fbox|boxed|operatorname\*?|displaystyle|left|right"
    r"|bf|it|rm|sf|tt|[lL]arge|huge|big[lr]?|Big[lr]?|checkmark|color\{[^{}]{0,20}\}|textcolor\{[^{}]{0,20}\})(?![A-Za-z])"
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")


def plain(text: str) -> str:
    """The text without LaTeX, Markdown and HTML markup; struck-out text is removed."""
    if "~~" in text or "<" in text:
        text = _RAISED.sub("^", _BREAK.sub("\n", _STRUCK.sub(" ", text)))
        text = _TAG.sub("", text if "</" in text else _ANGLES.sub(r"(\1)", text))
    if "\\" in text:
        text = _without_commands(text)
    if "$" in text:
        text = _DOLLARS.sub(r"\1", text)
    text = _BOLD.sub("", text)
    if "*" in text or "_" in text:
        text = _EMPHASIS.sub(r"\2", text)
    return text.strip(" \t\r\n`")


def _without_commands(text: str) -> str:
    text = _FRACTION.sub(lambda part: f" {part[1] or part[2]}/{part[3] or part[4]} ", text)
    text = re.sub(r"\\[ ,;:!]|\\\\", " ", re.sub(r"\\([%$&#_{}])", r"\1", text))
    text = re.sub(r"\\[()\[\]]", " ", text)
    text, styles = _STYLE.subn("", text)
    text = _COMMAND.sub(lambda command: _SIGNS.get(command[1], command[0]), text)
    text = re.sub(r"\^\s*\{?\s*°\s*\}?", "°", text)
    return re.sub(r"[{}]", "", text) if styles or "{" in text else text


# --- comparing -------------------------------------------------------------------------------------------------------


def tokens(text: str) -> list[str]:
    """Lower-case words and numbers without punctuation and articles; an answer of nothing but articles keeps them."""
    words = _TOKEN.findall(text.casefold().replace("’", "'"))
    return [token for token in words if token not in ARTICLES] or words


def normalise(text: str) -> str:
    """The normalised form for comparison of free text: case, punctuation, white space and articles do not count."""
    return " ".join(tokens(text))


def token_f1(answer: str, expected: str) -> float:
    """F1 of the two bags of tokens, 0..1; 1 for two empty texts."""
    ours, theirs = Counter(tokens(answer)), Counter(tokens(expected))
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


def rouge_l(answer: str, expected: str) -> float:
    """ROUGE-L F1, 0..1, on lower-case tokens with articles, without stemming (Lin, 2004; beta 1)."""
    ours, theirs = (_TOKEN.findall(text.casefold()) for text in (answer, expected))
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * _common_subsequence(ours, theirs) / (len(ours) + len(theirs))


def _common_subsequence(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, by bit vectors (Hyyrö, 2004): one big-integer step per token of b."""
    where: dict[str, int] = {}
    for position, token in enumerate(a):
        where[token] = where.get(token, 0) | 1 << position
    everything = (1 << len(a)) - 1
    row = everything
    for token in b:
        hits = row & where.get(token, 0)
        row = ((row + hits) | (row - hits)) & everything
    return len(a) - row.bit_count()
