"""Markup around an answer: LaTeX, Markdown and HTML become plain text; the last \\boxed{..} is the answer."""

from __future__ import annotations

import re

from vidqa.evaluation.quantities import UNITS

_STRUCK = re.compile(r"~~[^~\n]{1,200}~~|<(s|del|strike)>[^<>]{0,200}</\1>", re.IGNORECASE)  # withdrawn by the writer
_BREAK = re.compile(r"<(?:br|/p|/div|/li)\b[^<>]{0,40}>", re.IGNORECASE)
_ANGLES = re.compile(r"<([A-Za-z])>", re.IGNORECASE)  # "<B>" that opens nothing
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
_BOX = re.compile(r"\\?\b(?:boxed|fbox)\s*(?=\{)|\\boxed\s+(?=[A-Za-z0-9](?![A-Za-z0-9]))")
_NOT = re.compile(r"\b(?:not|never|rather than|instead of)[\s$\\(\[]*$", re.IGNORECASE)
_BETWEEN_TWO = re.compile(r"[\s$,;&/|.\\()\[\]]*(?:and|or|and/or)?[\s$,;&/|\\()\[\]]*", re.IGNORECASE)


def final_box(text: str) -> tuple[str, bool] | None:
    """(what the last box holds, whether it is closed); both boxes where two stand side by side. None without a box."""
    if "box" not in text:
        return None
    marks = [mark for mark in _BOX.finditer(text) if not _NOT.search(text[max(0, mark.start() - 30) : mark.start()])][
        -2:
    ]
    if not marks:
        return None
    boxes = [_content(text, mark.end()) for mark in marks]
    content, end = boxes[-1]
    if len(boxes) == 2 and _BETWEEN_TWO.fullmatch(text[boxes[0][1] : marks[1].start()]):
        content = content if content.strip() == boxes[0][0].strip() else f"{boxes[0][0]} and {content}"
    return f"{content}{_unit_after(content, text[end : end + 60])}", end <= len(text)


def _content(text: str, start: int) -> tuple[str, int]:
    """(content, end) of the group in braces at `start`, or of the one character there; the end of a group without its
    last brace lies behind the text."""
    if text[start] != "{":
        return text[start], start + 1
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return text[start + 1 : at], at + 1
    return text[start + 1 :], len(text) + 1


def _unit_after(content: str, after: str) -> str:
    """The unit behind a box with a number: "\\boxed{12} minutes" is no 12."""
    if not re.search(r"\d\s*\}*\s*$", content):
        return ""
    unit = re.match(r"[\s$)\]]*(%|°|[^\W\d_]+(?:/[a-z]+)?)", plain(after))
    return f" {unit[1]}" if unit and unit[1].lower() in UNITS else ""


def plain(text: str) -> str:
    """The text without the marks of LaTeX, Markdown and HTML; what was struck out is gone."""
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
