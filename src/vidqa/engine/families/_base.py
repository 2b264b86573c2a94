"""The interface of a model family: classes and modules of transformers, and our forward pass over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method

from vidqa.engine.distributed import WHOLE, Context
from vidqa.engine.model.attention import Segments
from vidqa.families import Family, VisionSizes
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE, Recompute
from vidqa.planning.budget.answering import PAGE
from vidqa.planning.budget.speed import FlopsModel, flops_model
from vidqa.video.types import FramePlan

Grid = tuple[int, int, int]  # (t, h, w) of a medium in patches


class Heads(NamedTuple):
    """Numbers of attention heads, and the width of each."""

    queries: int
    keys: int
    width: int


class VisionIndex(Protocol):
    """Inputs of the vision tower besides patches: a dataclass of tensors and tuples, built by a family on the CPU and
    read by its own forward pass."""


class PackedForward(Protocol):
    """The forward pass of one model over packed batches (`data.collate.Batch`): by default the negative log-likelihood
    of every supervised token, float32 [N] (on a rank of a context, of its rows), or the values of another `head` of
    `model.chunked_head`."""

    def __call__(self, batch: Any, head: Callable[..., torch.Tensor] = ...) -> torch.Tensor: ...


class MakeForward(Protocol):
    def __call__(
        self, model: Any, *, recompute: Recompute = NO_RECOMPUTE, compile: bool = False, context: Context = WHOLE
    ) -> PackedForward: ...


def in_unit(unit: nn.Module, function: Callable[..., Any], *inputs: Any) -> Any:
    """Call `function(unit, *inputs)`; if FSDP shards the unit, with its weights gathered."""
    gathered = getattr(unit, "gathered", None)
    return function(unit, *inputs) if gathered is None else gathered(function, *inputs)


def run_gathered(unit: Any) -> None:
    """Give an FSDP unit the method `gathered`, for `in_unit`: FSDP gathers weights for `forward` and for registered
    methods."""

    def gathered(function: Callable[..., Any], *inputs: Any) -> Any:
        return function(unit, *inputs)

    unit.gathered = gathered
    register_fsdp_forward_method(unit, "gathered")


@dataclass(frozen=True)
class PagedCache:
    """The paged key-value cache: `keys` and `values` are [layers, pages * PAGE, key heads, values per head]. Page 0
    belongs to no prompt: unused rows of a decode step write there."""

    keys: torch.Tensor
    values: torch.Tensor

    @staticmethod
    def empty(pages: int, layers: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> PagedCache:
        shape = (layers, pages * PAGE, heads, width)
        return PagedCache(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))


class CachedForward(Protocol):
    """The forward pass of generation, over a model without adapters; logits are float32, and -inf for the ids `banned`.
    See `qwen_vl_cached`."""

    banned: torch.Tensor

    def prefill(
        self, batch: Any, cache: PagedCache, source: torch.Tensor, target: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        """Logits after the rows `last` of a pack; copies its rows `source` to the rows `target` of the cache."""

    def step(
        self,
        token_B: torch.Tensor,
        position_B: torch.Tensor,
        held_B: torch.Tensor,
        table_BP: torch.Tensor,
        alive_B: torch.Tensor,
        cache: PagedCache,
    ) -> torch.Tensor:
        """Logits after one new token per row, which is appended to the `held_B` tokens in the pages of `table_BP`."""


@dataclass(frozen=True)
class TorchFamily:
    """The torch half of a family. Modules are those of a transformers model, with or without PEFT adapters.

    tables                       the half without torch: sizes, parameters, placeholders, rope positions
    model_class                  transformers' class, built from a config or loaded with from_pretrained
    refusal(config)              the reason why a model with this config cannot be trained; empty if it can
    embeddings, head             names of the two parameters that are one if the head is tied
    decoder_layers               name of the module with the decoder's layers
    vision(model)                the vision tower
    vision_units(model)          its blocks, and
    decoder_units(model)         the decoder's layers: each is sharded and recomputed separately; all other
                                 modules are the root unit
    attention_heads(config)      the heads of the decoder and of the vision tower
    vision_index(grids, sizes, count_bits)     see VisionIndex; `count_bits` as in `attention.segments_of`
    vision_segments(grids, sizes, count_bits)  all segments of attention calls in the vision tower
    video_inputs(plans)                        inputs of a stock model for videos besides patches and grids
    packed_forward(model, recompute, compile, context)  the forward of training, see PackedForward. `recompute` sets
                                 recomputation in backward; `compile` fuses layers
    vision_features(model, patches, index)     merged features [V, D] of media, without gradients
    cached_forward(model)        the forward of generation; it takes over the model's memory
    never_drawn(config, known)   token ids that no completion has: placeholders of media, and ids beyond the `known`
                                 tokens of the tokenizer
    decoder_inputs(model, inputs)  a stock model's inputs of its decoder for the `stock_inputs` of one sample; the same
                                 names for samples with any media, and none
    """

    tables: Family
    model_class: Any
    refusal: Callable[[Any], str]
    embeddings: str
    head: str
    decoder_layers: str
    vision: Callable[[Any], nn.Module]
    vision_units: Callable[[Any], Sequence[nn.Module]]
    decoder_units: Callable[[Any], Sequence[nn.Module]]
    attention_heads: Callable[[Any], tuple[Heads, Heads]]
    vision_index: Callable[[Sequence[Grid], VisionSizes, int | None], VisionIndex]
    vision_segments: Callable[[Sequence[Grid], VisionSizes, int | None], Segments]
    video_inputs: Callable[[Sequence[FramePlan]], dict[str, torch.Tensor]]
    packed_forward: MakeForward
    vision_features: Callable[[Any, torch.Tensor, VisionIndex], torch.Tensor]
    cached_forward: Callable[[Any], CachedForward]
    never_drawn: Callable[[Any, int], tuple[int, ...]]
    decoder_inputs: Callable[[Any, dict[str, torch.Tensor]], dict[str, Any]]

    def units(self, model: Any) -> list[nn.Module]:
        """All modules that are sharded individually, in the order of the forward pass."""
        return [*self.vision_units(model), *self.decoder_units(model)]

    def trained_vision(self, model: Any) -> list[str]:
        """Names of the vision tower's parameters that train."""
        inside = {id(parameter) for parameter in self.vision(model).parameters() if parameter.requires_grad}
        return [name for name, parameter in model.named_parameters() if id(parameter) in inside]

    def flops(self, config: Any, *, vision_trains: bool, decoder_trains: bool) -> FlopsModel:
        """FLOPs of a model with this config. `decoder_trains` is False for LoRA, whose base has no weight gradients."""
        sizes = self.tables.sizes(config.to_dict(), Path("config.json"))
        return flops_model(sizes, vision_trains=vision_trains, decoder_trains=decoder_trains)
