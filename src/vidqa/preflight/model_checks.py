"""Credentials and model: the hub grants access, the folder is complete, the architecture is supported."""

from __future__ import annotations

from pathlib import Path

from vidqa.contract import environment
from vidqa.contract.problem import Problem, ProblemError
from vidqa.families import family_of, quantization_of, require_plain_weights
from vidqa.families.adapters import check_adapter
from vidqa.families.chat import load_chat
from vidqa.families.weights import check_weights, weight_bytes, weight_files
from vidqa.jobs.job_spec import model_names
from vidqa.preflight._base import Context
from vidqa.preflight.problems import TIED_ADAPTER
from vidqa.spec import check_with_heads
from vidqa.storage import hub

TIED = ("embed_tokens", "lm_head")


def access(context: Context) -> list[Problem]:
    """The token may read every hub model, or the model's folder exists."""
    context.facts["hf_token"] = "set" if environment.hf_token() else "not set"
    problems = []
    context.require_seen(*model_names(context.spec).values())
    for key, name in model_names(context.spec).items():
        try:
            if hub.is_hub_name(name):
                hub.ask(name, token=environment.hf_token())
            else:
                hub.resolve_model(name, token=None)
        except ProblemError as refused:
            problems += [_at(key, problem) for problem in refused.problems]
    return problems


def weights(context: Context) -> list[Problem]:
    """Every weight file is complete. Missing weights of a hub model are downloaded by the launch."""
    problems = []
    for key, folder in context.models.items():
        if hub.is_hub_name(model_names(context.spec)[key]) and not weight_files(folder):
            context.facts["weights"] = "fetched at launch"
            continue
        problems += check_weights(folder)
    if not problems:
        folder = context.processor_folder
        packed = bool(quantization_of(folder))  # one number of the file may hold several weights
        context.facts["parameters"] = (not packed and weight_bytes(folder).parameters) or architecture_parameters(
            folder
        )
    return problems


def architecture_parameters(folder: Path) -> int:
    """The parameters of a model by its config.json, for weights that are one file and not here."""
    family = family_of(folder)
    return sum(tensor.numel for tensor in family.tensors(family.sizes_of(folder)))


def architecture(context: Context) -> list[Problem]:
    """A supported family with valid sizes, and heads for each rank of a context; for an adapter also its ranks."""
    family = family_of(context.processor_folder)
    context.facts["family"] = family.name
    sizes = family.sizes_of(context.processor_folder)
    first, *base = context.models.values()
    if base:
        check_adapter(first)
    if base or any(data.teaches for data in context.declared_action.data):
        require_plain_weights(context.processor_folder, f"{context.action} begins with")
    return check_with_heads(context.training.policy, sizes.text.kv_heads) if context.training else []


def tied_adapters(context: Context) -> list[Problem]:
    """A tied head shares the matrix of the embeddings: an adapter may be on one of them only."""
    lora = context.training.policy.lora if context.training else None
    if lora is None or not family_of(context.processor_folder).sizes_of(context.processor_folder).text.tied:
        return []
    named = [each for each in lora.target_modules if each.rsplit(".", 1)[-1] in TIED]
    message = "the model ties its head to its token embeddings, and an adapter on one of them leaves the other as it is"
    return [TIED_ADAPTER.at("policy.lora.target_modules", f"{each}: {message}", severity="warning") for each in named]


def processor(context: Context) -> list[Problem]:
    """The processor's own files say how videos become patches."""
    family_of(context.processor_folder).geometry(context.processor_folder)
    return []


def tokenizer(context: Context) -> list[Problem]:
    load_chat(context.processor_folder)
    return []


def _at(key: str, problem: Problem) -> Problem:
    return Problem(**{**problem.as_dict(), "where": f"{key} = {problem.where}"})  # type: ignore[arg-type]
