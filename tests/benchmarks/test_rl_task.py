"""The training sets of the controls of benchmarks/rl_task.py."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rl_task import SHARE, answer_of, write_cases

from demo import rl_set
from vidqa.data import load_records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rl_task")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rl_set, "SFT_CLIPS", 4)
        patch.setattr(rl_set, "EVAL_CLIPS", 4)
        rl_set.write_rl_set(folder, 64)
    write_cases(folder, random.Random(0))
    return folder


def records(data: Path, case: str) -> list[dict[str, Any]]:
    return json.loads((data / case / "annotations.json").read_text())


def test_shuffled_references_are_those_of_other_records(data: Path) -> None:
    before, after = records(data, "train"), records(data, "shuffled")
    assert Counter(map(answer_of, before)) == Counter(map(answer_of, after))
    pairs = list(zip(before, after, strict=True))
    assert all(first["video"] == second["video"] for first, second in pairs)
    assert 0.05 < sum(answer_of(first) == answer_of(second) for first, second in pairs) / len(pairs) < 0.5


def test_the_skewed_set_has_the_share_of_one_letter_that_it_is_named_for(data: Path) -> None:
    letters = Counter(answer_of(record)[-10] for record in records(data, "skewed"))
    assert letters["A"] / letters.total() == SHARE and set(letters) == set(rl_set.LETTERS)


def test_every_set_is_read_with_the_clips_that_it_is_trained_on(data: Path) -> None:
    for case, media in {"shuffled": "train", "skewed": "train", "black": "black", "black-eval": "black-eval"}.items():
        read = load_records(data / case / "annotations.json", data / media)
        assert len(read) == len(records(data, case))
