"""Writing an export: every rank writes its own rows of every tensor, rank 0 what stands beside them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn
from torch.distributed.tensor import DTensor

from vidqa.core.files import remove, write_json
from vidqa.core.problem import ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.engine.checkpoint.safetensors_writer import TensorRows, create_files, plan_shards, write_rows
from vidqa.engine.distributed import World, local_part
from vidqa.engine.export._base import Trained
from vidqa.engine.loading.freeze import base_name
from vidqa.engine.loading.load import local_rows
from vidqa.engine.loading.safetensors_reader import StoredTensor, model_tensors, read_part
from vidqa.engine.problems import ENGINE_SAVE_FAILED, with_free_space
from vidqa.families import family_of
from vidqa.families.model_files import read_json

COPIED = (".json", ".jinja", ".txt", ".model", ".md", "")  # settings, vocabularies and texts: no weights and no code
CODE_KEY = "auto_map"  # in config.json and the like: which class of which Python file to load


def write_together(
    trained: Trained,
    name: str,
    stem: str,
    shapes: Mapping[str, Sequence[int]],
    rows: Iterable[TensorRows],
    world: World,
    settings: Callable[[Path], None],
) -> Path:
    """Write an export into a folder that is not published yet: tensors of these shapes, of which `rows` are this rank's
    part, and what `settings` writes. Raises ENGINE_SAVE_FAILED on every rank when one cannot write."""
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
    """The parameters of a model by the names that the base's files have for them; `stored` are its `model_tensors`."""
    names = {inside: base_name(inside) for inside in parameters}
    return {stored[name].name if name in stored else name: inside for inside, name in names.items()}


def shapes_of(trained: Trained, names: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a file; `names` gives for the name in the file that in the model."""
    return {tensor: tuple(trained.parameters[inside].shape) for tensor, inside in names.items()}


def rows_as_trained(trained: Trained, names: Mapping[str, str], world: World) -> Iterator[TensorRows]:
    """This rank's rows of sharded tensors; of several ranks with the same rows the first writes them."""
    stored = model_tensors(trained.base)
    for tensor, inside in names.items():
        parameter = trained.parameters[inside]
        if not _writes(parameter, world):
            continue
        local, rows = local_rows(parameter)
        first = rows[0].start
        if inside in trained.own:
            yield TensorRows(tensor, first, local_part(trained.own[inside]))
        else:
            yield TensorRows(tensor, first, read_part(stored[base_name(inside)], first, len(local)))


def _writes(parameter: nn.Parameter, world: World) -> bool:
    if not isinstance(parameter, DTensor):
        return world.is_main
    coordinate = parameter.device_mesh.get_coordinate() or ()
    return all(at == 0 or p.is_shard() for at, p in zip(coordinate, parameter.placements, strict=True))


def copy_settings(trained: Trained, folder: Path, without: Sequence[str] = ()) -> None:
    """Copy config, tokenizer, chat template and processors of the base model. No code: plain transformers needs none,
    and whoever loads an export with trust_remote_code would run it. The video processor says whether frames are capped,
    since versions of transformers differ where it says nothing."""
    for path in trained.base.iterdir():
        if path.is_file() and _is_copied(path) and path.name not in without:
            _copy_without_code(path, folder / path.name)
    family_of(trained.base).write_frame_cap(folder, trained.capped)


def _is_copied(path: Path) -> bool:
    return path.suffix in COPIED and not path.name.endswith(".index.json") and not path.name.startswith(".")


def _copy_without_code(path: Path, copy: Path) -> None:
    """Copy a file of a model folder; of settings, all but the key that names classes in files beside them."""
    settings = read_json(path.parent, path.name) if path.name.endswith("config.json") else {}
    if settings.pop(CODE_KEY, None) is not None:
        write_json(copy, settings)
    else:
        shutil.copyfile(path, copy)  # not its mode: the umask decides
