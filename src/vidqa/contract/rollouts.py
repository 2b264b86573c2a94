"""rollouts-<rank>.jsonl.zst of a run folder: every completion of a run, a line each, a compressed frame for every step.

{"step", "slot", "id", "question", "answer", "media", "completion", "token_ids", "logprobs", "finish_reason", "text",
 "reward", "parts", "advantage"}

"media" is [{"path", "member", "frames"}]: the file, its name inside an archive or null, some frames that were shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 1 << 20


def rollout_file(folder: Path, rank: int) -> Path:
    return folder / f"rollouts-{rank}.jsonl.zst"


def rollout_files(folder: Path) -> list[Path]:
    """Those of all ranks."""
    return sorted(folder.glob("rollouts-*.jsonl.zst"))


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of one rank's file; those of a frame that a kill has cut off are left out."""
    import pyarrow as pa

    with pa.OSFile(str(path), "rb") as file, pa.CompressedInputStream(file, "zstd") as stream:
        rest = b""
        while True:
            try:
                block = stream.read(BLOCK)
            except OSError:  # a frame that was cut off
                break
            if not block:
                break
            *lines, rest = (rest + block).split(b"\n")
            yield from map(json.loads, lines)
