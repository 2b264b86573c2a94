"""Resumable training state: sharded, written in the background, published by rename, loadable on any number of
ranks.

    <run>/checkpoints/step_N/policy/      PyTorch DCP: trained weights, and the optimizer's moments
    <run>/checkpoints/step_N/trainer.json step, fingerprints, effective batch, sizes and checksums of the files

Frozen parameters are not saved: they are read from the base model again. Learning rates, weight decay and the like are
not saved either: they are in the spec.

Files are read without executing their content. PyTorch stores the table of a checkpoint's tensors (`.metadata`) as a
pickle, and a pickle can call any function. Here it may only use the classes of such a table. Tensors are
read by PyTorch with `weights_only`; other entries, which it would unpickle freely, are refused, and so are files
outside the checkpoint.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import metadata as parts
from torch.distributed.checkpoint.api import CheckpointException
from torch.serialization import set_crc32_options

from vidqa.core.files import remove, write_json
from vidqa.core.run_folder import METADATA, POLICY, TRAINER, RunFolder, changed_file, read_checkpoint
from vidqa.engine.distributed import World
from vidqa.engine.loading.freeze import is_adapter
from vidqa.engine.loading.fsdp import reshard
from vidqa.engine.problems import ENGINE_SAVE_FAILED, with_free_space
from vidqa.engine.torch_private import FileSystem, MemFormatEncoding, StorageInfo, get_layout
from vidqa.planning.problems import RESUME_MISMATCH, RESUME_NO_CHECKPOINT

MOMENTS = ("exp_avg", "exp_avg_sq")  # state of Adam and AdamW for each parameter, besides the number of steps
SCALES = ("exp_avg_scale", "exp_avg_sq_scale")  # and for each block of its rows, if moments are 8-bit codes
AT_ONCE = 1 << 20  # bytes from which a checksum is computed in a separate thread
BROKEN = (
    *(OSError, EOFError, pickle.UnpicklingError, LookupError, AttributeError, TypeError, ValueError, ArithmeticError),
    *(MemoryError, RecursionError),
)


def sharded_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """This rank's parameters by name, as the optimizer has them. A forward without a backward leaves some gathered, in
    compute precision; they are freed."""
    reshard(model)
    return dict(model.named_parameters())


def run_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that a run has beyond the base model, by their names in the model: trained ones, and adapters even if
    they are frozen."""
    parameters = sharded_parameters(model).items()
    return {name: parameter.detach() for name, parameter in parameters if parameter.requires_grad or is_adapter(name)}


def training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Trained weights and the optimizer's moments by name."""
    state = run_weights(model)
    for name, parameter in sharded_parameters(model).items():
        if parameter.requires_grad:
            moments = optimizer.state[parameter]
            state |= {f"{name}.{moment}": moments[moment] for moment in (*MOMENTS, *SCALES) if moment in moments}
    return state


def save_state(
    run: RunFolder, world: World, name: str, tensors: Mapping[str, torch.Tensor], trainer: dict[str, Any]
) -> None:
    """Write and publish `checkpoints/<name>`; every rank takes part and writes its own rows. Raises ENGINE_SAVE_FAILED
    on all ranks if one cannot write."""
    folder = world.on_main(lambda: run.begin(run.checkpoints, name))
    failure, writer = None, Writer(folder)
    # PyTorch's own checksums, per tensor, take ten times as long as writing, and no reader uses them.
    set_crc32_options(False)
    try:
        # The ranks' shares are the same in every save of a run: cached after the first, to save communication.
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(dict(tensors), storage_writer=writer, planner=planner, process_group=world.objects)
    except (OSError, RuntimeError, CheckpointException) as full:
        failure = with_free_space(_cause(full), folder)
    everyone = world.gather((failure, writer.written))
    if failures := [text for text, _ in everyone if text]:
        if world.is_main:
            remove(folder, owner=run.checkpoints)
        message = f"the checkpoint could not be written: {failures[0]}"
        raise ENGINE_SAVE_FAILED.error(folder.parent, message)

    def publish() -> None:
        files = {name: file for _, written in everyone for name, file in written.items()}
        write_json(folder / TRAINER, {**trainer, "files": dict(sorted(files.items()))})
        run.publish(folder)

    world.on_main(publish)


def _cause(failure: BaseException) -> str:
    """The cause of a failure, without the tracebacks of every rank in DCP's message."""
    causes = [cause for cause, _ in failure.failures.values()] if isinstance(failure, CheckpointException) else []
    return str(next(iter(causes), failure)) or type(failure).__name__


def inspect(folder: Path, world: World) -> dict[str, Any]:
    """Verify a checkpoint, all ranks reading its files together, and return its trainer.json. Raises
    RESUME_NO_CHECKPOINT if there is none, or its files are damaged."""

    def facts() -> dict[str, Any]:
        if not (folder / TRAINER).is_file():
            raise RESUME_NO_CHECKPOINT.error(folder, f"no complete checkpoint here: it has no {TRAINER}")
        try:
            trainer = read_checkpoint(folder)
            read_table(folder)
        except ValueError as damaged:
            raise RESUME_NO_CHECKPOINT.error(folder, str(damaged)) from damaged
        return trainer

    trainer = world.on_main(facts)
    changed = world.gather(changed_file(folder, trainer, world.rank, world.size))
    if damage := next((text for text in changed if text), None):
        raise RESUME_NO_CHECKPOINT.error(folder, damage)
    return trainer


def load_state(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Load model and optimizer from a checkpoint after `step` steps, written by any number of ranks."""
    try:
        dcp.load(training_state(model, optimizer), storage_reader=Reader(folder), process_group=world.saving)
    except CheckpointException as unlike:  # of any rank, while an error of communication is raised as it is
        message = f"the checkpoint does not fit this model: {_cause(unlike)}"
        raise RESUME_MISMATCH.error(folder, message) from unlike
    for state in optimizer.state.values():
        state["step"].fill_(step)


def _member(kind: type, name: str) -> Any:
    """The function for `getattr`, by which Python 3.11 unpickles enumeration members: allows only one enumeration."""
    if kind is not MemFormatEncoding:
        raise pickle.UnpicklingError(f"it asks {kind} for {name}")
    return MemFormatEncoding[name]


def _path(*names: str) -> str:
    """The function for path classes: the folder in which the checkpoint was written, which is not used."""
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
    """An unpickler that allows only the classes of a table of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is in no table of tensors")
        return ALLOWED[module, name]


def read_table(folder: Path) -> parts.Metadata:
    """The table of a checkpoint's tensors. Raises ValueError if it is damaged or has other entries, or if the files of
    `folder` are shorter than it says."""
    try:
        with (folder / POLICY / METADATA).open("rb") as file:
            table = _Table(file).load()
        _check(table, folder / POLICY)
    except BROKEN as broken:
        raise ValueError(f"{POLICY}/{METADATA} cannot be used: {broken or type(broken).__name__}") from broken
    table.planner_data, table.storage_meta = None, parts.StorageMeta()  # not needed for reading
    return table


def _check(table: Any, folder: Path) -> None:
    """Raise ValueError for anything but tensors in files of `folder` that are long enough."""
    _require(type(table) is parts.Metadata, "it has no table of tensors")
    for name, tensor in table.state_dict_metadata.items():
        _require(isinstance(name, str) and type(tensor) is parts.TensorStorageMetadata, f"{name} is not a tensor")
        _require(type(tensor.properties.dtype) is torch.dtype, f"{name} has no type")
        sizes = [tensor.size, *(size for chunk in tensor.chunks for size in (chunk.offsets, chunk.sizes))]
        _require(all(type(size) is torch.Size for size in sizes), f"{name} has no shape")
    lengths: dict[str, int] = {}
    for index, place in table.storage_data.items():
        _require(type(index) is parts.MetadataIndex and type(place) is StorageInfo, "a place is none")
        file, begin, length = place.relative_path, place.offset, place.length
        _require(isinstance(file, str) and Path(file).name == file, f"{file!r} is not a file of the checkpoint")
        _require(begin >= 0 and length >= 0 and not place.transform_descriptors, f"{index.fqn} has no place")
        lengths[file] = max(lengths.get(file, 0), begin + length)
    for file, length in lengths.items():
        there = (folder / file).stat().st_size
        _require(there >= length, f"{file} has {there} bytes of {length}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


class Reader(dcp.FileSystemReader):
    """PyTorch's reader of a checkpoint folder, with `read_table`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / POLICY)
        self.folder = folder

    def read_metadata(self, *_: Any, **__: Any) -> parts.Metadata:
        return read_table(self.folder)


class Writer(dcp.FileSystemWriter):
    """PyTorch's writer into a checkpoint folder. `written` are the files of this rank, by their names in the folder,
    with their sizes and checksums."""

    def __init__(self, folder: Path) -> None:
        # Without "copy ahead" the writer does not use the GPU's streams, which the training uses.
        super().__init__(folder / POLICY, per_thread_copy_ahead=0)
        self.fs = self.files = _SummedFiles()

    @property
    def written(self) -> dict[str, dict[str, Any]]:
        return {f"{POLICY}/{name}": file for name, file in self.files.written.items()}


class _SummedFiles(FileSystem):
    """Files whose checksums are computed while they are written: reading them again would take as long as writing."""

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
    """A file open for writing with a CRC-32, computed in a thread while the disk writes."""

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
