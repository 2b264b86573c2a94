"""Writing of exports: safetensors files to which every rank writes its own rows, and settings written by rank 0.

Nothing is gathered, neither on a GPU nor in the memory of one rank, and all ranks write the files at once.
PyTorch's HuggingFaceStorageWriter first writes every rank's shards and then merges them: for half a gigabyte it
wrote twice the bytes and took 35 to 41 s, this module 9 to 10 s (one process, one busy disk).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from vidqa.core.files import remove, write_json, write_text
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import OF_ONE_EXPORT, RunFolder
from vidqa.data.hub_card import CARD, base_model, front_matter, front_matter_text, license_keys
from vidqa.data.storage.hub import snapshot_of
from vidqa.engine.distributed import World, local_part
from vidqa.engine.export._base import Trained
from vidqa.engine.loading.freeze import base_name
from vidqa.engine.loading.load import local_rows
from vidqa.engine.loading.safetensors_reader import StoredTensor, model_tensors, read_part
from vidqa.engine.problems import ENGINE_SAVE_FAILED, with_free_space
from vidqa.families import family_of
from vidqa.families.model_files import read_json

SHARD_BYTES = 4 * 1024**3
TYPE_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}
COPIED = (".json", ".jinja", ".txt", ".model", ".md", "")  # settings, vocabularies and texts: no weights and no code
CODE_KEY = "auto_map"  # in config.json and the like: the class to load from a Python file


@dataclass(frozen=True)
class TensorRows:
    """The `values` of the tensor `name` starting at row `first`, any device and dtype; written in the dtype of the
    file."""

    name: str
    first: int
    values: torch.Tensor


def write_from_all_ranks(
    trained: Trained,
    name: str,
    stem: str,
    shapes: Mapping[str, Sequence[int]],
    rows: Iterable[TensorRows],
    world: World,
    settings: Callable[[Path], None],
) -> Path:
    """Write an export into a folder that is not published yet: tensors of these shapes, of which `rows` are this rank's
    part, and the files written by `settings`. Raises ENGINE_SAVE_FAILED on every rank if one cannot write."""
    shards = plan_shards(shapes, trained.dtype, stem)

    def begin() -> Path:
        folder = RunFolder.begin(trained.exports, name)
        create_files(folder, shards, stem)
        return folder

    folder, failure = world.on_main(begin), None
    try:
        write_rows(folder, shards, rows, trained.dtype)
        if world.is_main:
            settings(folder)
    except (OSError, RuntimeError, ProblemError) as full:
        failure = with_free_space(str(full) or type(full).__name__, folder)
    if failures := [text for text in world.gather(failure) if text]:
        if world.is_main:
            remove(folder, owner=trained.exports)
        message = f"the export {name} could not be written: {failures[0]}"
        raise ENGINE_SAVE_FAILED.error(trained.exports, message)
    return folder


def named_as(stored: Mapping[str, StoredTensor], parameters: Iterable[str]) -> dict[str, str]:
    """The parameters of a model by their names in the base's files; `stored` are the base's `model_tensors`."""
    names = {inside: base_name(inside) for inside in parameters}
    return {stored[name].name if name in stored else name: inside for inside, name in names.items()}


def shapes_of(trained: Trained, names: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a file; `names` maps names in the file to names in the model."""
    return {tensor: tuple(trained.parameters[inside].shape) for tensor, inside in names.items()}


def rows_as_trained(trained: Trained, names: Mapping[str, str], world: World) -> Iterator[TensorRows]:
    """This rank's rows of sharded tensors; if several ranks have the same rows, the first one writes them."""
    stored = model_tensors(trained.base)
    for tensor, inside in names.items():
        parameter = trained.parameters[inside]
        if not _writes(parameter, world):
            continue
        local, first = local_rows(parameter)
        if inside in trained.own:
            yield TensorRows(tensor, first, local_part(trained.own[inside]))
        else:
            yield TensorRows(tensor, first, read_part(stored[base_name(inside)], first, len(local)))


def _writes(parameter: nn.Parameter, world: World) -> bool:
    if not isinstance(parameter, DTensor):
        return world.is_main
    coordinate = parameter.device_mesh.get_coordinate() or ()
    return all(at == 0 or p.is_shard() for at, p in zip(coordinate, parameter.placements, strict=True))


@dataclass(frozen=True)
class Shard:
    """One file: its header, and the byte offset of each of its tensors."""

    file: str
    header: bytes
    begins: dict[str, int]
    size: int


def plan_shards(shapes: Mapping[str, Sequence[int]], dtype: torch.dtype, stem: str) -> list[Shard]:
    """The files for whole tensors of these shapes, in this order; a single file is called `stem`.safetensors."""
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
    """Header and offsets of a file: 8 bytes of header length, the header (JSON), then tensors without gaps."""
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
    """Create the files with their headers and full sizes, and an index if there are several. One rank does this."""
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
    """Write rows into files of `create_files`; ranks may write at the same time. They are on disk when this returns."""
    place = {name: (number, begin) for number, shard in enumerate(shards) for name, begin in shard.begins.items()}
    handles: dict[int, int] = {}
    with ExitStack() as stack:
        for part in rows:
            number, begin = place[part.name]
            if number not in handles:
                handles[number] = os.open(folder / shards[number].file, os.O_WRONLY)
                stack.callback(os.close, handles[number])
            values = part.values.detach().to("cpu", dtype).contiguous()
            row_bytes = prod(values.shape[1:]) * dtype.itemsize
            _write_at(handles[number], begin + part.first * row_bytes, values)
        for handle in handles.values():
            os.fsync(handle)


def _write_at(handle: int, offset: int, values: torch.Tensor) -> None:
    left = memoryview(values.reshape(-1).view(torch.uint8).numpy().data)
    while left:
        written = os.pwrite(handle, left, offset)
        left, offset = left[written:], offset + written


def copy_settings(base: Path, folder: Path, capped: bool | None, without: Sequence[str] = ()) -> None:
    """Copy config, tokenizer, chat template and processors of the base model, which may be an export, and of its card
    the license. No code: plain transformers needs none, and loading an export with trust_remote_code would run it. The
    video processor always states whether frames are capped: the default differs between versions of transformers."""
    for path in base.iterdir():
        if path.is_file() and _is_copied(path) and path.name not in (*OF_ONE_EXPORT, CARD, *without):
            _copy_without_code(path, folder / path.name)
    _write_origin(base, folder)
    family_of(base).write_frame_cap(folder, capped)


def _write_origin(base: Path, folder: Path) -> None:
    """Write the license and the origin of the model in `base` into the README.md of `folder`, whose weights were made
    from it: everything else in a model's own card describes that model. Without either nothing is written."""
    card = front_matter(base / CARD)
    origin = snapshot_of(base) or base_model(card)
    settings = {**license_keys(card), **({"base_model": [origin]} if origin else {})}
    if settings:
        write_text(folder / CARD, f"{front_matter_text(settings)}\n\nThe license and the origin of these weights.\n")


def _is_copied(path: Path) -> bool:
    return path.suffix in COPIED and not path.name.endswith(".index.json") and not path.name.startswith(".")


def _copy_without_code(path: Path, copy: Path) -> None:
    """Copy a file of a model folder; of settings, all but the key that names classes in Python files beside them."""
    settings = read_json(path.parent, path.name) if path.name.endswith("config.json") else {}
    if settings.pop(CODE_KEY, None) is not None:
        write_json(copy, settings)
    else:
        shutil.copyfile(path, copy)  # without its mode: the umask decides
