"""Processes and their mesh: one process per GPU, or per core group on a CPU."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import ParallelismConfig
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from vidqa.core import environment
from vidqa.core.problem import Problem, ProblemError
from vidqa.engine import rendezvous
from vidqa.engine.context_parallel import WHOLE, Context
from vidqa.engine.problems import unwritable

Value = TypeVar("Value")
ANSWERING_TIMEOUT_S = 7200.0  # ranks answer at their own pace and meet at the end


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a sharded tensor, the whole of any other."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


@dataclass(frozen=True)
class World:
    """The place of this process among the others. `objects` and `saving` are groups over gloo, beside the GPU's
    traffic: one for Python objects, one for background saves alone, whose thread must never meet another collective.
    Neighbours may share the rows of their packs (`context`)."""

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    objects: Any
    saving: Any
    context: Context = WHOLE

    @property
    def data_ranks(self) -> int:
        """The number of packs that are computed at a time: the ranks of one context compute one together."""
        return self.size // self.context.size

    @property
    def data_rank(self) -> int:
        """The number of the pack that this rank has a part of."""
        return self.rank // self.context.size

    @property
    def is_sharded(self) -> bool:
        """Whether a rank holds but a part of the weights."""
        return self.mesh.size(self.mesh.ndim - 1) > 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.size == 1:  # a plan of a million samples takes seconds to become bytes that nobody reads
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.objects)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.objects)
        return values

    def barrier(self) -> None:
        dist.barrier(group=self.objects)

    def on_main(self, work: Callable[[], Value]) -> Value:
        """Run `work` on rank 0 and return its value on every rank. A ProblemError, and an OSError as the problem of an
        unwritable run folder, is raised on every rank."""
        value: Any = None
        problems: list[Problem] | None = None
        if self.is_main:
            try:
                value = work()
            except ProblemError as stopped:
                problems = stopped.problems
            except OSError as failed:
                problems = [unwritable(failed)]
        if problems := self.share(problems):
            raise ProblemError(problems)
        return self.share(value)


def start(dp_replicate: int, dp_shard: int, timeout_s: float, context: int = 1) -> World:
    """Join the processes that vidqa.engine.torchrun started and build the mesh (dp_replicate, dp_shard x context):
    weights are sharded over the ranks of a context, too."""
    timeout = datetime.timedelta(seconds=timeout_s)
    if not environment.is_of_torchrun():  # else PartialState joins, as torchrun tells it in the environment
        backend, store = "nccl" if torch.cuda.is_available() else "gloo", rendezvous.store_on_one_node(timeout)
        rank, size = environment.rank(), environment.world_size()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timeout)
    return World(
        rank=state.process_index,
        size=state.num_processes,
        device=state.device,
        mesh=_mesh(dp_replicate, dp_shard * context, state.device.type),
        objects=dist.new_group(backend="gloo", timeout=timeout),
        saving=dist.new_group(backend="gloo", timeout=timeout),
        context=_context(context, state.process_index, timeout),
    )


def alone() -> World:
    """The world of a process that torchrun did not start: it has no mesh, and nothing in it is collective."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    nobody: Any = None
    return World(rank=0, size=1, device=device, mesh=nobody, objects=nobody, saving=nobody)


def _context(size: int, rank: int, timeout: datetime.timedelta) -> Context:
    """Neighbours: ranks of one node, where it has as many GPUs."""
    if size == 1:
        return WHOLE
    group, _ = dist.new_subgroups(group_size=size, timeout=timeout)
    return Context(rank % size, size, group)


def _mesh(dp_replicate: int, dp_shard: int, device_type: str) -> DeviceMesh:
    if dp_shard > 1:
        mesh = ParallelismConfig(dp_replicate_size=dp_replicate, dp_shard_size=dp_shard).build_device_mesh(device_type)
        return mesh["dp_replicate", "dp_shard"] if dp_replicate > 1 else mesh["dp_shard"]
    # accelerate builds no mesh for one process, and none that FSDP can use for replication alone.
    if dp_replicate > 1:
        return init_device_mesh(device_type, (dp_replicate, 1), mesh_dim_names=("dp_replicate", "dp_shard"))
    return init_device_mesh(device_type, (1,), mesh_dim_names=("dp_shard",))


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
