"""LoRA exports: an adapter folder for stock PEFT, or a model folder with LoRA merged into the base by stock PEFT. Both
have the processor and tokenizer of the base model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from vidqa.core.files import read_object, write_json
from vidqa.core.run_folder import MERGED_LORA
from vidqa.engine.distributed import World
from vidqa.engine.export._base import ExportFormat, Trained
from vidqa.engine.export.weights import WEIGHTS, load_weights
from vidqa.engine.export.writing import copy_settings, rows_as_trained, shapes_of, write_from_all_ranks
from vidqa.engine.families import family_of
from vidqa.engine.loading.freeze import is_adapter, is_added, lora_config
from vidqa.engine.loading.safetensors_reader import stored_tensors
from vidqa.engine.model.quantized_base import round_layers
from vidqa.families._base import read_json
from vidqa.families.problems import MODEL_BROKEN
from vidqa.planning.adapters import CONFIG, PRECISION, adapter_name, base_precision, check_adapter
from vidqa.spec.adapter_keys import FIELDS, read_config

if TYPE_CHECKING:
    from peft import PeftModel  # with bitsandbytes beside it, importing it takes seconds

STEM = "adapter_model"
TIED = "tie_word_embeddings"
OF_WHOLE_MODELS = ("config.json", "generation_config.json")  # with them the folder would look like a whole model


def _write(trained: Trained, name: str, world: World) -> Path:
    trains = [inside for inside in sorted(trained.parameters) if is_added(inside)]
    names = {adapter_name(inside): inside for inside in trains if ".original_module." not in inside}

    def settings(folder: Path) -> None:
        copy_settings(trained.base, folder, trained.capped, without=OF_WHOLE_MODELS)
        config = lora_config(trained.lora)
        config.base_model_name_or_path = str(trained.base)
        config.inference_mode = True
        if isinstance(config.target_modules, set):  # which PEFT would write in a different order in every run
            config.target_modules = sorted(config.target_modules)
        config.save_pretrained(folder)
        # PEFT sorts the patterns, of which the first that matches a module decides, and ignores the key PRECISION.
        facts = {"rank_pattern": config.rank_pattern, "alpha_pattern": config.alpha_pattern}
        facts |= {PRECISION: trained.precision} if trained.precision else {}
        write_json(folder / CONFIG, read_object(folder / CONFIG) | facts)

    shapes, rows = shapes_of(trained, names), rows_as_trained(trained, names, world)
    return write_from_all_ranks(trained, name, STEM, shapes, rows, world, settings)


def _check(export: Path, base: Path) -> None:
    """Compare the ranks with the config; stock PEFT compares the adapter with the base model when loading."""
    check_adapter(export)


def _load(export: Path, base: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The base model with the adapter merged by stock PEFT; every tensor of the file must be used. If the adapter was
    trained on a quantized base, the base gets the rounded values."""
    adapted, precision = load_adapted(export, base, dtype), base_precision(export)
    # Merged on its device: a CPU core takes ten seconds for a 2B model.
    adapted.to(device)
    if precision:
        model = adapted.base_model.model
        round_layers(family_of(model).decoder_units(model), precision)
    return adapted.merge_and_unload().eval()


def load_adapted(export: Path, base: Path, dtype: torch.dtype) -> PeftModel:
    """The base model with the adapter as a separate PEFT module, in host memory."""
    from peft import PeftModel, get_peft_model_state_dict

    model = load_weights(base, dtype)
    check_adapter(export)
    stored = set(stored_tensors(export))
    if model.config.tie_word_embeddings and any(_is_of_tied(name) for name in stored):
        _untie(model)
    try:
        adapted = PeftModel.from_pretrained(model, export)
    except (OSError, SafetensorError, ValueError) as broken:
        raise MODEL_BROKEN.error(export, f"PEFT cannot load it: {broken}") from broken
    except RuntimeError as unlike:
        raise MODEL_BROKEN.error(export, f"the adapter is for another model: {unlike}") from unlike
    # PEFT only warns of missing names; an adapter that changes nothing must not pass. If PEFT itself stored an adapter
    # of embeddings, the base model's embeddings may be in the same file.
    needed = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    allowed = set(get_peft_model_state_dict(adapted, save_embedding_layers=True))
    if different := (needed - stored) | (stored - allowed):
        message = f"{len(different)} tensor names of the adapter are not the model's: {sorted(different)[:3]}"
        raise MODEL_BROKEN.error(export, message)
    return adapted


@torch.no_grad()
def merge_in_float32(adapted: PeftModel) -> Any:
    """Merge a base and its adapter into a plain model: each sum is computed in float32 and rounded once."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in adapted.modules():
        if isinstance(module, BaseTunerLayer) and isinstance(base := module.get_base_layer(), nn.Module):
            dtype = next(base.parameters()).dtype
            module.float().merge()
            module.to(dtype)
    return adapted.unload().eval()


def _is_of_tied(name: str) -> bool:
    return is_adapter(name) and any(f".{part}.lora_" in name for part in ("embed_tokens", "lm_head"))


def _untie(model: Any) -> None:
    """Untie the head: an adapter on the head or on the embeddings belongs to one of them, and merging it into the
    shared weights would change the other as well."""
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False


ADAPTER = ExportFormat("adapter", STEM, _write, _check, _load)


def merged_adapter(exports: Path, base: Path, adapter: Path, dtype: torch.dtype, capped: Any) -> Trained:
    """The source for an export into `exports` of the adapter in the folder `adapter`, trained from the folder `base`.
    Holds the whole model in host memory. An adapter of a quantized base is merged into the unquantized one, in float32.
    Raises as `ADAPTER.load` does."""
    if base_precision(adapter):
        model = merge_in_float32(load_adapted(adapter, base, dtype))
    else:
        model = ADAPTER.load(adapter, base, dtype, torch.device("cpu"))
    config, parameters = read_config(adapter), dict(model.named_parameters())
    lora = {key: config.get(name) for key, name in FIELDS.items()}
    return Trained(exports, base, lora, dtype, parameters, parameters, capped)


def _write_merged(trained: Trained, name: str, world: World) -> Path:
    """Write a merged model; called by one process."""
    folder = WEIGHTS.write(trained, name, world)
    # An adapter on a tied head or its embeddings belongs to one of them: after merging, their weights differ.
    untied = "lm_head.weight" in trained.parameters and bool(read_json(trained.base, "config.json").get(TIED))
    if untied:
        _untie_settings(folder)
    write_json(folder / MERGED_LORA, {"schema_version": 1, "lora": trained.lora, "head_untied": untied})
    return folder


def _untie_settings(folder: Path) -> None:
    config = read_json(folder, "config.json")
    config[TIED] = False
    for table in config.values():
        if isinstance(table, dict) and TIED in table:
            table[TIED] = False
    write_json(folder / "config.json", config)


MERGED = ExportFormat("merged", WEIGHTS.stem, _write_merged, WEIGHTS.check, WEIGHTS.load)
