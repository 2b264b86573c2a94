"""Every judged answer of an evaluation in memory, for what a stream of gaps cannot say: shares, slices, suspects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Span = tuple[float, float]  # seconds of the video
# The fields by which records say where in the video the event is that a question asks about.
SPAN_FIELDS = (("span",), ("start", "end"), ("start_time", "end_time"), ("event_start", "event_end"))
MOST_TAGS = 50  # of one record


class Extra(NamedTuple):
    """What an annotation says beside question and answer: tags as (dimension, value), and the place of the event."""

    tags: tuple[tuple[str, str], ...] = ()
    span: Span | None = None


class Judged(NamedTuple):
    """One answer; `error` is empty where it is right. `row` is the annotation's place, -1 where there is none."""

    row: int
    video: str
    question: str
    truth: str
    sample_id: str
    kind: str
    error: str
    parsed: str
    parsed_truth: str
    answer_kind: str

    @property
    def is_answer(self) -> bool:
        """Whether one answer could be read, right or wrong."""
        return self.error in ("", "wrong")


def extra_of(row: Mapping[str, Any]) -> Extra:
    """The tags and span of an annotation. `tags` is a list of words, or names with one value each."""
    return Extra(tuple(_tags(row.get("tags")))[:MOST_TAGS], _span(row))


def _tags(tags: Any) -> list[tuple[str, str]]:
    if isinstance(tags, Mapping):
        plain = {name: value for name, value in tags.items() if isinstance(value, (str, int, float, bool))}
        return [(f"tag {name}", str(value)) for name, value in plain.items()]
    return [("tag", each) for each in tags if isinstance(each, str)] if isinstance(tags, list) else []


def _span(row: Mapping[str, Any]) -> Span | None:
    for names in SPAN_FIELDS:
        values = row.get(names[0]) if len(names) == 1 else [row.get(name) for name in names]
        if isinstance(values, list) and len(values) == 2 and all(map(_is_time, values)) and values[0] <= values[1]:
            return float(values[0]), float(values[1])
    return None


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e7
