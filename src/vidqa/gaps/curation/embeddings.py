"""Tables of embeddings: columns, metadata of the model that made them, and reading in parts.

for part in Table(RUN).parts(): part.media is float32 [N, D], with rows of zeros for missing vectors
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vidqa.core.run_folder import EMBEDDINGS, QUERY_EMBEDDINGS
from vidqa.gaps.problems import INPUT

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
FACTS = b"vidqa.embeddings"  # in the metadata: model, frames, dimensions
SAME = ("model", "vision", "dimensions", "text_model", "widths")  # metadata in which two comparable tables agree
VECTORS = ("media_embedding", "text_embedding")
PART = 16_384  # rows of texts at a time
READ = 2_048  # rows of vectors at a time, few enough to stay in the processor's cache
Vectors = Sequence[np.ndarray | None]


def schema(facts: dict[str, Any]) -> pa.Schema:
    """The schema of embeddings.parquet; `problem` is the code of the problem for a record without embedding."""
    import pyarrow as pa

    texts = ("sample_id", "media", "question", "answer", "kind")
    columns = [*((name, pa.string()) for name in texts), *((name, pa.list_(pa.float32())) for name in VECTORS)]
    return pa.schema([*columns, ("problem", pa.string())], {FACTS: json.dumps(facts).encode()})


def table_of(texts: Mapping[str, Sequence[str | None]], media: Vectors, text: Vectors, columns: pa.Schema) -> pa.Table:
    """A table of these texts and vectors; None for missing ones."""
    import pyarrow as pa

    return pa.Table.from_pydict({**texts, **dict(zip(VECTORS, (media, text), strict=True))}, schema=columns)


@dataclass(frozen=True)
class Part:
    """Some rows: `columns` are lists of texts by name; missing vectors are rows of zeros."""

    columns: dict[str, list[str | None]]
    media: np.ndarray
    text: np.ndarray

    def __len__(self) -> int:
        return len(self.media)


class Table:
    """An embeddings.parquet, or the run folder that contains one. Raises CURATION_INPUT."""

    def __init__(self, place: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        self.path = place / EMBEDDINGS if place.is_dir() else place
        try:
            # Without a buffer of whole row groups, which takes as long as reading does.
            self._file = pyarrow.parquet.ParquetFile(self.path, pre_buffer=False)
            self.facts: dict[str, Any] = json.loads((self._file.schema_arrow.metadata or {})[FACTS])
            self.widths: tuple[int, int] = self.facts["widths"]["media"], self.facts["widths"]["text"]
        except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as broken:
            raise INPUT.error(self.path, f"it cannot be read: {type(broken).__name__}: {broken}") from broken

    @property
    def rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def parts(self, texts: Sequence[str] = (), groups: Sequence[int] | None = None) -> Iterator[Part]:
        """Rows in order, at most READ at a time, with these columns of text; of these row groups or all."""
        for batch in self._file.iter_batches(READ, row_groups=groups, columns=[*texts, *VECTORS]):
            columns = {name: batch.column(name).to_pylist() for name in texts}
            media, text = (_matrix(batch.column(name), width) for name, width in zip(VECTORS, self.widths, strict=True))
            yield Part(columns, media, text)

    def whole(self, texts: Sequence[str]) -> Part:
        """All rows at once."""
        parts = list(self.parts(texts))
        columns = {name: [value for part in parts for value in part.columns[name]] for name in texts}
        no_media, no_text = (np.zeros((0, width), np.float32) for width in self.widths)
        media = np.concatenate([no_media, *(part.media for part in parts)])
        return Part(columns, media, np.concatenate([no_text, *(part.text for part in parts)]))

    def spread(self, most: int) -> Iterator[Part]:
        """About `most` rows, in whole row groups that are evenly spread over the table."""
        groups = self._file.metadata.num_row_groups
        count = max(1, min(groups, most * groups // max(1, self.rows)))
        return self.parts(groups=sorted({at * groups // count for at in range(count)}) if groups else [])

    def texts(self, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """The index of the first row and a pyarrow batch of these columns, for all rows; vectors are not read."""
        start = 0
        for batch in self._file.iter_batches(PART, columns=list(names)):
            yield start, batch
            start += len(batch)

    def texts_at(self, rows: np.ndarray, names: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Texts of the given rows, by row."""
        texts: dict[int, dict[str, Any]] = {}
        needed = np.unique(rows)
        for start, batch in self.texts(names):
            here = needed[(needed >= start) & (needed < start + len(batch))]
            texts |= dict(zip(here.tolist(), batch.take(here - start).to_pylist(), strict=True))
        return texts

    def require_like(self, other: Table) -> None:
        """Raise CURATION_INPUT if the two tables are not comparable."""
        unlike = [name for name in SAME if self.facts.get(name) != other.facts.get(name)]
        if unlike:
            shown = "; ".join(f"{name}: {self.facts.get(name)} and {other.facts.get(name)}" for name in unlike)
            remedy = "embed both with one spec, changing only the dataset"
            raise INPUT.error(self.path, f"{other.path} was made otherwise: {shown}"[:600], remedy)


@dataclass(frozen=True)
class UnitVectors:
    """Unit vectors float32 [D] by sample id, of media and of questions."""

    media: dict[str, np.ndarray]
    texts: dict[str, np.ndarray]


def unit_vectors(path: Path | None, sample_ids: Collection[str]) -> UnitVectors:
    """The vectors of these samples in a table of embeddings; none without a table. Raises CURATION_INPUT."""
    unit = UnitVectors({}, {})
    for part in Table(path).parts(("sample_id",)) if path else ():
        names = part.columns["sample_id"]
        for vectors, vectors_ND in ((unit.media, part.media), (unit.texts, part.text)):
            lengths_N = np.linalg.norm(vectors_ND, axis=1)
            for name, vector, length in zip(names, vectors_ND, lengths_N, strict=True):
                if name in sample_ids and 0 < length < np.inf:
                    vectors[str(name)] = vector / length
    return unit


def queries_in(place: Path) -> Table:
    """The query embeddings for a search in a pool: those of a run that embedded both, else the only table. Raises
    CURATION_INPUT."""
    both = place / QUERY_EMBEDDINGS
    return Table(both if both.is_file() else place)


def _matrix(column: Any, width: int) -> np.ndarray:
    """A matrix float32 [N, width] of a column of lists; a null becomes a row of zeros."""
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if column.null_count == 0:
        return flat.reshape(len(column), width)
    matrix = np.zeros((len(column), width), np.float32)
    matrix[np.asarray(column.is_valid())] = flat.reshape(-1, width)
    return matrix
