"""Reading of weights: several threads read rows of safetensors files directly into their target tensors.

A model of 17.5 GB is read at the speed of the disk or the page cache: every thread reads the next piece of a file
in one system call into a buffer of its own (pinned for a GPU), which is copied to the device while it reads another.
Another precision is converted on the device, not on the CPU. PyTorch's HuggingFaceStorageReader reads in one
thread and converts on the CPU; into host memory it is as fast (half a gigabyte: 2.7 s, here 2.1 to 2.4 s).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from queue import SimpleQueue

import torch

from vidqa.families import family_of
from vidqa.families.problems import MODEL_BROKEN
from vidqa.families.weights import read_header, weight_files

THREADS = 8  # of a rank, if it has as many cores
PIECE_BYTES = 32 * 1024**2
TYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file: `name` is its name in the file, `begin` its byte offset."""

    name: str
    path: Path
    begin: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RowRead:
    """A read of rows of a stored tensor, starting at row `first`, into the contiguous tensor `into` on any device."""

    stored: StoredTensor
    first: int
    into: torch.Tensor


@dataclass(frozen=True)
class _Piece:
    """A part of a file that is read at once."""

    path: Path
    offset: int
    dtype: torch.dtype
    into: torch.Tensor  # flat


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a model folder by name. Raises MODEL_BROKEN."""
    files = weight_files(folder)
    if not files:
        raise MODEL_BROKEN.error(folder, "the folder has no weights in safetensors files")
    return {name: stored for path in files for name, stored in _tensors(path).items()}


def model_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a model folder by parameter name. Raises as `stored_tensors` and `family_of` do."""
    parameter_name = family_of(folder).parameter_name
    return {parameter_name(name): stored for name, stored in stored_tensors(folder).items()}


def read_part(stored: StoredTensor, first: int, count: int) -> torch.Tensor:
    """Rows of a tensor, in the precision that it is stored in, on the CPU."""
    values = torch.empty((count, *stored.shape[1:]), dtype=stored.dtype)
    read_rows([RowRead(stored, first, values)])
    return values


def _tensors(path: Path) -> dict[str, StoredTensor]:
    header = read_header(path)
    begin = path.stat().st_size - max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    try:
        return {
            name: StoredTensor(
                name, path, begin + tensor["data_offsets"][0], TYPES[tensor["dtype"]], tuple(tensor["shape"])
            )
            for name, tensor in header.items()
        }
    except KeyError as unknown:
        raise MODEL_BROKEN.error(path, f"it has numbers of the type {unknown}") from unknown


def read_rows(reads: Sequence[RowRead]) -> None:
    """Fill all `into` tensors. Raises MODEL_BROKEN for a file that ends early."""
    pieces: SimpleQueue[_Piece | None] = SimpleQueue()
    for piece in sorted((p for read in reads for p in _pieces(read)), key=lambda p: (p.path, p.offset)):
        pieces.put(piece)
    threads = min(THREADS, len(os.sched_getaffinity(0)), pieces.qsize())
    for _ in range(threads):
        pieces.put(None)
    with ThreadPoolExecutor(max(threads, 1), "weights") as pool:
        for done in [pool.submit(_read_pieces, pieces) for _ in range(threads)]:
            done.result()


def _pieces(read: RowRead) -> list[_Piece]:
    stored, into = read.stored, read.into.detach().view(-1)
    first = read.first * prod(stored.shape[1:])
    step = PIECE_BYTES // stored.dtype.itemsize
    return [
        _Piece(stored.path, stored.begin + (first + at) * stored.dtype.itemsize, stored.dtype, into[at : at + step])
        for at in range(0, len(into), step)
    ]


def _read_pieces(pieces: SimpleQueue[_Piece | None]) -> None:
    """Read pieces in one thread; for a GPU with two buffers: one is filled while the other is copied."""
    with ExitStack() as stack:
        handles: dict[Path, int] = {}
        buffers: list[_Buffer] = []
        while (piece := pieces.get()) is not None:
            if piece.path not in handles:
                handles[piece.path] = os.open(piece.path, os.O_RDONLY)
                stack.callback(os.close, handles[piece.path])
            if len(buffers) < (2 if piece.into.is_cuda else 1):
                buffers.append(_Buffer(piece.into.device))
            buffer = buffers.pop(0)
            buffers.append(buffer)
            buffer.deliver(piece, partial(_read_at, handles[piece.path], piece))
        for buffer in buffers:
            buffer.wait()


class _Buffer:
    """A host buffer for pieces."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memory = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=self.stream is not None)

    def deliver(self, piece: _Piece, read: Callable[[torch.Tensor], None]) -> None:
        if piece.into.device.type == "cpu" and piece.into.dtype == piece.dtype:
            read(piece.into)
            return
        self.wait()
        values = self.memory.view(piece.dtype)[: len(piece.into)]
        read(values)
        if self.stream is None:
            piece.into.copy_(values)
            return
        with torch.cuda.stream(self.stream):
            # `copy_` from another precision would convert on the CPU first.
            piece.into.copy_(values.to(piece.into.device, non_blocking=True))

    def wait(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()


def _read_at(handle: int, piece: _Piece, into: torch.Tensor) -> None:
    left, offset = memoryview(into.view(torch.uint8).numpy().data), piece.offset
    while left:
        count = os.preadv(handle, [left], offset)
        if not count:
            raise MODEL_BROKEN.error(piece.path, f"the file ends at byte {offset}")
        left, offset = left[count:], offset + count
