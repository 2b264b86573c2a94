"""Tables that are written: records as parquet, and as a Hugging Face data set folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from vidqa.data.record import Record
from vidqa.datatools.written_rows import table_row
from vidqa.video.vision_keys import VIDEO_KEYS

CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---

# Questions and answers about videos

{n} records. Each row has an `id`, a `kind` of question, the file's `video_fps` where it was annotated, and
`messages`: turns with `role` and `content`, a list of parts of `type` text, video or image. A part of type video names
a file, relative to the folder that holds the media; the media themselves are not in the table.
"""


def parquet_bytes(records: Sequence[Record]) -> bytes:
    """A parquet file with the columns id, kind, video_fps and messages; provenance where a record has one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {int: pa.int64(), float: pa.float64()}
    keys = {name for record in records for ref in record.media for name, _ in ref.keys}
    texts = [(name, pa.string()) for name in ("type", "text", "video", "image")]
    part = pa.struct([*texts, *((name, types[VIDEO_KEYS[name]]) for name in sorted(keys))])
    all_learned = all(turn.learned for record in records for turn in record.turns)
    loss = [] if all_learned else [("loss", pa.bool_())]
    turn = pa.struct([("role", pa.string()), ("content", pa.list_(part)), *loss])
    columns = [("id", pa.string()), ("kind", pa.string()), ("video_fps", pa.float64())]
    if any(record.provenance for record in records):
        columns.append(
            ("provenance", pa.struct([("origin", pa.string()), ("round", pa.int64()), ("gap", pa.string())]))
        )
    columns.append(("messages", pa.list_(turn)))
    table = pa.Table.from_pylist([table_row(record) for record in records], schema=pa.schema(columns))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def hub_folder(folder: Path, records: Sequence[Record]) -> dict[Path, bytes]:
    """The files of a folder that `datasets.load_dataset(folder)` reads: one parquet shard and a card."""
    return {
        folder / "data" / "train-00000-of-00001.parquet": parquet_bytes(records),
        folder / "README.md": CARD.format(n=len(records)).encode(),
    }
