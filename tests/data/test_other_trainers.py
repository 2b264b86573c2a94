"""Records as LLaMA-Factory, ms-swift and TRL have them are read as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip

from vidqa.data import load_records

TURNS = [{"role": "user", "content": "<video>What is it?"}, {"role": "assistant", "content": "A cup."}]
PARTS = [{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "What is it?"}]
ROWS: dict[str, dict[str, Any]] = {
    "LLaMA-Factory, sharegpt": {
        "conversations": [{"from": "human", "value": "<video>What is it?"}, {"from": "gpt", "value": "A cup."}],
        "videos": ["a.mp4"],
    },
    "LLaMA-Factory and ms-swift, messages": {"messages": TURNS, "videos": ["a.mp4"]},
    "TRL, parts": {
        "messages": [
            {"role": "user", "content": PARTS},
            {"role": "assistant", "content": [{"type": "text", "text": "A cup."}]},
        ]
    },
    "a flat question": {"video": "a.mp4", "question": "What is it?", "answer": "A cup."},
}


@pytest.mark.parametrize("name", ROWS)
def test_records_of_other_trainers_are_read(tmp_path: Path, name: str) -> None:
    write_clip(tmp_path / "a.mp4", frames=4, fps=4)
    (tmp_path / "annotations.jsonl").write_text(json.dumps(ROWS[name]))
    (record,) = load_records(tmp_path / "annotations.jsonl", tmp_path)
    assert (record.question, record.answer) == ("What is it?", "A cup.")
    assert [Path(ref.path).name for ref in record.media] == ["a.mp4"]
