"""The files of a checkpoint: written with their sizes and checksums, and read without running what is in them.

PyTorch keeps the table of a checkpoint's tensors (`.metadata`) as a pickle, and a pickle calls what it names. Here it
may name what such a table is made of and nothing else. Tensors are read by PyTorch with `weights_only`; other entries,
which it would unpickle without that, are refused, and so are files outside the checkpoint.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as parts

from vidqa.core.run_folder import METADATA, POLICY
from vidqa.engine.torch_private import FileSystem, MemFormatEncoding, StorageInfo, get_layout

AT_ONCE = 1 << 20  # bytes from which a checksum is worth a thread of its own
BROKEN = (
    *(OSError, EOFError, pickle.UnpicklingError, LookupError, AttributeError, TypeError, ValueError, ArithmeticError),
    *(MemoryError, RecursionError),
)


def _member(kind: type, name: str) -> Any:
    """What Python 3.11 calls to find a member of an enumeration (its `getattr`), for the one that may occur."""
    if kind is not MemFormatEncoding:
        raise pickle.UnpicklingError(f"it asks {kind} for {name}")
    return MemFormatEncoding[name]


def _path(*names: str) -> str:
    """In place of a path: where the checkpoint was written, which no reader needs."""
    return "/".join(names)


ALLOWED: dict[tuple[str, str], Any] = {
    **{
        (parts.__name__, kind.__name__): kind
        for kind in (
            *(parts.Metadata, parts.MetadataIndex, parts.StorageMeta, parts.TensorStorageMetadata),
            *(parts.TensorProperties, parts.ChunkStorageMetadata, MemFormatEncoding),
        )
    },
    (StorageInfo.__module__, StorageInfo.__name__): StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): get_layout,
    **{("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    **{("pathlib", name): _path for name in ("PosixPath", "PurePosixPath", "Path")},
    ("builtins", "getattr"): _member,
}


class _Table(pickle.Unpickler):
    """An unpickler that knows what a table of tensors is made of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no table of tensors does")
        return ALLOWED[module, name]


def read_table(folder: Path) -> parts.Metadata:
    """The table of a checkpoint's tensors. Raises ValueError for one that is damaged or holds anything else, and where
    the files of `folder` are shorter than it says."""
    try:
        with (folder / POLICY / METADATA).open("rb") as file:
            table = _Table(file).load()
        _check(table, folder / POLICY)
    except BROKEN as broken:
        raise ValueError(f"{POLICY}/{METADATA} cannot be used: {broken or type(broken).__name__}") from broken
    table.planner_data, table.storage_meta = None, parts.StorageMeta()  # nothing here needs what they were
    return table


def _check(table: Any, folder: Path) -> None:
    """Raises for anything but tensors in files of `folder` that are long enough."""
    _require(type(table) is parts.Metadata, "it holds no table of tensors")
    for name, tensor in table.state_dict_metadata.items():
        _require(isinstance(name, str) and type(tensor) is parts.TensorStorageMetadata, f"{name} is no tensor")
        _require(type(tensor.properties.dtype) is torch.dtype, f"{name} has no type")
        sizes = [tensor.size, *(size for chunk in tensor.chunks for size in (chunk.offsets, chunk.sizes))]
        _require(all(type(size) is torch.Size for size in sizes), f"{name} has no shape")
    lengths: dict[str, int] = {}
    for index, place in table.storage_data.items():
        _require(type(index) is parts.MetadataIndex and type(place) is StorageInfo, "a place is none")
        file, begin, length = place.relative_path, place.offset, place.length
        _require(isinstance(file, str) and Path(file).name == file, f"{file!r} is no file of the checkpoint")
        _require(begin >= 0 and length >= 0 and not place.transform_descriptors, f"{index.fqn} has no place")
        lengths[file] = max(lengths.get(file, 0), begin + length)
    for file, length in lengths.items():
        there = (folder / file).stat().st_size
        _require(there >= length, f"{file} has {there} bytes of {length}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


class Reader(dcp.FileSystemReader):
    """PyTorch's reader of a checkpoint folder, over `read_table`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / POLICY)
        self.folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> parts.Metadata:
        return read_table(self.folder)


class Writer(dcp.FileSystemWriter):
    """PyTorch's writer into a checkpoint folder. `written` are the files of this rank, by their names in the folder,
    with their sizes and checksums."""

    def __init__(self, folder: Path) -> None:
        # Without "copy ahead" the writer leaves the GPU's streams, where the training is, alone.
        super().__init__(folder / POLICY, per_thread_copy_ahead=0)
        self.fs = self.files = _SummedFiles()

    @property
    def written(self) -> dict[str, dict[str, Any]]:
        return {f"{POLICY}/{name}": file for name, file in self.files.written.items()}


class _SummedFiles(FileSystem):
    """Files whose checksums are taken while they are written: reading them again would take as long as writing."""

    def __init__(self) -> None:
        self.written: dict[str, dict[str, Any]] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:
        with super().create_stream(path, mode) as stream, ThreadPoolExecutor(1, "checksum") as beside:
            summed = _Summed(stream, beside)
            yield summed  # type: ignore[misc]
            self.written[Path(path).name] = {"bytes": summed.size, "crc32": f"{summed.crc:08x}"}

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Summed:
    """A file open for writing. CRC-32 finds damage, and is taken in the time that the disk needs anyway."""

    def __init__(self, stream: Any, beside: ThreadPoolExecutor) -> None:
        self.stream, self.beside = stream, beside
        self.size = self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        crc = self.beside.submit(zlib.crc32, view, self.crc) if len(view) >= AT_ONCE else None
        written = self.stream.write(view)
        self.crc = crc.result() if crc else zlib.crc32(view, self.crc)
        self.size += len(view)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
