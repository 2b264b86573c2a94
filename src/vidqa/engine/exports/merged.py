"""LoRA merged into its base: the model folder again, as stock PEFT's `merge_and_unload` would leave it.

The model is never held: a copy on the meta device says which layers PEFT adapts, and each of them gets its weights
from the base's files, is merged by PEFT's own code, is written and let go. A CPU and memory for a few matrices do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.distributed.tensor import DTensor

from vidqa.contract.files import write_json
from vidqa.engine.checkpoint.shards import TensorRows
from vidqa.engine.distributed import World
from vidqa.engine.exports._base import ExportFormat, Trained
from vidqa.engine.exports.weights import check_tensors, load_weights
from vidqa.engine.exports.writing import copy_settings, named_as, read_part, write_together
from vidqa.engine.families import family_of
from vidqa.engine.model.load import meta_model
from vidqa.engine.model.stored import StoredTensor, model_tensors, stored_tensors
from vidqa.engine.model.trainable import adapter_name, base_name, is_adapter, lora_config
from vidqa.engine.problems import ENGINE_WEIGHTS_MISMATCH
from vidqa.families.adapters import check_adapter
from vidqa.families.model_files import read_json
from vidqa.planning.budget.params import ADAPTER

STEM = "model"
MARK = "merged.json"  # what was merged; of other folders of whole models nobody can tell whether one was
TIED = "tie_word_embeddings"


def adapted_model(base: Path, lora: Any) -> tuple[Any, bool]:
    """The model of a folder with the adapters of the spec's table `lora`, on the meta device; and whether it has a head
    of its own that in the folder is the embeddings. It needs one as soon as an adapter, or a copy that trains in full,
    is of one of the two: merged into what both share, it would change the other as well."""
    model = meta_model(base)
    inject_adapter_in_model(lora_config(lora), model, ADAPTER, low_cpu_mem_usage=True)
    family, tied = family_of(model), bool(model.config.tie_word_embeddings)
    shared = {name.removesuffix(".weight") for name in (family.embeddings, family.head)}
    changed = {base_name(name).partition(".lora_")[0] for name in _added(model)}
    untied = tied and any(name.removesuffix(".weight") in shared for name in changed)
    return model, untied


def adapter_of(base: Path, lora: Any, export: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The tensors of an adapter's folder by their names in the model. Raises ENGINE_WEIGHTS_MISMATCH where they are not
    those of the table `lora`, MODEL_FILE_MISSING, MODEL_WEIGHTS_BROKEN."""
    check_adapter(export)
    stored, model = stored_tensors(export), adapted_model(base, lora)[0]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    inside = {adapter_name(name): name for name in _added(model) if ".original_module." not in name}
    wrong = sorted(set(inside) ^ set(stored))
    wrong += sorted(name for name in set(inside) & set(stored) if stored[name].shape != shapes[inside[name]])
    if wrong:
        message = f"{len(wrong)} tensors are missing, surplus or of another shape: {wrong[:3]}"
        raise ENGINE_WEIGHTS_MISMATCH.error(export, message)
    return {inside[name]: read_part(tensor, 0, tensor.shape[0]).to(dtype) for name, tensor in stored.items()}


def _added(model: nn.Module) -> Iterator[str]:
    """Parameters of adapters, and of copies that train in full."""
    return (name for name, _ in model.named_parameters() if is_adapter(name) or ".modules_to_save." in name)


def _write(trained: Trained, name: str, world: World) -> Path:
    model, untied = adapted_model(trained.base, trained.lora)
    family, tied = family_of(model), bool(model.config.tie_word_embeddings)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    stored = model_tensors(trained.base)
    names = named_as(stored, filter(_is_of_base, parameters))
    if tied and not untied:
        names.pop(family.head, None)
    shapes = {tensor: tuple(parameters[inside].shape) for tensor, inside in names.items()}
    if tied and family.embeddings in stored:
        stored.setdefault(family.head, stored[family.embeddings])
    if missing := sorted({base_name(inside) for inside in names.values()} - set(stored)):
        raise ENGINE_WEIGHTS_MISMATCH.error(trained.base, f"{len(missing)} tensors are missing: {missing[:3]}")

    def settings(folder: Path) -> None:
        copy_settings(trained, folder)
        if untied:
            _untie(folder)
        write_json(folder / MARK, {"schema_version": 1, "lora": trained.lora.model_dump(), "head_untied": untied})

    rows = _rows(trained, model, names, stored, world)
    return write_together(trained, name, STEM, shapes, rows, world, settings)


def _is_of_base(inside: str) -> bool:
    """Of a module that trains in full beside its original, the copy is what counts."""
    return not is_adapter(inside) and ".original_module." not in inside


def _rows(
    trained: Trained, model: nn.Module, names: Mapping[str, str], stored: Mapping[str, StoredTensor], world: World
) -> Iterator[TensorRows]:
    """Every tensor whole, in turn by each rank. Adapters are small: all ranks gather the parts of each."""
    layers = {f"{name}.base_layer.weight": name for name, each in model.named_modules() if isinstance(each, LoraLayer)}
    for number, (tensor, inside) in enumerate(names.items()):
        layer = layers.get(inside)
        parts = [inside] if layer is None else [name for name in trained.own if name.startswith(f"{layer}.lora_")]
        own = {name: _whole(trained.own[name]) for name in parts if name in trained.own}
        if number % world.size != world.rank:
            continue
        if layer is None and own:
            yield TensorRows(tensor, 0, own[inside])
            continue
        found = stored[base_name(inside)]
        weight = read_part(found, 0, found.shape[0])
        if layer is not None:
            # What an adapter's file holds: PEFT computes with it in float32.
            adapters = {name.removeprefix(f"{layer}."): part.to(trained.dtype).float() for name, part in own.items()}
            weight = merged(model.get_submodule(layer), weight.to(trained.dtype), adapters)
        yield TensorRows(tensor, 0, weight)


def _whole(part: torch.Tensor) -> torch.Tensor:
    return (part.full_tensor() if isinstance(part, DTensor) else part).detach().cpu()


@torch.no_grad()
def merged(layer: nn.Module, weight: torch.Tensor, adapters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The weight of one of PEFT's layers with its adapters folded in, by PEFT itself. `layer` is on the meta device;
    `adapters` have their names in it."""
    filled: Any = copy.deepcopy(layer)
    for name, values in {"base_layer.weight": weight, **adapters}.items():
        place, _, leaf = name.rpartition(".")
        setattr(filled.get_submodule(place), leaf, nn.Parameter(values, requires_grad=False))
    filled.merge()
    result: torch.Tensor = filled.get_base_layer().weight.data
    return result


def _untie(folder: Path) -> None:
    config = read_json(folder, "config.json")
    config[TIED] = False
    for table in config.values():
        if isinstance(table, dict) and TIED in table:
            table[TIED] = False
    write_json(folder / "config.json", config)


def _load(export: Path, base: Path, dtype: torch.dtype, device: torch.device) -> Any:
    return load_weights(export, dtype).to(device).eval()


MERGED = ExportFormat("merged", MARK, STEM, _write, check_tensors, _load)
