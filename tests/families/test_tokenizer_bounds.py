"""A tokenizer.json whose parts would keep every text busy is refused before it is built."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from vidqa.core.problem import ProblemError
from vidqa.families.chat import load_chat

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Prepend", "prepend": "x" * 10_000_000}),
        ("normalizer", {"type": "Sequence", "normalizers": [REPLACE] * 40}),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Sequence", "normalizers": [REPLACE]}]},
        ),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}),
        (
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "a|" * 20_000}, "behavior": "Isolated", "invert": False},
        ),
    ],
)
def test_a_part_without_bounds_is_refused_at_once(model_folder: Path, tmp_path: Path, part: str, value: Any) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**described, part: value}))
    began = time.process_time()
    with pytest.raises(ProblemError, match=f"MODEL_UNSUPPORTED.*\n.*{part}"):
        load_chat(folder)
    assert time.process_time() - began < 60  # seconds; a quadratic tokenizer takes many minutes


def test_the_normalizer_of_published_tokenizers_is_taken(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**described, "normalizer": {"type": "NFC"}}))
    assert load_chat(folder).text_ids("e\u0301") == load_chat(folder).text_ids("\u00e9")
