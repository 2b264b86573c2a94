"""Answers, from tokens to disk: one append-only file per rank, merged by sample id."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidqa.core.cli import note
from vidqa.core.files import remove
from vidqa.engine.generators._base import Result
from vidqa.engine.problems import ENGINE_ANSWERS_UNREADABLE
from vidqa.evaluation.results import FREE
from vidqa.families.chat import Chat

KINDS = {"sample_id": str, "text": str, "finish_reason": str, "tokens": int}


@dataclass(frozen=True)
class Answer:
    """`finish_reason` is "stop" if the model ended its turn, "length" if it was cut off, and "scored" if it was not
    generated: then `logprobs` has the log-probability of each allowed answer. `tokens` counts those of a generated
    text, without the one that ends the turn."""

    text: str
    finish_reason: str
    tokens: int
    logprobs: dict[str, float] | None = None


def answer_of(result: Result, chat: Chat) -> Answer:
    """The text of a generated result."""
    token_ids = result.token_ids[:-1] if result.finish_reason == "stop" else result.token_ids
    return Answer(chat.decode(token_ids).strip(), result.finish_reason, len(token_ids))


class SavedAnswers:
    """Answers given under one recipe; those of another recipe are never mixed in."""

    def __init__(self, folder: Path, recipe: dict[str, Any], rank: int) -> None:
        # Keys that may differ between comparable scores may differ here, except the model.
        fixed = {key: value for key, value in recipe.items() if key not in FREE or key == "model"}
        digest = hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()[:12]
        self.folder = folder / digest
        self.path = self.folder / f"rank-{rank}.jsonl"

    def append(self, answers: Sequence[tuple[str, Answer]]) -> None:
        """Add answers by sample id; they are on disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for sample_id, answer in answers:
                facts = {name: value for name, value in vars(answer).items() if value is not None}
                file.write(json.dumps({"sample_id": sample_id, **facts}, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[str, Answer]:
        """All ranks' answers by sample id; the first answer of an id counts. A torn last line is cut off the file, and
        lines without JSON are skipped: those samples are answered again. Both are reported. Call it while no rank
        writes. Raises ENGINE_ANSWERS_UNREADABLE for JSON that is not an answer."""
        answers: dict[str, Answer] = {}
        for path in sorted(self.folder.glob("rank-*.jsonl")):
            lines = path.read_bytes().split(b"\n")
            if torn := lines.pop():
                os.truncate(path, path.stat().st_size - len(torn))
                note(f"{path}: the last line was cut off after {len(torn)} bytes; that sample is asked again")
            broken = 0
            for number, line in enumerate(lines, 1):
                try:
                    item = json.loads(line.decode("utf-8"))
                except (ValueError, RecursionError):
                    broken += 1
                    continue
                sample_id, answer = _answer(item, f"{path}:{number}")
                answers.setdefault(sample_id, answer)
            if broken:
                note(f"{path}: {broken} lines cannot be read; those samples are asked again")
        return answers

    def forget(self) -> dict[str, Answer]:
        """Start without earlier answers."""
        remove(self.folder, owner=self.folder.parent)
        return {}


def _answer(item: Any, where: str) -> tuple[str, Answer]:
    """The sample id and the answer of one line."""
    if not isinstance(item, dict):
        raise ENGINE_ANSWERS_UNREADABLE.error(where, f"the line holds {type(item).__name__}, not an object")
    kinds = {**KINDS, "logprobs": dict} if item.get("finish_reason") == "scored" else KINDS
    wrong = [f"without {name}" for name in kinds if name not in item]
    wrong += [f"with {name}, which no answer has" for name in item if name not in kinds]
    wrong += [
        f"whose {name} is {item[name]!r}" for name in kinds if name in item and type(item[name]) is not kinds[name]
    ]
    if wrong:
        raise ENGINE_ANSWERS_UNREADABLE.error(where, f"an answer {', and '.join(wrong)}"[:400])
    return item.pop("sample_id"), Answer(**item)
