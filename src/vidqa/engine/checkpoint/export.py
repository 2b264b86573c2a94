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
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import Qwen3VLForConditionalGeneration

from vidqa.engine.distributed import World
from vidqa.engine.model.load import DTYPES, weight_files
from vidqa.engine.model.trainable import ADAPTER, base_name, is_adapter, lora_config
from vidqa.engine.problems import ENGINE_EXPORT_UNPROVEN, ENGINE_SAVE_FAILED
from vidqa.files import write_json
from vidqa.run_folder import RunFolder

SHARD_BYTES = 4 * 1024**3
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


class Exporter:
    """Writes exports of a run. `base` is the model folder that the run started from, `policy` and `train` its spec."""

    def __init__(self, run: RunFolder, world: World, base: Path, policy: Any, train: Any) -> None:
        self.run, self.world, self.base = run, world, base
        self.lora, self.dtype, self.max_keep = policy.lora, DTYPES[train.param_dtype], train.ckpt.max_keep

    def export(self, name: str, model: nn.Module) -> Path:
        """Gather and write `safetensors/<name>`, published by rename. Every rank takes part; rank 0 writes."""
        folder = self.run.exports / f".unfinished{name}"
        published = self.run.exports / name
        failure = None
        try:
            if self.world.is_main:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
        except OSError as full:
            failure = str(full)
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
                shutil.rmtree(published, ignore_errors=True)
                folder.rename(published)
            except (OSError, RuntimeError, SafetensorError) as full:
                failure = str(full)
        if failure := self.world.share(failure):
            if self.world.is_main:
                shutil.rmtree(folder, ignore_errors=True)
            raise ENGINE_SAVE_FAILED.error(self.run.exports, f"the export {name} could not be written: {failure}")
        return published

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

    def prune(self, keep: set[str]) -> None:
        """Keep the newest `max_keep` exports, and those named in `keep`."""
        if self.world.is_main and self.max_keep > 0:
            for old in self.run.numbered(self.run.exports)[: -self.max_keep]:
                if old.name not in keep:
                    shutil.rmtree(old, ignore_errors=True)


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
    PEFT loads and merges. Raises ENGINE_EXPORT_UNPROVEN when a tensor is missing or left over."""
    model, info = Qwen3VLForConditionalGeneration.from_pretrained(
        base or export, dtype=dtype, attn_implementation="sdpa", output_loading_info=True
    )
    left = {
        kind: sorted(info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(kind)
    }
    if left:
        raise ENGINE_EXPORT_UNPROVEN.error(
            base or export, f"transformers reports {json.dumps(left, default=str)[:400]}"
        )
    if base is not None:
        adapted = PeftModel.from_pretrained(model, export)
        unread = [name for name, _ in adapted.named_parameters() if is_adapter(name)]
        if len(unread) == 0:
            raise ENGINE_EXPORT_UNPROVEN.error(export, "PEFT found no adapter in the folder")
        model = adapted.merge_and_unload()
    return model.to(device).eval()
