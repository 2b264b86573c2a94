"""Annotations in the form that curation writes: LLaVA rows with full media paths and provenance; and tables of gaps and
of mined rows.

`provenance` has the fields of records (origin, round, gap); `curation` holds the details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vidqa.core.files import ANNOTATION_NAMES
from vidqa.data import open_source
from vidqa.data.load import Pair, load_pairs
from vidqa.data.record import Provenance, Record
from vidqa.datatools.outputs import llava_row, other_fields
from vidqa.datatools.reading import require_media_files
from vidqa.gaps.problems import INPUT

Row = dict[str, Any]
MINED, LABELLED = "mined.json", "labelled.json"  # annotations from the pool, and a person's labels
# Annotation files that belong together, of a set, a mining, an augmentation and a generator.
WRITTEN = (*((name,) for name in ANNOTATION_NAMES), (MINED, LABELLED), ("augmented.json",), ("generated.json",))


def annotation_files(path: Path) -> list[Path]:
    """The annotation files of a mining with a person's answers, of an augmentation or of an assembly in the folder
    `path`; for a file, the file itself."""
    files = ([path / name for name in names if (path / name).is_file()] for names in WRITTEN)
    return next(filter(None, files), [path])


def read_rows(
    annotations: str | Path, media: str | Path = "", only: Collection[str] | None = None, *, need_answers: bool = True
) -> list[Pair]:
    """Read a file with `load_pairs`, with full paths of media. Raises DATATOOLS_FORMAT for media without one, and the
    problems of the set."""
    source = open_source(annotations, media)
    require_media_files(source, annotations)
    pairs, _ = load_pairs(source, only, need_answers=need_answers)
    return [
        Pair(row, replace(record, media=tuple(replace(ref, written=ref.file) for ref in record.media)))
        for row, record in pairs
    ]


def written(row: Mapping[str, Any], record: Record, provenance: Provenance, details: Mapping[str, Any]) -> Row:
    """A record as an annotation with its provenance; the user's own fields are kept."""
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
        raise INPUT.error(table, f"it is not a table with {', '.join(names)}: {broken}") from broken
    return rows


def counted(rows: Iterable[Row]) -> dict[str, int]:
    """The number of rows of each kind."""
    return dict(sorted(Counter(str(row.get("kind") or "") for row in rows).items()))
