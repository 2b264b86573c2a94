"""Safetensors files that all ranks write together: every rank puts its own rows where they belong in the file.

Nothing is gathered: not on a GPU, not in the memory of one rank, and the files are written by all ranks at once.
PyTorch's HuggingFaceStorageWriter writes every rank's shards first and then copies them together: of half a gigabyte it
wrote twice the bytes and took 35 to 41 s, where this took 9 to 10 s (one process, one busy disk).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from vidqa.core.files import write_json

SHARD_BYTES = 4 * 1024**3
TYPE_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}


@dataclass(frozen=True)
class Shard:
    """One file: its header, and the byte at which each of its tensors begins."""

    file: str
    header: bytes
    begins: dict[str, int]
    size: int


@dataclass(frozen=True)
class TensorRows:
    """`values`: the rows of the tensor `name` from row `first` on, any device and dtype; written in the dtype of the
    file."""

    name: str
    first: int
    values: torch.Tensor


def plan_shards(shapes: Mapping[str, Sequence[int]], dtype: torch.dtype, stem: str) -> list[Shard]:
    """The files for whole tensors of these shapes, in this order; one file is called `stem`.safetensors."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        size = prod(shape) * dtype.itemsize
        if groups[-1] and filled + size > SHARD_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    count = len(groups)
    files = [f"{stem}-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    if count == 1:
        files = [f"{stem}.safetensors"]
    return [_shard(file, {n: shapes[n] for n in names}, dtype) for file, names in zip(files, groups, strict=True)]


def _shard(file: str, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype) -> Shard:
    """The format is 8 bytes of header length, the header (JSON), then the tensors without gaps."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ends, begins = 0, {}
    for name, shape in shapes.items():
        begins[name], ends = ends, ends + prod(shape) * dtype.itemsize
        table[name] = {"dtype": TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begins[name], ends]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return Shard(file, header, {name: len(header) + begin for name, begin in begins.items()}, len(header) + ends)


def create_files(folder: Path, shards: Sequence[Shard], stem: str) -> None:
    """The files with their headers and full sizes, and an index where there are several. One rank does this."""
    for shard in shards:
        with (folder / shard.file).open("wb") as file:
            file.write(shard.header)
            file.truncate(shard.size)
    if len(shards) > 1:
        total = sum(shard.size - len(shard.header) for shard in shards)
        weight_map = {name: shard.file for shard in shards for name in shard.begins}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder / f"{stem}.safetensors.index.json", index)


def write_rows(folder: Path, shards: Sequence[Shard], rows: Iterable[TensorRows], dtype: torch.dtype) -> None:
    """Write rows into files that `create_files` made; ranks may write at the same time. On disk when it returns."""
    place = {name: (number, begin) for number, shard in enumerate(shards) for name, begin in shard.begins.items()}
    handles: dict[int, int] = {}
    try:
        for part in rows:
            number, begin = place[part.name]
            if number not in handles:
                handles[number] = os.open(folder / shards[number].file, os.O_WRONLY)
            values = part.values.detach().to("cpu", dtype).contiguous()
            row_bytes = prod(values.shape[1:]) * dtype.itemsize
            _write_at(handles[number], begin + part.first * row_bytes, values)
        for handle in handles.values():
            os.fsync(handle)
    finally:
        for handle in handles.values():
            os.close(handle)


def _write_at(handle: int, offset: int, values: torch.Tensor) -> None:
    left = memoryview(values.reshape(-1).view(torch.uint8).numpy().data)
    while left:
        written = os.pwrite(handle, left, offset)
        left, offset = left[written:], offset + written
