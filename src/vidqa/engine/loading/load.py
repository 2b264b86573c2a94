"""Loading of a sharded model: built on the meta device, then every rank reads only its own rows.

config -> meta model -> LoRA and freezing -> our forward -> fully_shard -> weights from safetensors
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig

from vidqa.core.problem import raise_errors
from vidqa.engine.distributed import World, local_part
from vidqa.engine.families import TorchFamily, family_of, torch_half
from vidqa.engine.families._base import run_gathered
from vidqa.engine.loading.freeze import base_module, base_name, choose_trainable, is_adapter, is_added
from vidqa.engine.loading.safetensors_reader import RowRead, StoredTensor, model_tensors, read_rows, stored_tensors
from vidqa.engine.memory import host_memory_like
from vidqa.engine.model import DTYPES
from vidqa.engine.model.float8 import use_float8
from vidqa.engine.model.quantized_base import QuantizedLinear, quantize_layers, quantized_layers
from vidqa.engine.torch_private import compute_local_shape_and_global_offset, dtensor_like
from vidqa.families import family_of as tables_of
from vidqa.families import require_plain_weights
from vidqa.families.problems import MODEL_BROKEN, MODEL_UNSUPPORTED
from vidqa.planning.adapters import adapter_name, adapter_problems, base_problems
from vidqa.planning.budget.activation_checkpointing import Recompute
from vidqa.spec import check_with_heads

SEEDS = 2**64  # seeds of a PyTorch generator; a seed of a spec may be any integer, such as a timestamp
# Exceptions that transformers raises for invalid values in config.json.
BY_CONFIG = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, AssertionError)


@contextmanager
def load_sharded(
    folder: Path,
    policy: Any,
    train: Any,
    world: World,
    recompute: Recompute,
) -> Iterator[Any]:
    """Load the model of `folder`; `policy` and `train` are tables of the spec. Trainable parameters are stored in
    `train.master_dtype`; frozen ones and all computation use `train.param_dtype`. `model.packed` is its forward pass
    over packed batches. Inside the `with` block the model can compute while its weights are still being read; after the
    block the weights are complete. Raises SPEC_VALUE."""
    model, device = meta_model(folder), world.device
    family = family_of(model)
    raise_errors(check_with_heads(policy, family.attention_heads(model.config)[0].keys))
    choose_trainable(model, policy)
    compute, master = DTYPES[train.param_dtype], DTYPES[train.master_dtype]
    for parameter in model.parameters():
        parameter.data = parameter.data.to(master if parameter.requires_grad else compute)
    compile = train.compile and device.type == "cuda"
    model.packed = family.packed_forward(model, recompute=recompute, compile=compile, context=world.context)
    if train.fp8.enable_fp8:
        # With one scale per row, rounding costs more than it saves in vision blocks, whose rows are short.
        rounded = family.units if train.fp8.quant_recipe == "tensorwise" else family.decoder_units
        use_float8(rounded(model), train.fp8.quant_recipe)
    if policy.quantization:
        quantize_layers(family.decoder_units(model), policy.quantization)
    _shard(model, family, world, compute, DTYPES[train.fsdp_reduce_dtype], offload=train.fsdp_offload)
    _take_memory(model, device, offload=train.fsdp_offload)
    model.train()
    rows, batches = rank_rows(model, folder), quantized_rows(model, folder)
    with ThreadPoolExecutor(1, "weights") as reader:
        reading = reader.submit(_read_weights, rows, batches, compute, device)
        if train.fsdp_offload:
            reading.result()  # the first forward moves parameters into pinned memory
        yield model
        reading.result()
    _initialise_adapters(model, train.seed or 0, policy.lora)


def load_reference(folder: Path, policy: Any, train: Any, world: World, recompute: Recompute) -> Any:
    """Load the initial model of a run, built as in `load_sharded`, in the precision of computation and without
    optimizer. Its parameters require gradients like the trained ones, so that it runs the same kernels."""
    model, device = meta_model(folder), world.device
    family, compute = family_of(model), DTYPES[train.param_dtype]
    for parameter in model.parameters():
        parameter.data = parameter.data.to(compute)
    choose_trainable(model, policy)
    model.packed = family.packed_forward(model, recompute=recompute, compile=train.compile and device.type == "cuda")
    if world.is_sharded:
        _shard(model, family, world, compute, compute)
    _take_memory(model, device)
    read_rows(rank_rows(model, folder))
    return model.train()


def empty_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A stock model of `folder` with allocated but uninitialised weights."""
    model = meta_model(folder)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.requires_grad_(False)
    _take_memory(model, device)
    return model.eval()


def meta_model(folder: Path) -> Any:
    require_plain_weights(folder, "parameters are taken from")
    tables = tables_of(folder)
    tables.sizes_of(folder)  # raises as preflight does, before transformers reads the config
    try:
        config = AutoConfig.from_pretrained(folder)
    except (*BY_CONFIG, StrictDataclassError) as broken:
        raise MODEL_BROKEN.error(folder / "config.json", f"config.json cannot be read: {broken}") from broken
    family = torch_half(tables)
    if refusal := family.refusal(config):
        raise MODEL_UNSUPPORTED.error(folder / "config.json", refusal)
    try:
        with torch.device("meta"):
            model = family.model_class(config)
    except BY_CONFIG as broken:
        raise MODEL_UNSUPPORTED.error(
            folder / "config.json", f"transformers cannot build a model from it: {broken}"
        ) from broken
    _tie_head(model)
    return model


def _tie_head(model: Any) -> None:
    """Tie the head to the embeddings again: allocation gives them separate tensors."""
    if model.config.tie_word_embeddings:
        base_module(model.get_output_embeddings()).weight = base_module(model.get_input_embeddings()).weight


def _take_memory(model: Any, device: torch.device, *, offload: bool = False) -> None:
    """Allocate parameters and buffers of a meta model; parameters stay uninitialised. With `offload` FSDP's parameters
    are allocated in pinned host memory: otherwise FSDP would pin a copy of each."""
    model.to_empty(device="cpu" if offload else device)
    if offload:
        _pin_shards(model, device)
    _tie_head(model)
    _restore_buffers(model)


def _pin_shards(model: nn.Module, device: torch.device) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = torch.empty_like(tensor, device=device)
    sharded = {name: parameter for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)}
    rows = host_memory_like({name: local_part(p) for name, p in sharded.items()}, pinned=device.type == "cuda")
    for name, parameter in sharded.items():
        owner, _, own_name = name.rpartition(".")
        pinned = nn.Parameter(dtensor_like(parameter, rows[name]), requires_grad=parameter.requires_grad)
        model.get_submodule(owner).register_parameter(own_name, pinned)


def _shard(
    model: Any, family: TorchFamily, world: World, compute: torch.dtype, reduce: torch.dtype, *, offload: bool = False
) -> None:
    """Shard the model: one FSDP unit per vision block and decoder layer, the rest in the root. If nothing is sharded
    (dp_shard_size 1), frozen weights stay ordinary tensors: every rank holds all of them, so no layer gathers or copies
    them."""
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce, cast_forward_inputs=False)
    place: OffloadPolicy = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if offload else OffloadPolicy()
    left_alone = {parameter for parameter in model.parameters() if not (world.is_sharded or parameter.requires_grad)}
    for unit in [*family.units(model), model]:
        sharded = fully_shard(
            unit, mesh=world.mesh, mp_policy=precision, offload_policy=place, ignored_params=left_alone
        )
        run_gathered(sharded)


def rank_rows(model: Any, folder: Path) -> list[RowRead]:
    """The reads of this rank's rows of every base parameter from the folder's safetensors files. Raises MODEL_BROKEN
    for a missing, unexpected or wrongly shaped tensor."""
    files = model_tensors(folder)
    family = family_of(model)
    if model.config.tie_word_embeddings and family.embeddings in files:
        files.setdefault(family.head, files[family.embeddings])  # for an untied copy of the head, which trains in full
    expected = {name: parameter for name, parameter in model.named_parameters() if not is_adapter(name)}
    # A tied head is one parameter with two names; files may contain either or both.
    named_twice = {
        base_name(name) for name, _ in model.named_parameters(remove_duplicate=False) if not is_adapter(name)
    }
    quantized = {base_name(f"{name}.weight"): layer for name, layer in quantized_layers(model)}
    missing = sorted({*map(base_name, expected), *quantized} - set(files))
    unexpected = sorted(set(files) - named_twice - set(quantized))
    if missing or unexpected:
        raise MODEL_BROKEN.error(
            folder,
            f"{len(missing)} tensors missing ({', '.join(missing[:3])}...), "
            f"{len(unexpected)} unexpected ({', '.join(unexpected[:3])}...)",
        )
    reads = []
    shapes = {base_name(name): tuple(parameter.shape) for name, parameter in expected.items()}
    for name, shape in (shapes | {name: layer.shape for name, layer in quantized.items()}).items():
        if files[name].shape != shape:
            message = f"{name} has shape {list(files[name].shape)}, the config says {list(shape)}"
            raise MODEL_BROKEN.error(folder, message)
    for name, parameter in expected.items():
        local, first = local_rows(parameter)
        if local.numel():
            reads.append(RowRead(files[base_name(name)], first, local))
    return reads


def quantized_rows(model: nn.Module, folder: Path) -> list[list[tuple[QuantizedLinear, StoredTensor]]]:
    """The quantized layers of a model with their stored weights, one list per decoder layer."""
    files: dict[str, StoredTensor] = {}
    units: dict[str, list[tuple[QuantizedLinear, StoredTensor]]] = {}
    for name, layer in quantized_layers(model):
        files = files or model_tensors(folder)
        to_number = next(end for end, part in enumerate(name.split("."), start=1) if part.isdecimal())
        unit = ".".join(name.split(".")[:to_number])
        units.setdefault(unit, []).append((layer, files[base_name(f"{name}.weight")]))
    return list(units.values())


def _read_weights(
    rows: Sequence[RowRead],
    batches: Sequence[Sequence[tuple[QuantizedLinear, StoredTensor]]],
    compute: torch.dtype,
    device: torch.device,
) -> None:
    """Read ordinary weights in place, and those of quantized layers one decoder layer at a time into a
    scratch buffer."""
    read_rows(rows)
    sizes = [[math.prod(layer.shape) for layer, _ in batch] for batch in batches]
    scratch = torch.empty(max(map(sum, sizes), default=0), dtype=compute, device=device)
    for batch, counts in zip(batches, sizes, strict=True):
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # files are read on streams of their own
        parts = scratch[: sum(counts)].split(counts)
        weights = [part.view(layer.shape) for (layer, _), part in zip(batch, parts, strict=True)]
        read_rows([RowRead(stored, 0, weight) for (_, stored), weight in zip(batch, weights, strict=True)])
        for (layer, _), weight in zip(batch, weights, strict=True):
            layer.fill(weight)


@torch.no_grad()
def local_rows(parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
    """This rank's rows of a parameter, and the index of the first."""
    if not isinstance(parameter, DTensor):
        return parameter.data, 0
    _, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return parameter.to_local().data, offset[0]


def _initialise_adapters(model: nn.Module, seed: int, lora: Any) -> None:
    """Initialise LoRA's A and B as PEFT does, equal on any number of ranks: each whole matrix is drawn from a seed and
    its index, and every rank keeps its rows."""
    adapters = [(name, parameter) for name, parameter in model.named_parameters() if is_adapter(name)]
    for number, (name, parameter) in enumerate(adapters):
        generator = torch.Generator().manual_seed((seed * 100_003 + number) % SEEDS)
        whole = _first_values(name, parameter.shape, lora.init_lora_weights, generator)
        local, first = local_rows(parameter)
        local.copy_(whole[first : first + len(local)])


def load_adapter(model: nn.Module, folder: Path, base: Path, precision: str | None, world: World) -> None:
    """Load this rank's rows of the adapter in `folder`, in place of initial values. Raises MODEL_ADAPTER_MISMATCH if
    its base weights are not those of `base` or if its targets or rank differ, and MODEL_UNSUPPORTED if its base has
    another `precision`."""
    added = {name: parameter for name, parameter in model.named_parameters() if is_added(name)}
    shapes = {name: tuple(parameter.shape) for name, parameter in added.items()}
    raise_errors(world.on_main(lambda: [*adapter_problems(folder, shapes, precision), *base_problems(folder, base)]))
    stored = stored_tensors(folder)
    reads = [(stored[adapter_name(name)], *local_rows(parameter)) for name, parameter in added.items()]
    read_rows([RowRead(tensor, first, local) for tensor, local, first in reads if local.numel()])


def _first_values(name: str, shape: torch.Size, how: bool | str, generator: torch.Generator) -> torch.Tensor:
    """The initial values of a LoRA matrix. A is drawn, so that B has a gradient, and B is 0, so that training starts
    from the base model; with `how` False both are drawn. For embeddings B is drawn and A is 0, as in PEFT."""
    values = torch.zeros(shape)
    of_embeddings = ".lora_embedding_" in name
    is_drawn = how is False or (".lora_embedding_B." if of_embeddings else ".lora_A.") in name
    if not is_drawn:
        return values
    if of_embeddings:
        return values.normal_(generator=generator)
    if how == "gaussian":
        return values.normal_(std=1 / shape[0], generator=generator)
    return nn.init.kaiming_uniform_(values, a=math.sqrt(5), generator=generator)


def _restore_buffers(model: nn.Module) -> None:
    """Compute rotary frequencies from the config; checkpoints do not store them."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            fresh: Any = type(module)(module.config)
            for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
                buffer.copy_(getattr(fresh, name))
