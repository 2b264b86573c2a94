"""Annotations as a curation writes them: LLaVA rows with media by their whole paths, and where each row comes from; and
tables of gaps and of mined rows.

`provenance` says it in the fields that records have (origin, round, gap); `curation` holds the details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidqa.core.problem import ProblemError
from vidqa.data import open_source
from vidqa.data.parse import RowReader
from vidqa.data.problems import ProblemCollector
from vidqa.data.record import Provenance, Record
from vidqa.datatools.outputs import llava_row, other_fields
from vidqa.gaps.problems import INPUT

Row = dict[str, Any]


def read_rows(
    annotations: str | Path, media: str | Path = "", ids: Collection[str] | None = None, *, need_answers: bool = True
) -> list[tuple[Row, Record]]:
    """Rows and records of a file, all or those with these ids; media are named by their whole paths. Raises
    ProblemError with everything that is wrong with them."""
    source = open_source(annotations, media)
    findings = ProblemCollector(str(source.path), need_answers)
    reader = RowReader(source.path.name, source.media, findings, by_line=source.by_line)
    pairs = []
    for number, (index, row) in enumerate(source.rows(findings)):
        name = row.get("id") if isinstance(row, dict) else None
        name = str(name) if name is not None else str(number if source.by_line else index)
        if ids is not None and name not in ids:
            continue
        reader.rows = number
        if (record := reader.read(index, row)) is not None:
            pairs.append((row, replace(record, media=tuple(replace(ref, written=ref.file) for ref in record.media))))
    source.media.unpack()
    if errors := [problem for problem in findings.problems if problem.severity == "error"]:
        raise ProblemError(errors)
    return pairs


def written(row: Mapping[str, Any], record: Record, provenance: Provenance, details: Mapping[str, Any]) -> Row:
    """A record as an annotation with its provenance; fields of the user's own stay."""
    others, _ = other_fields(dict(row), record)
    others.pop("question", None)
    others.pop("curation", None)
    annotation = llava_row(replace(record, provenance=provenance))
    return {**annotation, **others, **({"curation": dict(details)} if details else {})}


def read_columns(table: Path, *names: str) -> list[dict[str, Any]]:
    """The rows of a parquet file, with these columns as text or None. Raises CURATION_INPUT."""
    import pyarrow
    import pyarrow.parquet

    columns = pyarrow.schema([(name, pyarrow.string()) for name in names])
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(table, columns=columns.names).cast(columns).to_pylist()
    except (OSError, pyarrow.ArrowException) as broken:
        raise INPUT.error(table, f"it is no table with {', '.join(names)}: {broken}") from broken
    return rows


def counted(rows: Iterable[Row], field: str = "kind") -> dict[str, int]:
    """How many rows there are of each value of a field."""
    return dict(sorted(Counter(str(row.get(field) or "") for row in rows).items()))
