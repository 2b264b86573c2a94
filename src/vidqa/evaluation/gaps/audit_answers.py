"""A person's answers to an audit: read, checked, kept over rounds, and applied to labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from vidqa.contract.files import parse_json, read_object, write_json
from vidqa.evaluation.gaps.problems import GAPS_AUDIT_ANSWERS

SCHEMA = "vidqa.audit_answers.v1"
VERDICTS = ("right", "wrong", "unclear")
MOST_BYTES = 64 << 20


class Answered(NamedTuple):
    """What a person says of a label; `answer` is the right one, where the label is wrong and it is known."""

    verdict: str
    answer: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether the sample still has a label that somebody stands by."""
        return self.verdict == "right" or bool(self.verdict == "wrong" and self.answer)


def read_answers(path: Path) -> dict[str, Answered]:
    """By sample id. Raises GAPS_AUDIT_ANSWERS."""
    try:
        found = parse_json(path, MOST_BYTES)
    except (OSError, ValueError) as wrong:
        raise GAPS_AUDIT_ANSWERS.error(path, f"it cannot be read: {wrong}") from wrong
    answers = found.get("answers") if isinstance(found, dict) and found.get("schema") == SCHEMA else None
    if not isinstance(answers, dict):
        raise GAPS_AUDIT_ANSWERS.error(path, f"it is no object of schema {SCHEMA} with answers")
    return {name: _answered(path, name, value) for name, value in answers.items()}


def _answered(path: Path, name: str, value: Any) -> Answered:
    verdict, answer = (value.get("verdict"), value.get("answer", "")) if isinstance(value, dict) else (None, "")
    if verdict not in VERDICTS or not isinstance(answer, str):
        message = f"{str(value)[:80]} has no verdict that is one of {', '.join(VERDICTS)}"
        raise GAPS_AUDIT_ANSWERS.error(f"{path} {name}", message)
    return Answered(verdict, answer.strip())


def take_answers(path: Path, kept: Path) -> int:
    """Add the answers in a file to those that are kept; of one sample the new one holds. Gives how many there are now.

    Raises GAPS_AUDIT_ANSWERS, and then keeps what there was.
    """
    before = read_object(kept).get("answers", {}) if kept.is_file() else {}
    new = {name: each._asdict() for name, each in read_answers(path).items()}
    write_json(kept, {"schema": SCHEMA, "answers": {**before, **new}})
    return len({**before, **new})
