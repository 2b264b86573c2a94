"""Answers on disk as they are given: one append-only file per rank, merged by sample id."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidqa.engine.generate.answers import Answer
from vidqa.scoring.recipes import FREE


class SavedAnswers:
    """Answers given under one recipe; those of another recipe are never mixed in."""

    def __init__(self, folder: Path, recipe: dict[str, Any], rank: int) -> None:
        # What may differ between comparable scores may differ here too, except the model that answers.
        fixed = {key: value for key, value in recipe.items() if key not in FREE or key == "model"}
        digest = hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()[:12]
        self.folder = folder / digest
        self.path = self.folder / f"rank-{rank}.jsonl"

    def append(self, answers: Sequence[tuple[str, Answer]]) -> None:
        """Add answers by sample id; they are on disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for sample_id, answer in answers:
                file.write(json.dumps({"sample_id": sample_id, **vars(answer)}, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[str, Answer]:
        """All ranks' answers by sample id. A line that a kill cut off is left out; the first answer of an id counts."""
        answers: dict[str, Answer] = {}
        for path in sorted(self.folder.glob("rank-*.jsonl")):
            for line in path.read_text(encoding="utf-8").split("\n"):
                try:
                    item = json.loads(line)
                except ValueError:
                    continue
                answers.setdefault(item.pop("sample_id"), Answer(**item))
            _end_line(path)
        return answers

    def forget(self) -> dict[str, Answer]:
        """Start without earlier answers."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return {}


def _end_line(path: Path) -> None:
    """Give a cut-off last line its end, so that the next answer starts on a line of its own."""
    with path.open("rb+") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            file.write(b"\n")
