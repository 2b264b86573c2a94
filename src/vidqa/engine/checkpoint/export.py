"""Exports: weights that transformers, PEFT and vLLM load, and the proof that they do.

    <run>/safetensors/<name>/   a full fine-tune: the model folder again, with the trained weights
                                LoRA: adapter_config.json and adapter_model.safetensors for stock PEFT
Both carry the complete processor and tokenizer of the base model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError
from torch import nn
from torch.distributed.tensor import DTensor

from vidqa.contract.files import write_json
from vidqa.contract.problem import ProblemError
from vidqa.contract.run_folder import RunFolder
from vidqa.engine.checkpoint.shards import Rows, create_files, plan_shards, write_rows
from vidqa.engine.distributed import World, local_part
from vidqa.engine.families import torch_half
from vidqa.engine.model.load import DTYPES, local_rows
from vidqa.engine.model.stored import RowRead, StoredTensor, read_rows, stored_tensors
from vidqa.engine.model.trainable import adapter_name, base_name, is_adapter, lora_config
from vidqa.engine.prepare import on_main
from vidqa.engine.problems import ENGINE_EXPORT_UNPROVEN, ENGINE_SAVE_FAILED, ENGINE_WEIGHTS_MISMATCH
from vidqa.families import family_of
from vidqa.families._base import read_json
from vidqa.families.adapters import check_adapter
from vidqa.families.problems import MODEL_FILE_MISSING

EXPORT = "export.json"  # the facts of an export: step, spec, data, the trainer's loss
COPIED = (".json", ".jinja", ".txt", ".model", ".md", "")  # settings, vocabularies and texts: no weights and no code
CODE_KEY = "auto_map"  # in config.json and the like: which class of which Python file to load


class Exporter:
    """Writes exports of a run. `base` is the model folder that the run started from, `policy` and `train` its spec."""

    def __init__(self, run: RunFolder, base: Path, policy: Any, train: Any) -> None:
        self.run, self.base = run, base
        self.lora, self.dtype = policy.lora, DTYPES[train.param_dtype]

    def write(
        self, name: str, parameters: Mapping[str, nn.Parameter], own: Mapping[str, torch.Tensor], world: World
    ) -> Path:
        """Write the export into a folder that is not published yet; every rank takes part and writes its own rows.
        `parameters` are the model's, of which only names and placement are looked at: `own` holds the
        values that are the run's, on any device, and the others still are the base model's."""
        exported = {self._exported_name(n): (n, p) for n, p in sorted(parameters.items()) if self._is_exported(n)}
        stem = "adapter_model" if self.lora else "model"
        shards = plan_shards({name: tuple(p.shape) for name, (_, p) in exported.items()}, self.dtype, stem)

        def begin() -> Path:
            folder = self.run.begin(self.run.exports, name)
            create_files(folder, shards, stem)
            return folder

        folder, failure = on_main(world, begin), None
        try:
            write_rows(folder, shards, self._rows(exported, own, world), self.dtype)
            if world.is_main:
                self._write_rest(folder)
        except (OSError, RuntimeError, ProblemError) as full:
            failure = str(full) or type(full).__name__
        if failures := [text for text in world.gather(failure) if text]:
            if world.is_main:
                shutil.rmtree(folder, ignore_errors=True)
            raise ENGINE_SAVE_FAILED.error(self.run.exports, f"the export {name} could not be written: {failures[0]}")
        return folder

    def _is_exported(self, name: str) -> bool:
        if self.lora and not (is_adapter(name) or ".modules_to_save." in name):
            return False
        return ".original_module." not in name

    def _exported_name(self, name: str) -> str:
        return adapter_name(name) if self.lora else base_name(name)

    def _rows(
        self, exported: Mapping[str, tuple[str, nn.Parameter]], own: Mapping[str, torch.Tensor], world: World
    ) -> Iterator[Rows]:
        """What this rank writes: its rows of sharded tensors; of several ranks that hold the same rows, the first."""
        stored = stored_tensors(self.base)
        for name, (inside, parameter) in exported.items():
            if not _writes(parameter, world):
                continue
            local, rows = local_rows(parameter)
            first = rows[0].start
            if inside in own:
                yield Rows(name, first, local_part(own[inside]))
            else:
                yield Rows(name, first, _read(stored[base_name(inside)], first, len(local)))

    def _write_rest(self, folder: Path) -> None:
        """Config, tokenizer, chat template and processors of the base model. No code: plain transformers needs none,
        and whoever loads an export with trust_remote_code would run it."""
        for path in self.base.iterdir():
            if path.is_file() and _is_copied(path):
                if self.lora and path.name in ("config.json", "generation_config.json"):
                    continue  # an adapter folder with a model config would be taken for a whole model
                _copy_without_code(path, folder / path.name)
        if self.lora:
            config = lora_config(self.lora)
            config.base_model_name_or_path = str(self.base)
            config.inference_mode = True
            config.save_pretrained(folder)


def _is_copied(path: Path) -> bool:
    return path.suffix in COPIED and not path.name.endswith(".index.json") and not path.name.startswith(".")


def _copy_without_code(path: Path, copy: Path) -> None:
    """Copy a file of a model folder; of settings, all but the key that names classes in files beside them."""
    settings = read_json(path.parent, path.name) if path.name.endswith("config.json") else {}
    if settings.pop(CODE_KEY, None) is not None:
        write_json(copy, settings)
    else:
        shutil.copyfile(path, copy)  # not its mode, which is for the umask to say


def _read(stored: StoredTensor, first: int, count: int) -> torch.Tensor:
    values = torch.empty((count, *stored.shape[1:]), dtype=stored.dtype)
    read_rows([RowRead(stored, first, values)])
    return values


def _writes(parameter: nn.Parameter, world: World) -> bool:
    if not isinstance(parameter, DTensor):
        return world.is_main
    coordinate = parameter.device_mesh.get_coordinate() or ()
    return all(at == 0 or p.is_shard() for at, p in zip(coordinate, parameter.placements, strict=True))


def prove_structure(export: Path, base: Path, lora: bool) -> None:
    """A full export holds the base model's tensors, name by name and shape by shape; an adapter loads into the base
    through stock PEFT's own name rules (checked by `load_export`)."""
    if lora:
        return
    ours, theirs = stored_tensors(export), stored_tensors(base)
    # A tied head may be stored once or twice.
    differing = {name for name in set(ours) ^ set(theirs) if name != "lm_head.weight"}
    if differing:
        raise ENGINE_EXPORT_UNPROVEN.error(
            export, f"tensor names differ from the base model's: {sorted(differing)[:5]}"
        )
    for name in set(ours) & set(theirs):
        if (got := ours[name].shape) != (want := theirs[name].shape):
            raise ENGINE_EXPORT_UNPROVEN.error(export, f"{name} has shape {got}, the base model {want}")


def load_export(export: Path, base: Path | None, dtype: torch.dtype, device: torch.device) -> Any:
    """A plain transformers model from an export or any model folder; with `base`, `export` is an adapter that stock
    PEFT loads and merges. Raises MODEL_FILE_MISSING, and ENGINE_WEIGHTS_MISMATCH for a missing or surplus tensor."""
    folder = base or export
    family = torch_half(family_of(folder))
    try:
        model, info = family.model_class.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
        )
    except (OSError, SafetensorError, ValueError) as broken:
        raise MODEL_FILE_MISSING.error(folder, f"transformers cannot load it: {broken}") from broken
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    if left := {kind: sorted(info[kind]) for kind in kinds if info.get(kind)}:
        message = f"transformers reports {json.dumps(left, default=str)[:400]}"
        raise ENGINE_WEIGHTS_MISMATCH.error(folder, message)
    if base is not None:
        model = _merged(model, export)
    return model.to(device).eval()


def _merged(model: Any, adapter: Path) -> Any:
    """The model with an adapter folded in by stock PEFT, every tensor of the file used."""
    check_adapter(adapter)
    stored = set(stored_tensors(adapter))
    if model.config.tie_word_embeddings and any(_is_of_tied(name) for name in stored):
        _untie(model)
    try:
        adapted = PeftModel.from_pretrained(model, adapter)
    except (OSError, SafetensorError, ValueError) as broken:
        raise MODEL_FILE_MISSING.error(adapter, f"PEFT cannot load it: {broken}") from broken
    except RuntimeError as unlike:
        raise ENGINE_WEIGHTS_MISMATCH.error(adapter, f"the adapter is of another model: {unlike}") from unlike
    # PEFT only warns of names that it does not find; an adapter that changes nothing must not pass for one. Whoever
    # stored an adapter of embeddings with PEFT itself may have the base model's embeddings beside it.
    needed = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    known = set(get_peft_model_state_dict(adapted, save_embedding_layers=True))
    if different := (needed - stored) | (stored - known):
        message = f"{len(different)} tensor names of the adapter are not the model's: {sorted(different)[:3]}"
        raise ENGINE_WEIGHTS_MISMATCH.error(adapter, message)
    return adapted.merge_and_unload()


def _is_of_tied(name: str) -> bool:
    return is_adapter(name) and any(f".{part}.lora_" in name for part in ("embed_tokens", "lm_head"))


def _untie(model: Any) -> None:
    """Give a tied head weights of its own: an adapter on the head or on the embeddings is of one of them, and merged
    into what both share it would change the other as well."""
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
