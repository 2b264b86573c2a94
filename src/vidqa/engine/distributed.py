"""Processes and their mesh: one process per GPU, or per core group on a CPU; and ranks that share packs (a context).

Ranks of a context have the same pack, and each has a part of its rows. A decoder layer except attention works row
by row. Around attention the ranks exchange rows for heads: each sends most of its rows of query, key and value and
receives some heads of all rows, attends over the whole pack with them, and the ranks exchange back (the all-to-all of
DeepSpeed-Ulysses). Attention itself, its kernels, segments and shared videos are unchanged. A rank computes only frames
that have tokens in its rows.

Shape letters: T rows of a pack, S = T / ranks rows of one rank, H heads, K key heads, E values per head.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from vidqa.core import environment
from vidqa.core.cli import note
from vidqa.core.problem import Problem, ProblemError
from vidqa.engine import rendezvous
from vidqa.engine.problems import unwritable


@dataclass(frozen=True)
class Context:
    """The ranks that hold the rows of the same packs; this rank is number `rank` of `size`, which may be 1."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def rows(self, total: int) -> slice:
        """This rank's rows of a pack with `total` rows, a multiple of `size`."""
        share = total // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def whole(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `before`, which returns query [S, H, E], key and value [S, K, E] of this rank's rows, into a function
        that returns those of all rows for this rank's heads: [T, H / ranks, E] and [T, K / ranks, E]. K is a multiple
        of the ranks, so that a rank has the key heads of its query heads."""
        return before if self.size == 1 else lambda *inputs: self._heads_of(before(*inputs))

    def _heads_of(self, parts: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        by_rank = [part.unflatten(1, (self.size, -1)).transpose(0, 1) for part in parts]
        joined = _Exchange.apply(torch.cat(by_rank, dim=2), self.group)
        return joined.flatten(0, 1).split([part.shape[2] for part in by_rank], dim=1)

    def own(self, attended: torch.Tensor) -> torch.Tensor:
        """Exchange back: from [T, H / ranks * E], all rows of this rank's heads, to [S, H * E], this rank's rows of all
        heads."""
        if self.size == 1:
            return attended
        return _Exchange.apply(attended.unflatten(0, (self.size, -1)), self.group).transpose(0, 1).flatten(1)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the ranks, in place and without a gradient."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor


WHOLE = Context()


class _Exchange(torch.autograd.Function):
    """An all-to-all: part i of the first dimension goes to rank i. The backward is the same exchange."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        tensor, ctx.group = inputs
        return _exchanged(tensor, ctx.group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _exchanged(gradients[0], ctx.group), None


def _exchanged(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    received = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    dist.all_to_all_single(received, tensor.contiguous(), group=group)
    return received


Value = TypeVar("Value")


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a sharded tensor, or all of another tensor; without gradient."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


@dataclass(frozen=True)
class World:
    """The process group as seen by this process. `objects` and `saving` are gloo groups, separate from GPU
    communication: one for Python objects, one for background saves alone, whose thread must never meet another
    collective. Neighbouring ranks may share the rows of their packs (`context`)."""

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
        """The index of this rank's pack among those computed at a time."""
        return self.rank // self.context.size

    @property
    def is_sharded(self) -> bool:
        """Whether a rank holds only a part of the weights."""
        return self.mesh.size(self.mesh.ndim - 1) > 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Broadcast rank 0's value to every rank."""
        if self.size == 1:  # avoids pickling: seconds for a plan of a million samples
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

    def note(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.is_main:
            note(text)

    def barrier(self) -> None:
        dist.barrier(group=self.objects)

    def on_main(self, work: Callable[[], Value]) -> Value:
        """Run `work` on rank 0 and return its value on every rank. A ProblemError, or an OSError as the problem of an
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
    """Join the processes started by vidqa.engine.torchrun and build the mesh (dp_replicate, dp_shard x context), with
    one dimension if nothing is replicated: weights are sharded over the ranks of a context, too."""
    timeout = datetime.timedelta(seconds=timeout_s)
    if not environment.is_of_torchrun():  # else PartialState joins by torchrun's environment
        backend, store = "nccl" if torch.cuda.is_available() else "gloo", rendezvous.store_on_one_node(timeout)
        rank, size = environment.rank(), environment.world_size()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    sizes = (dp_shard * context,) if dp_replicate == 1 else (dp_replicate, dp_shard * context)
    state = PartialState(cpu=not torch.cuda.is_available(), timeout=timeout)
    return World(
        rank=state.process_index,
        size=state.num_processes,
        device=state.device,
        mesh=init_device_mesh(state.device.type, sizes, mesh_dim_names=("dp_replicate", "dp_shard")[-len(sizes) :]),
        objects=dist.new_group(backend="gloo", timeout=timeout),
        saving=dist.new_group(backend="gloo", timeout=timeout),
        context=_context(context, state.process_index, timeout),
    )


def single_process_world() -> World:
    """The world of a process without torchrun: it has no mesh, and its methods need no communication."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    nobody: Any = None
    return World(rank=0, size=1, device=device, mesh=nobody, objects=nobody, saving=nobody)


def _context(size: int, rank: int, timeout: datetime.timedelta) -> Context:
    """The context of this rank with its neighbours: ranks of one node if the node has as many GPUs."""
    if size == 1:
        return WHOLE
    group, _ = dist.new_subgroups(group_size=size, timeout=timeout)
    return Context(rank % size, size, group)


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
