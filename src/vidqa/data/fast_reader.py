"""What answers are compared with: question, answer, kind and first medium of an annotation, read without checking.

Whoever has answers has read the annotations with all checks before; here a million of them are read in seconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vidqa.data.media_placement import KINDS, TAG
from vidqa.data.parse import KIND_FIELDS, ROLES

MEDIA_FIELDS = tuple(f"{kind}{ending}" for kind in KINDS for ending in ("", "s"))
_KIND_FIELDS = frozenset(KIND_FIELDS)


class FastRow(NamedTuple):
    """`question` and `answer` are the last ones; what the annotation lacks is None or empty, and of whatever type the
    annotation has it."""

    question: Any
    answer: Any
    kind: Any
    medium: Any


def is_annotation(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("conversations", row.get("messages")), list)


def fast_row(row: dict[str, Any]) -> FastRow:
    """The fast_row of a row for which `is_annotation` holds."""
    question = answer = medium = None
    for turn in row.get("conversations", row.get("messages")) or ():
        if not isinstance(turn, dict):
            continue
        role = turn.get("from") or turn.get("role")
        content = turn["value"] if "value" in turn else turn.get("content")
        is_tagged = True
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, dict)]
            medium = medium or next((part[kind] for part in parts for kind in KINDS if part.get(kind)), None)
            content = "".join(str(part.get("text") or "\n") for part in parts)
            is_tagged = medium is None and bool(_first_listed(row))
        role_name = ROLES.get(role) if isinstance(role, str) else None
        if role_name == "user":
            question = TAG.sub("\n", content) if is_tagged and isinstance(content, str) and "<" in content else content
        elif role_name == "assistant":
            answer = content
    kind = None if _KIND_FIELDS.isdisjoint(row) else next(filter(None, map(row.get, KIND_FIELDS)), None)
    return FastRow(question, answer, kind, medium or _first_listed(row))


def _first_listed(row: dict[str, Any]) -> str:
    for name in MEDIA_FIELDS:
        media = row.get(name)
        if isinstance(media, list):
            media = media[0] if media else None
        if isinstance(media, str) and media:
            return media
    return ""
