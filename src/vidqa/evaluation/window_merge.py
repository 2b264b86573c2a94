"""Merging of the answers about the windows of a long video, by a rule that the merged answer names.

A yes/no question: yes if any window says yes, with these windows; no if every window says no. A choice: the most
frequent one; none if two are equally frequent. Other answers are listed side by side.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vidqa.evaluation.choices import options_of

# By the kind of answer; other kinds are not merged.
RULES = {"yes_no": "yes if any window says yes, no if all say no", "letter": "the choice of most windows"}
Span = tuple[float, float]
# Matches "Is the door open?", also after other sentences, but not "Is it red or blue?".
_ASKS_YES_NO = re.compile(
    r"(?:^|[.!?\n])\s*(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|must)\b(?![^?]*\bor\b)[^?]*\?",
    re.IGNORECASE,
)


def expected_of(question: str) -> str | None:
    """A stand-in for the expected answer, if the question implies its kind: "yes" for a yes/no question."""
    return "yes" if _ASKS_YES_NO.search(question) and not options_of(question) else None


@dataclass(frozen=True)
class WindowAnswer:
    """The answer about one window: `answer`, `kind` and `status` are those of a parsed answer."""

    span: Span
    response: str
    answer: str
    kind: str
    status: str


@dataclass(frozen=True)
class Merged:
    """The answer about all windows; `spans_s` are the windows with this answer, neighbours joined. `status` is
    "parsed", "undecided" if the rule gives no answer, "separate" if windows are not merged, or "error" if no window was
    answered."""

    response: str | None = None
    answer: str = ""
    kind: str = ""
    status: str = "error"
    spans_s: tuple[Span, ...] = ()
    rule: str = ""


def merged(windows: Sequence[WindowAnswer], count: int) -> Merged:
    """Merge the answers of a video's windows, in time order, those that were answered of `count`."""
    if not windows:
        return Merged()
    kind = Counter(window.kind for window in windows).most_common(1)[0][0]
    if kind not in RULES:
        lines = "\n".join(
            f"{start:g}-{end:g} s: {window.response}" for window in windows for start, end in [window.span]
        )
        return Merged(lines, "", kind, "separate", (), "not merged")
    parsed = [window for window in windows if (window.status, window.kind) == ("parsed", kind)]
    answer = _any_yes(parsed, count) if kind == "yes_no" else _most(parsed)
    spans = joined([window.span for window in parsed if answer and window.answer == answer])
    return Merged(answer, answer, kind, "parsed" if answer else "undecided", spans, RULES[kind])


def joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in time order, those that touch or overlap joined."""
    merged_spans: list[Span] = []
    for start, end in spans:
        if merged_spans and start <= merged_spans[-1][1]:
            merged_spans[-1] = (merged_spans[-1][0], max(end, merged_spans[-1][1]))
        else:
            merged_spans.append((start, end))
    return tuple(merged_spans)


def _any_yes(windows: Sequence[WindowAnswer], count: int) -> str:
    if any(window.answer == "yes" for window in windows):
        return "yes"
    return "no" if windows and len(windows) == count else ""


def _most(windows: Sequence[WindowAnswer]) -> str:
    counts = Counter(window.answer for window in windows).most_common(2)
    tied = len(counts) > 1 and counts[0][1] == counts[1][1]
    return counts[0][0] if counts and not tied else ""
