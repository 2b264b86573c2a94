"""Kept rows of measured runs: the estimate of memory predicts each, and each chosen policy is the best of its grid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.planning.budget.answering import AnsweringSetup, Reading, answering_memory

WITHIN = 0.05


def test_every_measured_run_is_predicted() -> None:
    from predictions import compare, policy_rows, read_rows, result_files, table

    compared = [row for path in result_files() for row in compare(read_rows(path))] + compare(policy_rows())
    compared = [row for row in compared if not row.superseded]
    wrong = {row.run: round(row.error, 3) for row in compared if abs(row.error) > WITHIN}
    page = (Path(__file__).parents[2] / "references" / "memory.md").read_text(encoding="utf-8")
    assert wrong == {} and f"Of {len(compared)} measured trainings" in page
    assert len(table(compared)) == 2 + len(compared) and all(
        f"| {row.run} " in "".join(table([row])) for row in compared
    )


def test_measured_choices_are_the_fastest_of_their_grid_and_use_their_gpu() -> None:
    """Within 3 % of the best fixed choice, and 85 % of the memory where more of it would save recomputation."""
    from predictions import policy_calls

    choices = [choice for call in policy_calls() for choice in call.get("told", ())]
    assert len([choice for choice in choices if "best_fixed" in choice]) >= 3
    slower = {row["case"]: row["against_best_fixed"] for row in choices if row.get("against_best_fixed", 1.0) < 0.97}
    bound = [choice for choice in choices if not choice["chosen"].startswith("recomputed: nothing")]
    unused = {choice["case"]: choice["share_of_memory"] for choice in bound if choice["share_of_memory"] < 0.85}
    assert (slower, unused) == ({}, {})


def test_of_repeated_runs_the_newest_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only rows that hold all inputs of a prediction."""
    import predictions

    (row,) = [row for row in predictions.read_rows(predictions.result_files()[0]) if row["run"] == "8b-1gpu-lora-8k"]
    rows = [{**row, "run": "lora chosen"}, {"run": "lora ordinary", "memory_gib": 50.0}]
    calls = [{"rows": [{**row, "run": "lora chosen", "memory_gib": 1.0}]}, {"rows": rows}]
    (tmp_path / "policies.json").write_text(json.dumps(calls))
    monkeypatch.setattr(predictions, "RESULTS", tmp_path)
    assert predictions.policy_rows() == rows[:1]


def test_a_measured_row_is_compared_by_itself() -> None:
    from predictions import answering_description, compare_answering, read_rows, result_files, sizes_of

    sizes = sizes_of(read_rows(result_files()[0])[0])
    setup, reading = AnsweringSetup("transformers", 2, 8, 9000, 16), Reading(8, 64000, 8000, 248000, masked=True)
    peak_gib = answering_memory(sizes, 8_767_123_696, setup, reading, 140.0).peak_gib
    row = {"run": "a row", **answering_description(sizes, 8_767_123_696, setup, reading, 140.0)}
    (compared,) = compare_answering(json.loads(json.dumps([row | {"memory_gib": peak_gib / 2}])))
    assert compared.error == pytest.approx(1.0) and compared.moment == "decoder"


def test_every_measured_evaluation_is_estimated_within_a_tenth() -> None:
    from predictions import RESULTS, compare_answering, read_rows

    compared = [row for path in RESULTS.glob("answering-*.json") for row in compare_answering(read_rows(path))]
    assert len(compared) >= 6
    assert all(-0.03 <= row.error <= 0.1 for row in compared), compared
