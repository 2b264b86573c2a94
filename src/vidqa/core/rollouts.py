"""rollouts-<rank>.jsonl.zst of a run folder: every completion of a run, a line each, a compressed frame for every step.

{"step", "slot", "id", "question", "answer", "media", "completion", "token_ids", "logprobs", "finish_reason", "text",
 "reward", "parts", "advantage", "dropped"}

"dropped" says that dapo drew the group and did not learn from it; older files lack it. "media" is [{"path", "member",
"frames"}]: the file, its name inside an archive or null, some frames that were shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 1 << 20


def rollout_file(folder: Path, rank: int) -> Path:
    return folder / f"rollouts-{rank}.jsonl.zst"


def rank_of(path: Path) -> int:
    """The rank whose file it is; -1 where the name says none."""
    number = path.name.removeprefix("rollouts-").removesuffix(".jsonl.zst")
    return int(number) if number.isdecimal() else -1


def rollout_files(folder: Path) -> list[Path]:
    """Those of all ranks, in the order of the ranks."""
    return sorted((path for path in folder.glob("rollouts-*.jsonl.zst") if rank_of(path) >= 0), key=rank_of)


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of one rank's file, up to where a kill has cut off its last frame. Raises ValueError for a line that is
    no JSON."""
    rest = b""
    for block in _blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        yield from map(json.loads, lines)


def _blocks(path: Path) -> Iterator[bytes]:
    """What the file holds, in pieces. A read that meets the end of a frame that is cut off gives nothing of the frames
    before it: they are read again in smaller pieces."""
    import pyarrow as pa

    position, size = 0, BLOCK
    while size:
        with pa.OSFile(str(path), "rb") as file, pa.CompressedInputStream(file, "zstd") as stream:
            skipped = 0
            while skipped < position:
                skipped += len(stream.read(min(BLOCK, position - skipped)))
            try:
                while block := stream.read(size):
                    position += len(block)
                    yield block
                return
            except OSError:
                size //= 32
