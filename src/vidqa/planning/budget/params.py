"""Parameters of a model that train, and their number: the spec's patterns and LoRA, applied to names and shapes. The
engine applies the same rules to the model itself."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from vidqa.families import Sizes, Tensor
from vidqa.spec.policy_tables import Lora, Policy

BLOCK = 256  # numbers of a row that share a scale in 8-bit moments
ADAPTER = "default"  # PEFT's name for the one adapter
Value = TypeVar("Value")


@dataclass(frozen=True)
class Parameter:
    """One parameter of the model in training; `unit` is the layer that it is sharded with. `added`: LoRA adds it, as a
    matrix of an adapter or as the trainable copy of a module that trains in full beside the base's own."""

    name: str
    shape: tuple[int, ...]
    unit: str
    trains: bool
    added: bool = False

    @property
    def is_quantized(self) -> bool:
        """Whether policy.quantization quantizes it: a matrix of the base in a decoder layer."""
        frozen = not self.trains and not self.added and ".original_module." not in self.name
        return frozen and len(self.shape) == 2 and ".layers." in self.unit

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def parameters(tensors: Sequence[Tensor], policy: Policy) -> list[Parameter]:
    """All parameters of the model under the engine's names. `policy` is the spec's table."""
    if policy.lora is None:
        named = [Parameter(tensor.name, tensor.shape, tensor.unit, trains=True) for tensor in tensors]
    else:
        named = [parameter for tensor in tensors for parameter in _adapted(tensor, policy.lora)]
    return [replace(parameter, trains=parameter.trains and is_trained(parameter.name, policy)) for parameter in named]


def has_8bit_moments(shape: Sequence[int]) -> bool:
    """Whether AdamW8bit keeps the moments of a parameter in 8 bits."""
    return len(shape) > 1 and math.prod(shape[1:]) % BLOCK == 0


def is_trained(name: str, policy: Policy) -> bool:
    """Whether `freeze_pattern` and `trainable_pattern`, regular expressions searched in a parameter's name, let it
    train."""
    trains = not policy.trainable_pattern or any(re.search(pattern, name) for pattern in policy.trainable_pattern)
    return trains and not any(re.search(pattern, name) for pattern in policy.freeze_pattern or ())


def _adapted(tensor: Tensor, lora: Lora) -> Iterator[Parameter]:
    """A tensor of the base, frozen, and its LoRA parameters, under both of its names if it is tied."""
    yield from _adapted_once(tensor, lora)
    if tensor.tied:
        head = replace(tensor, name=tensor.tied, linear=True, tied="")
        yield from (parameter for parameter in _adapted_once(head, lora) if parameter.added)


def _adapted_once(tensor: Tensor, lora: Lora) -> Iterator[Parameter]:
    if saved := _saved_module(tensor.name, lora.modules_to_save or ()):
        rest = tensor.name.removeprefix(f"{saved}.")
        yield Parameter(f"{saved}.original_module.{rest}", tensor.shape, tensor.unit, trains=False)
        name = f"{saved}.modules_to_save.{ADAPTER}.{rest}"
        yield Parameter(name, tensor.shape, tensor.unit, trains=True, added=True)
        return
    module, _, last = tensor.name.rpartition(".")
    if not _is_lora_target(module, tensor, lora.target_modules):
        yield Parameter(tensor.name, tensor.shape, tensor.unit, trains=False)
        return
    yield Parameter(f"{module}.base_layer.{last}", tensor.shape, tensor.unit, trains=False)
    if last == "weight":
        for name, shape in _matrices(tensor, value_of(module, lora.r_pattern, lora.r)):
            yield Parameter(f"{module}.{name}", shape, tensor.unit, trains=True, added=True)


def _saved_module(name: str, endings: Sequence[str]) -> str | None:
    """The module that contains a tensor and trains in full: the outermost one whose name ends with one of `endings`."""
    parts = name.split(".")[:-1]
    outer = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return next((module for module in outer if any(module.endswith(ending) for ending in endings)), None)


def _is_lora_target(module: str, tensor: Tensor, targets: str | Sequence[str]) -> bool:
    if is_all_linear(targets):
        return tensor.linear and module != "lm_head"
    return any(module == target or module.endswith(f".{target}") for target in targets)


def is_all_linear(targets: str | Sequence[str]) -> bool:
    """Whether LoRA's targets are every linear layer but the last."""
    return targets in ("all-linear", ["all-linear"], ("all-linear",))


def value_of(module: str, patterns: Mapping[str, Value] | None, default: Value) -> Value:
    """The value of the first pattern that matches the end of a module's name, as PEFT chooses its rank and alpha."""
    matches = (value for pattern, value in (patterns or {}).items() if re.match(rf"(.*\.)?({pattern})$", module))
    return next(matches, default)


def _matrices(tensor: Tensor, rank: int) -> list[tuple[str, tuple[int, ...]]]:
    """PEFT's names and shapes of an adapter's two matrices."""
    rows, *columns = tensor.shape
    if not tensor.linear and len(columns) == 1:  # an embedding
        return [
            (f"lora_embedding_A.{ADAPTER}", (rank, rows)),
            (f"lora_embedding_B.{ADAPTER}", (columns[0], rank)),
        ]
    return [
        (f"lora_A.{ADAPTER}.weight", (rank, *columns)),
        (f"lora_B.{ADAPTER}.weight", (rows, rank, *(1 for _ in columns[1:]))),
    ]


@dataclass(frozen=True)
class ParamCount:
    """Numbers of parameters: all; the trainable ones; those of them with 8-bit moments in AdamW8bit; and those that
    policy.quantization quantizes."""

    every: int
    trained: int
    moments_8bit: int = 0
    quantizable: int = 0


@dataclass(frozen=True)
class ParamCounts:
    """A model's sizes, and its parameters counted by sharding unit."""

    sizes: Sizes
    every: ParamCount
    root: ParamCount
    layer: ParamCount  # one decoder layer
    block: ParamCount  # one vision block
    head: ParamCount
    vision: ParamCount  # the vision tower with its mergers


def count_params(sizes: Sizes, parameters: Sequence[Parameter]) -> ParamCounts:
    def count(chosen: Callable[[Parameter], bool]) -> ParamCount:
        matches = [parameter for parameter in parameters if chosen(parameter)]
        return ParamCount(
            sum(p.numel for p in matches),
            sum(p.numel for p in matches if p.trains),
            sum(p.numel for p in matches if p.trains and has_8bit_moments(p.shape)),
            sum(p.numel for p in matches if p.is_quantized),
        )

    units = {parameter.unit for parameter in parameters if parameter.unit}
    layer = min(unit for unit in units if ".layers." in unit)
    block = min(unit for unit in units if ".blocks." in unit)
    head = "embed_tokens" if sizes.text.tied else "lm_head"
    return ParamCounts(
        sizes=sizes,
        every=count(lambda p: True),
        root=count(lambda p: not p.unit),
        layer=count(lambda p: p.unit == layer),
        block=count(lambda p: p.unit == block),
        head=count(lambda p: head in p.name),
        vision=count(lambda p: ".visual." in p.name),
    )
