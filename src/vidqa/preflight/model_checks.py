"""Checks of credentials and model: the hub grants access, the folder is complete, the architecture is supported."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from vidqa.core import environment
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.storage import hub
from vidqa.families import family_of, quantization_of, require_plain_weights
from vidqa.families.chat import load_chat
from vidqa.families.problems import MODEL_BROKEN
from vidqa.families.weights import check_weights, weight_bytes, weight_files
from vidqa.jobs.job_spec import model_names
from vidqa.planning.adapters import CONFIG, adapter_problems, base_problems, check_adapter
from vidqa.preflight.inputs import Inputs
from vidqa.preflight.problems import TIED_ADAPTER
from vidqa.spec import check_with_heads
from vidqa.spec.schedule import part_problems

TIED = ("embed_tokens", "lm_head")


def access(inputs: Inputs) -> list[Problem]:
    """Check that the token has read access to every hub model, or that the model's folder exists."""
    inputs.facts["hf_token"] = "set" if environment.hf_token() else "not set"
    problems = []
    inputs.require_visible(*model_names(inputs.spec).values())
    for key, name in model_names(inputs.spec).items():
        try:
            if hub.is_hub_name(name):
                hub.ask(name, token=environment.hf_token())
            else:
                hub.resolve_model(name, token=None)
        except ProblemError as refused:
            problems += [replace(problem, where=f"{key} = {problem.where}") for problem in refused.problems]
    return problems


def weights(inputs: Inputs) -> list[Problem]:
    """Check that every weight file is complete. The launch downloads missing weights of a hub model."""
    problems = []
    for key, folder in inputs.models.items():
        if hub.is_hub_name(model_names(inputs.spec)[key]) and not weight_files(folder):
            inputs.facts["weights"] = "fetched at launch"
            continue
        problems += check_weights(folder)
    if not problems:
        folder = inputs.model_folder
        packed = bool(quantization_of(folder))  # one number of the file may hold several weights
        inputs.facts["parameters"] = (not packed and weight_bytes(folder).parameters) or architecture_parameters(folder)
    return problems


def architecture_parameters(folder: Path) -> int:
    """The number of parameters of a model by its config.json, for weights in a single file that is not downloaded."""
    family = family_of(folder)
    return sum(tensor.numel for tensor in family.tensors(family.sizes_of(folder)))


def architecture(inputs: Inputs) -> list[Problem]:
    """Check for a supported family, valid sizes, heads for each rank of a group, and the ranks of an adapter."""
    inputs.facts["family"] = inputs.family.name
    sizes = inputs.sizes
    first, *base = inputs.models.values()
    if base:
        check_adapter(first)
    if base or any(data.is_trained_on for data in inputs.declared_action.data):
        require_plain_weights(inputs.model_folder, f"{inputs.action} begins with")
    return check_with_heads(inputs.training.policy, sizes.text.kv_heads) if inputs.training else []


def continued_adapter(inputs: Inputs) -> list[Problem]:
    """Check that the adapter to continue is of this base model, by its tensors and, if available, its weights' hash. A
    run that resumes reads its own checkpoint instead."""
    lora = inputs.training.policy.lora if inputs.training else None
    if inputs.training is None or lora is None or not lora.lora_path:
        return []
    folder = Path(os.path.expanduser(lora.lora_path))
    if not os.path.isfile(folder / CONFIG):
        what = f"it contains no {CONFIG}" if os.path.isdir(folder) else "there is no such folder"
        return [MODEL_BROKEN.at(f"policy.lora.lora_path = {folder}", what)]
    added = {part.name: part.shape for part in inputs.parameters(inputs.training) if part.added}
    problems = adapter_problems(folder, added, inputs.training.policy.quantization)
    has_weights = not problems and bool(weight_files(inputs.model_folder))
    return [*problems, *(base_problems(folder, inputs.model_folder) if has_weights else [])]


def learning_rates(inputs: Inputs) -> list[Problem]:
    """Check that every part of the model with a learning rate trains, and every trained part has a rate."""
    if inputs.training is None:
        return []
    trained = [part.name for part in inputs.parameters(inputs.training) if part.trains]
    return part_problems(inputs.training.train.optm_lr, trained)


def tied_adapters(inputs: Inputs) -> list[Problem]:
    """Check tied embeddings: head and embedding share a matrix, so that only one of them may have an adapter."""
    lora = inputs.training.policy.lora if inputs.training else None
    if lora is None or not inputs.sizes.text.tied:
        return []
    named = [module for module in lora.target_modules if module.rsplit(".", 1)[-1] in TIED]
    message = "the model ties its head to its token embeddings, and an adapter on one leaves the other unchanged"
    return [
        TIED_ADAPTER.at("policy.lora.target_modules", f"{module}: {message}", severity="warning") for module in named
    ]


def processor(inputs: Inputs) -> list[Problem]:
    """Check that the processor's files define how videos become patches."""
    inputs.family.geometry(inputs.model_folder)
    return []


def tokenizer(inputs: Inputs) -> list[Problem]:
    load_chat(inputs.model_folder)
    return []
