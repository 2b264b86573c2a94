"""Programs of the project, as the benchmarks call them."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import build, python, script

from vidqa.spec import load


def test_a_spec_has_the_values_that_were_asked_for(tmp_path: Path) -> None:
    values = {"num_gpus": 3, "dataset.annotation_path": tmp_path / "annotations.json"}
    build("evaluate", tmp_path / "spec.toml", values, "--model", "hf_model://nvidia/Cosmos-Reason2-2B")
    spec = load(tmp_path / "spec.toml", "evaluate")
    assert spec.num_gpus == 3 and spec.dataset.annotation_path == str(tmp_path / "annotations.json")


def test_a_program_that_fails_ends_the_benchmark_with_what_it_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"(?s)scripts/build_spec.py evaluate .* with 3: .*SPEC_UNKNOWN_KEY"):
        script("build_spec", "evaluate", "--set", "num_gpu=3")
    assert "$ python scripts/build_spec.py evaluate --set num_gpu=3 --json" in capfd.readouterr().err


def test_an_exit_code_that_is_a_result_gives_the_output() -> None:
    assert python("-c", "print('differ'); raise SystemExit(5)", codes=(0, 5)) == "differ\n"
