"""Tables of embeddings with vectors that are drawn instead of computed, and pools of real clips to go with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from clips import write_clip

from vidqa.core.run_folder import EMBEDDINGS
from vidqa.gaps.analysis.storage import SCHEMA
from vidqa.gaps.curation.embeddings import VECTORS, schema, table_of


def facts(media: int, text: int, **other: Any) -> dict[str, Any]:
    same = {"model": "m", "vision": {"nframes": 8}, "dimensions": 0, "text_model": ""}
    return {"schema_version": 1, **same, "widths": {"media": media, "text": text}, **other}


def write_table(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    widths: tuple[int, int] = (32, 16),
    group: int = 64,
    name: str = EMBEDDINGS,
    **other: Any,
) -> Path:
    """A table of an embed run; rows name `media_embedding` and `text_embedding` (arrays, or None)."""
    columns = schema(facts(widths[0], widths[1], **other))
    folder.mkdir(parents=True, exist_ok=True)
    texts = {each: [row.get(each) for row in rows] for each in columns.names if each not in VECTORS}
    table = table_of(texts, *([row.get(each) for row in rows] for each in VECTORS), columns)
    pq.write_table(table, folder / name, row_group_size=group)
    return folder


def unit(vector: np.ndarray) -> np.ndarray:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def write_gaps(path: Path, gaps: Sequence[dict[str, Any]]) -> Path:
    full = [{name: gap.get(name) for name in SCHEMA.names} for gap in gaps]
    pq.write_table(pa.Table.from_pylist(full, schema=SCHEMA), path)
    return path


def write_pool(root: Path, records: Sequence[dict[str, Any]]) -> Path:
    """annotations.json of records with question and answer, and one small clip that all of them show under a name of
    their own."""
    clip = write_clip(root / "clip.mp4", frames=8)
    rows = []
    for record in records:
        name = f"{record['id']}.mp4"
        (root / name).hardlink_to(clip)
        turns = [{"from": "human", "value": f"<video>\n{record['question']}"}]
        turns += [{"from": "gpt", "value": record["answer"]}]
        rows.append({"id": record["id"], "video": name, "conversations": turns, "camera": "north"})
    (root / "annotations.json").write_text(json.dumps(rows))
    return root / "annotations.json"
