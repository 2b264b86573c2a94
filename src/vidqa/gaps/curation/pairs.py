"""Pairs for training on preferences: the annotated answer, and the wrong one that a model gave instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vidqa.data.record import Record
from vidqa.gaps.curation.problems import NO_GAPS, NOTHING_NEW
from vidqa.gaps.curation.rows import Row

WRONG = ("wrong", "unparsed")  # errors whose response is an answer that can be rejected


def with_rejected(rows: Sequence[tuple[Row, Record]], gaps: Path, left_out: Counter[str]) -> list[tuple[Row, Record]]:
    """The rows with a gap in the table `gaps`, each with the model's answer as the rejected one; `left_out` counts the
    others. Raises CURATION_NO_GAPS, CURATION_NOTHING_NEW."""
    responses = _responses(gaps, left_out)
    pairs = []
    for row, record in rows:
        response = responses.pop(record.id, None)
        if response is not None and " ".join(response.split()) == " ".join(record.answer.split()):
            left_out["rejected answer equals the right one"] += 1
        elif response is not None:
            pairs.append((row, replace(record, rejected=response)))
    left_out["gaps of other sets"] += len(responses)
    if not pairs:
        counts = ", ".join(f"{count} {why}" for why, count in (+left_out).items())
        remedy = "evaluate the model on the base set (--base), analyze_gaps.py, and give that table"
        message = f"no row of the base set has a wrong answer in it ({counts or 'it is empty'})"
        raise NOTHING_NEW.error(gaps, message, remedy)
    return pairs


def _responses(gaps: Path, left_out: Counter[str]) -> dict[str, str]:
    """The first wrong answer to each sample."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(gaps, columns=["sample_id", "response", "error_type"]).to_pylist()
    except (OSError, pyarrow.ArrowException) as broken:
        raise NO_GAPS.error(gaps, f"it is no gap table: {broken}", "write it with analyze_gaps.py") from broken
    responses: dict[str, str] = {}
    for gap in table:
        if gap["error_type"] not in WRONG or not (gap["response"] or "").strip():
            left_out["gaps without an answer"] += 1
        else:
            responses.setdefault(gap["sample_id"], gap["response"].strip())
    return responses
