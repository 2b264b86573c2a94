"""The native generator beside transformers, in small: what the program tells of, and that they agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_the_generators_agree_on_prompts_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import agreement
    import torch

    monkeypatch.setattr(sys, "argv", ["agreement.py", "--tiny", "--out", str(tmp_path)])
    threads = torch.get_num_threads()
    try:
        agreement.main()
    finally:
        torch.set_num_threads(threads)
    (call,) = json.loads((tmp_path / "results/agreement.json").read_text())
    assert len(call["rows"]) == 12
    for row in call["rows"]:
        assert (row["same"], row["same_reason"]) == (1, 1) and row["logprob_apart"] < 1e-4
        assert row["prompts"] == sum(line["prompts"] for line in call["told"])
        assert (row["tokens"] == 0) == row["run"].startswith("scored")
    kinds = {line["media"] for line in call["told"]}
    assert {"", "image", "image image", "video", "video video"} <= kinds
