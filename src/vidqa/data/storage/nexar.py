"""Questions about the dash-cam videos of nexar_collision_prediction: the weather, another column, or the collision."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vidqa.core.files import write_json
from vidqa.core.problem import Problem
from vidqa.data.problems import EMPTY, FIELD, LEFT_OUT

METADATA = "metadata.csv"
COLLISION = "collision"  # no column: the folder says it, and only that of training has both
LABELS = {"positive": "Yes", "negative": "No"}
QUESTIONS = {
    "weather": "What is the weather in this video? Choose from ['Rain', 'Cloudy', 'Snow', 'Clear'].",
    COLLISION: "Does a collision, or nearly one, happen in this video? Answer with Yes or No.",
}


class Annotated(NamedTuple):
    """The annotation file, how many records it holds, and a warning for each kind of row that makes none."""

    path: Path
    records: int
    warnings: list[Problem]


def write_annotations(folder: Path, column: str = "weather", question: str = "", split: str = "train") -> Annotated:
    """Write annotations.json: a question about each video of a split, whose answer is its value in `column` of
    metadata.csv, or Yes or No for `collision`. Every folder with a metadata.csv is read.

    Raises DATA_FIELD where no table has the column, or no question is known for it, DATA_EMPTY where no row makes a
    record.
    """
    prompt = question or QUESTIONS.get(column, "")
    if not prompt:
        raise FIELD.error("--answer-column", f"no question is known for the column {column!r}", "give --question")
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    columns: dict[str, None] = {}
    for table, row in _rows(folder / split):
        columns |= dict.fromkeys([*(str(name) for name in row if name), COLLISION])
        name = row.get("file_name") or ""
        answer = LABELS.get(table.parent.name, "") if column == COLLISION else row.get(column) or ""
        if not name or not (table.parent / name).is_file():
            left_out["name no file that is there"] += 1
        elif not answer.strip():
            left_out[f"have no {column}"] += 1
        else:
            video = str((table.parent / name).relative_to(folder))
            turns = [{"from": "human", "value": f"<video>\n{prompt}"}, {"from": "gpt", "value": answer.strip()}]
            rows.append({"id": video, "video": video, "kind": column, "conversations": turns})
    if columns and column not in columns:
        message = f"there is no column {column!r}; there are: {', '.join(columns)}"
        raise FIELD.error("--answer-column", message, "Name one of them.")
    total = len(rows) + left_out.total()
    reasons = [f"{count} of {total} rows {why}" for why, count in left_out.items()]
    if not rows:
        raise EMPTY.error(folder / split, "; ".join(reasons) or f"no {METADATA} is there")
    write_json(folder / "annotations.json", rows)
    warnings = [LEFT_OUT.at(folder / split, message, severity="warning") for message in reasons]
    return Annotated(folder / "annotations.json", len(rows), warnings)


def _rows(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for table in sorted(folder.rglob(METADATA)):
        with table.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file):
                yield table, row
