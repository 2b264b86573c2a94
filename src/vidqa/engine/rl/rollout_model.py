"""The rollout model, which draws completions, and its weights: copies of the trainer's weights, updated after every
optimizer update, and verified.

The trainer's units are gathered one after the other; adapters are merged in float32. Tensors are written in place, so
that captured graphs use the new weights, and every tensor is then compared bit by bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoConfig

from vidqa.engine.distributed import World
from vidqa.engine.families import family_of
from vidqa.engine.generators._base import Settings
from vidqa.engine.generators.native import NativeSession
from vidqa.engine.loading.freeze import base_name, is_adapter
from vidqa.engine.loading.load import empty_model
from vidqa.engine.model import DTYPES
from vidqa.engine.problems import ENGINE_ROLLOUT_DIFFERS
from vidqa.engine.torch_private import keystr, tree_leaves_with_path
from vidqa.planning.budget.params import ADAPTER
from vidqa.planning.rollouts import RolloutShape
from vidqa.planning.samples import Planner
from vidqa.spec.models import GrpoSpec

BITS = {2: torch.int16, 4: torch.int32}  # integers of as many bytes: NaN equals itself


class RolloutModel:
    """The rollout model on every rank, beside the sharded `trainer`: a stock model of the same base, in the precision
    in which the trainer computes. A tied head that the trainer has untied is untied here, too."""

    def __init__(
        self, spec: GrpoSpec, folder: Path, planner: Planner, trainer: Any, shape: RolloutShape, world: World
    ) -> None:
        dtype = DTYPES[spec.train.param_dtype]
        model = empty_model(folder, dtype, world.device)
        self.units = sources_by_unit(trainer)
        sources = {name: source for part in self.units.values() for name, source in part.items()}
        untie(model, sources)
        self.targets = dict(model.named_parameters(remove_duplicate=False))
        if uncovered := sorted(set(self.targets) ^ set(sources)):
            message = f"{len(uncovered)} tensors exist in only one of trainer and rollout model"
            raise ENGINE_ROLLOUT_DIFFERS.error(uncovered[0], message)
        self.banned = banned_ids(folder, planner)
        settings = Settings(folder, None, dtype, world.device, planner, shape.longest, batch_size=shape.rows)
        self.session = NativeSession(model, settings, banned=self.banned, pages=shape.pages)
        require_views(self.session.forward, model)

    @torch.no_grad()
    def sync(self) -> None:
        """Copy the trainer's weights and compare all of them; every rank takes part. Raises ENGINE_ROLLOUT_DIFFERS."""
        counts: dict[str, torch.Tensor] = {}
        for unit, sources in self.units.items():
            unit.unshard()
            tensors = {name: source.tensor() for name, source in sources.items()}
            copy_weights(tensors, self.targets)
            counts |= {name: count_different_bits(tensor, self.targets[name]) for name, tensor in tensors.items()}
            unit.reshard()
        total = torch.stack(list(counts.values())).tolist()
        if apart := [name for name, count in zip(counts, total, strict=True) if count]:
            message = f"{len(apart)} of {len(counts)} tensors differ from the trainer's"
            raise ENGINE_ROLLOUT_DIFFERS.error(apart[0], message)


def banned_ids(folder: Path, planner: Planner) -> tuple[int, ...]:
    """Token ids that no completion of the model in `folder` has."""
    config = AutoConfig.from_pretrained(folder)
    return family_of(config).never_drawn(config, len(planner.chat.tokens.core.get_vocab()))


def require_views(forward: Any, model: nn.Module) -> None:
    """Require every tensor of the generator's forward to be a view of a parameter: a copy would keep old values. Raises
    ENGINE_ROLLOUT_DIFFERS."""
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for number, layer in enumerate(forward.layers):
        for path, value in tree_leaves_with_path(layer):
            if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() not in storages:
                message = f"{keystr(path)} is a copy of the model's weights"
                raise ENGINE_ROLLOUT_DIFFERS.error(f"layer {number}", message)


class Source(NamedTuple):
    """A parameter of the trainer, `leaf` of `module`, and the layer whose LoRA adapter is added to it, if any."""

    module: nn.Module
    leaf: str
    adapted: Any

    def tensor(self) -> torch.Tensor:
        """The weight with which the trainer computes; its unit must be gathered."""
        weight = getattr(self.module, self.leaf).detach()
        if self.adapted is None:
            return weight
        layer = self.adapted
        if ADAPTER in layer.lora_embedding_A:
            delta = (layer.lora_embedding_B[ADAPTER].float() @ layer.lora_embedding_A[ADAPTER].float()).T
        else:
            up, down = (part[ADAPTER].weight.float().flatten(1) for part in (layer.lora_B, layer.lora_A))
            delta = up @ down
        return (weight.float() + layer.scaling[ADAPTER] * delta.view(weight.shape)).to(weight.dtype)


def sources_by_unit(trainer: Any) -> dict[FSDPModule, dict[str, Source]]:
    """All parameters of each FSDP unit, without those of nested units, by the base model's names."""
    units = {name: module for name, module in trainer.named_modules() if isinstance(module, FSDPModule)}
    sources: dict[FSDPModule, dict[str, Source]] = defaultdict(dict)
    for name, _ in trainer.named_parameters(remove_duplicate=False):
        if is_adapter(name) or ".original_module." in name:  # of a module trained in full, its copy counts
            continue
        owner = max((unit for unit in units if not unit or name.startswith(f"{unit}.")), key=len)
        path, _, leaf = name.rpartition(".")
        adapted = trainer.get_submodule(path.removesuffix(".base_layer")) if path.endswith(".base_layer") else None
        source = Source(trainer.get_submodule(path), leaf, adapted if leaf == "weight" else None)
        sources[units[owner]][base_name(name)] = source
    return dict(sources)


def untie(rollout: Any, sources: Mapping[str, Source]) -> None:
    """Untie the rollout model's head if the trainer's is not the embeddings."""
    family, head = family_of(rollout), rollout.get_output_embeddings()
    ours, theirs = sources[family.head], sources[family.embeddings]
    is_tied = ours.adapted is theirs.adapted is None and getattr(*ours[:2]) is getattr(*theirs[:2])
    if head.weight is rollout.get_input_embeddings().weight and not is_tied:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)


def copy_weights(tensors: Mapping[str, torch.Tensor], targets: Mapping[str, Any]) -> None:
    """Copy each tensor into the parameter of its name."""
    for name, tensor in tensors.items():
        targets[name].data.copy_(tensor)


def count_different_bits(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The number of elements of two tensors with different bits, int64 scalar on their device; all elements if shape or
    dtype differ."""
    if source.shape != target.shape or source.dtype != target.dtype:
        return torch.tensor(source.numel(), device=target.device)
    bits = BITS[source.element_size()]
    return (source.contiguous().view(bits) != target.detach().contiguous().view(bits)).sum()
