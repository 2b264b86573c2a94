"""The audit of doubtful labels: the page that asks a person, and the file of answers that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vidqa.core.files import read_object, write_json
from vidqa.core.pages.page import page
from vidqa.evaluation.thumbnails import card_frames
from vidqa.gaps.curation.labels import read_saved
from vidqa.gaps.curation.problems import INPUT

SCHEMA = "vidqa.audit_answers.v1"
VERDICTS = ("right", "wrong", "unclear")
CARDS = 200  # labels on the page, the most doubtful first
FRAMES = 6
SHOWN = 1500  # characters of one text


class Answered(NamedTuple):
    """A person's verdict on a label; `answer` is the right one, where the label is wrong and it is known."""

    verdict: str
    answer: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether the sample still has a label that a person stands by."""
        return self.verdict == "right" or bool(self.verdict == "wrong" and self.answer)


def read_answers(path: Path) -> dict[str, Answered]:
    """By sample id. Raises CURATION_INPUT."""
    table = read_saved(path)
    answers = table.get("answers") if isinstance(table, dict) and table.get("schema") == SCHEMA else None
    if not isinstance(answers, dict):
        raise INPUT.error(path, f"it is no object of schema {SCHEMA} with answers")
    return {name: _answered(path, name, value) for name, value in answers.items()}


def _answered(path: Path, name: str, value: Any) -> Answered:
    verdict, answer = (value.get("verdict"), value.get("answer", "")) if isinstance(value, dict) else (None, "")
    if verdict not in VERDICTS or not isinstance(answer, str):
        message = f"{str(value)[:80]} has no verdict that is one of {', '.join(VERDICTS)}"
        raise INPUT.error(f"{path} {name}", message)
    return Answered(verdict, answer.strip())


def add_answers(path: Path, store: Path) -> None:
    """Add the answers in a file to those in `store`, where they replace earlier ones of the same samples.

    Raises CURATION_INPUT, and then leaves `store` as it is.
    """
    before = read_object(store).get("answers", {}) if store.is_file() else {}
    new = {name: answer._asdict() for name, answer in read_answers(path).items()}
    write_json(store, {"schema": SCHEMA, "answers": {**before, **new}})


def audit_page(items: Sequence[dict[str, Any]]) -> str:
    """HTML of one file that needs no network."""
    frames = cache(lambda video: card_frames(video, FRAMES))
    cards = []
    for item in items[:CARDS]:
        texts = {name: str(value)[:SHOWN] for name, value in item.items() if name != "reasons"}
        cards.append({**texts, "reasons": item["reasons"], **frames(str(item["video_id"]))})
    return page(
        "gaps/analysis/audit.html.j2",
        title="Are these labels right?",
        cards=cards,
        count=len(items),
        verdicts=VERDICTS,
        schema=SCHEMA,
    )
