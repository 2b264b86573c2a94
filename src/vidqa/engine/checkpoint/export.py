"""Exports: weights that transformers, PEFT and vLLM load, and the proof that they do.

    <run>/safetensors/<name>/   a full fine-tune: the model folder again, with the trained weights
                                LoRA: adapter_config.json and adapter_model.safetensors for stock PEFT
Both carry the complete processor and tokenizer of the base model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import Qwen3VLForConditionalGeneration

from vidqa.engine.distributed import World
from vidqa.engine.model.load import DTYPES, weight_files
from vidqa.engine.model.trainable import ADAPTER, base_name, is_adapter, lora_config
from vidqa.engine.prepare import on_main
from vidqa.engine.problems import ENGINE_EXPORT_UNPROVEN, ENGINE_SAVE_FAILED, ENGINE_WEIGHTS_MISMATCH
from vidqa.families.problems import MODEL_FILE_MISSING
from vidqa.files import write_json
from vidqa.run_folder import RunFolder

EXPORT = "export.json"  # the facts of an export: step, spec, data, the trainer's loss
SHARD_BYTES = 4 * 1024**3
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


class Exporter:
    """Writes exports of a run. `base` is the model folder that the run started from, `policy` and `train` its spec."""

    def __init__(self, run: RunFolder, world: World, base: Path, policy: Any, train: Any) -> None:
        self.run, self.world, self.base = run, world, base
        self.lora, self.dtype, self.max_keep = policy.lora, DTYPES[train.param_dtype], train.ckpt.max_keep

    def write(self, name: str, model: nn.Module) -> Path:
        """Gather and write the export into a folder that is not published yet. Every rank takes part; rank 0 writes."""
        folder = on_main(self.world, lambda: self.run.begin(self.run.exports, name))
        failure = None
        writer = _ShardWriter(folder, "adapter_model" if self.lora else "model")
        for tensor_name, tensor in self._tensors(model):
            if self.world.is_main and failure is None:
                try:
                    writer.add(tensor_name, tensor)
                except (OSError, RuntimeError, SafetensorError) as full:
                    failure = str(full)
        if self.world.is_main and failure is None:
            try:
                writer.close()
                self._write_rest(folder)
            except (OSError, RuntimeError, SafetensorError) as full:
                failure = str(full)
        if failure := self.world.share(failure):
            if self.world.is_main:
                shutil.rmtree(folder, ignore_errors=True)
            raise ENGINE_SAVE_FAILED.error(self.run.exports, f"the export {name} could not be written: {failure}")
        return folder

    def publish(self, folder: Path, best: str) -> None:
        """Give a written and checked export its name; remove old ones but the newest `max_keep` and the best."""
        self.run.publish(folder)
        self.run.prune(self.run.exports, EXPORT, self.max_keep, {best})

    def _tensors(self, model: nn.Module):
        """Every tensor to be exported, whole, in the same order of names on every rank."""
        for name, parameter in sorted(model.named_parameters()):
            if self.lora and not (is_adapter(name) or ".modules_to_save." in name):
                continue
            if ".original_module." in name:
                continue
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.data
            yield self._exported_name(name), whole.detach().to("cpu", self.dtype).contiguous()

    def _exported_name(self, name: str) -> str:
        if not self.lora:
            return base_name(name)
        return "base_model.model." + name.replace(f".modules_to_save.{ADAPTER}.", ".").replace(f".{ADAPTER}.", ".")

    def _write_rest(self, folder: Path) -> None:
        """Config, tokenizer, chat template and processors: every file of the base model that holds no weights."""
        for path in self.base.iterdir():
            if path.is_file() and not path.name.endswith(NOT_COPIED) and not path.name.startswith("."):
                if self.lora and path.name in ("config.json", "generation_config.json"):
                    continue  # an adapter folder with a model config would be taken for a whole model
                shutil.copy2(path, folder / path.name)
        if self.lora:
            config = lora_config(self.lora)
            config.base_model_name_or_path = str(self.base)
            config.inference_mode = True
            config.save_pretrained(folder)


class _ShardWriter:
    """Collects tensors and writes them as safetensors shards with an index when there is more than one."""

    def __init__(self, folder: Path, stem: str) -> None:
        self.folder, self.stem = folder, stem
        self.pending: dict[str, torch.Tensor] = {}
        self.shards: list[list[str]] = []
        self.pending_bytes = self.total_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if self.pending and self.pending_bytes + size > SHARD_BYTES:
            self._flush()
        self.pending[name] = tensor
        self.pending_bytes += size
        self.total_bytes += size

    def _flush(self) -> None:
        self.shards.append(list(self.pending))
        save_file(
            self.pending, self.folder / f"{self.stem}-{len(self.shards):05d}.safetensors", metadata={"format": "pt"}
        )
        self.pending, self.pending_bytes = {}, 0

    def close(self) -> None:
        self._flush()
        count = len(self.shards)
        if count == 1:
            (self.folder / f"{self.stem}-00001.safetensors").rename(self.folder / f"{self.stem}.safetensors")
            return
        weight_map = {}
        for number, names in enumerate(self.shards, start=1):
            final = f"{self.stem}-{number:05d}-of-{count:05d}.safetensors"
            (self.folder / f"{self.stem}-{number:05d}.safetensors").rename(self.folder / final)
            weight_map.update(dict.fromkeys(names, final))
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(self.folder / f"{self.stem}.safetensors.index.json", index)


def prove_structure(export: Path, base: Path, lora: bool) -> None:
    """A full export holds the base model's tensors, name by name and shape by shape; an adapter loads into the base
    through stock PEFT's own name rules (checked by `load_export`)."""
    if lora:
        return
    ours, theirs = weight_files(export), weight_files(base)
    # A tied head may be stored once or twice.
    differing = {name for name in set(ours) ^ set(theirs) if name != "lm_head.weight"}
    if differing:
        raise ENGINE_EXPORT_UNPROVEN.error(
            export, f"tensor names differ from the base model's: {sorted(differing)[:5]}"
        )
    for name in set(ours) & set(theirs):
        if (got := _shape(ours[name], name)) != (want := _shape(theirs[name], name)):
            raise ENGINE_EXPORT_UNPROVEN.error(export, f"{name} has shape {got}, the base model {want}")


def _shape(path: Path, name: str) -> list[int]:
    with safe_open(path, framework="pt") as reader:
        return reader.get_slice(name).get_shape()


def load_export(export: Path, base: Path | None, dtype: torch.dtype, device: torch.device) -> Any:
    """A plain transformers model from an export or any model folder; with `base`, `export` is an adapter that stock
    PEFT loads and merges. Raises MODEL_FILE_MISSING, and ENGINE_WEIGHTS_MISMATCH for a missing or surplus tensor."""
    folder = base or export
    try:
        model, info = Qwen3VLForConditionalGeneration.from_pretrained(
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
    try:
        adapted = PeftModel.from_pretrained(model, adapter)
    except (OSError, SafetensorError, ValueError) as broken:
        raise MODEL_FILE_MISSING.error(adapter, f"PEFT cannot load it: {broken}") from broken
    except RuntimeError as unlike:
        raise ENGINE_WEIGHTS_MISMATCH.error(adapter, f"the adapter is of another model: {unlike}") from unlike
    # PEFT only warns of names that it does not find; an adapter that changes nothing must not pass for one.
    different = set(weight_files(adapter)) ^ set(get_peft_model_state_dict(adapted))
    if different:
        message = f"{len(different)} tensor names of the adapter are not the model's: {sorted(different)[:3]}"
        raise ENGINE_WEIGHTS_MISMATCH.error(adapter, message)
    return adapted.merge_and_unload()
