"""Preference pairs as others write them: the conversation ends with the right answer, the wrong one is beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import ProblemError
from vidqa.data import check_records, fingerprint, load_records
from vidqa.datatools.outputs import llava_row, messages_row

ASK = [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}, {"type": "text", "text": "Is it open?"}]}]
YES, NO = {"role": "assistant", "content": "Yes"}, {"role": "assistant", "content": "No"}
LISTED = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "Is it open?"}]}]
HUMAN, GPT = {"from": "human", "value": "<video>\nIs it open?"}, {"from": "gpt", "value": "Yes"}
SHAPES: dict[str, dict[str, Any]] = {
    "TRL, texts": {"video": "a.mp4", "prompt": "<video>\nIs it open?", "chosen": "Yes", "rejected": "No"},
    "a flat question": {"video": "a.mp4", "question": "Is it open?", "chosen": "Yes", "rejected": "No"},
    "TRL, turns": {"prompt": ASK, "chosen": [YES], "rejected": [NO]},
    "TRL, media listed": {"videos": ["a.mp4"], "prompt": LISTED, "chosen": [YES], "rejected": [NO]},
    "TRL, parts": {
        "prompt": ASK,
        "chosen": [{"role": "assistant", "content": [{"type": "text", "text": "Yes"}]}],
        "rejected": [{"role": "assistant", "content": [{"type": "text", "text": "No"}]}],
    },
    "TRL, prompt in both": {"chosen": [*ASK, YES], "rejected": [*ASK, NO]},
    "LLaMA-Factory": {
        "videos": ["a.mp4"],
        "conversations": [HUMAN],
        "chosen": GPT,
        "rejected": {"from": "gpt", "value": "No"},
    },
    "ms-swift": {"messages": [*ASK, YES], "rejected_response": "No"},
    "our own": {"video": "a.mp4", "conversations": [HUMAN, GPT], "rejected": "No"},
    "texts of JSON": {"prompt": json.dumps(ASK), "chosen": json.dumps([YES]), "rejected": json.dumps([NO])},
}


def write(folder: Path, row: dict[str, Any]) -> Path:
    (folder / "a.mp4").write_bytes(b"x")
    (folder / "annotations.json").write_text(json.dumps([row]))
    return folder / "annotations.json"


@pytest.mark.parametrize("row", SHAPES.values(), ids=SHAPES)
def test_every_shape_is_one_record(tmp_path: Path, row: dict[str, Any]) -> None:
    (record,), problems = check_records(write(tmp_path, row))
    assert not problems
    assert (record.question, record.answer, record.rejected) == ("Is it open?", "Yes", "No")
    assert [ref.written for ref in record.media] == ["a.mp4"]
    for rewritten in (llava_row(record), messages_row(record)):
        (again,) = load_records(write(tmp_path, rewritten))
        assert (again.answer, again.rejected) == ("Yes", "No") and fingerprint([again]) == fingerprint([again])


@pytest.mark.parametrize(
    "rejected", [[*ASK, NO], 7, {"role": "user", "content": "No"}, [{"role": "assistant", "content": 3}]]
)
def test_a_rejected_answer_that_is_none_is_named(tmp_path: Path, rejected: Any) -> None:
    with pytest.raises(ProblemError) as wrong:
        load_records(write(tmp_path, {**SHAPES["our own"], "rejected": rejected}))
    (problem,) = wrong.value.problems
    assert problem.code == "DATA_FIELD" and "rejected" in problem.where


def test_an_answer_alone_is_a_record_without_a_pair(tmp_path: Path) -> None:
    row = {"prompt": ASK, "chosen": [YES]}
    (record,) = load_records(write(tmp_path, row))
    assert (record.answer, record.rejected) == ("Yes", None)


def test_a_pair_is_other_data_than_its_answer(tmp_path: Path) -> None:
    whole, _ = check_records(write(tmp_path, SHAPES["our own"]))
    alone, _ = check_records(write(tmp_path, {**SHAPES["our own"], "rejected": None}))
    assert fingerprint(whole) != fingerprint(alone)
