"""The trainable part of the spec's model, from its config.json."""

from __future__ import annotations

from vidqa.families import family_of
from vidqa.planning.budget.memory import ParamCounts, count_params
from vidqa.planning.budget.params import Parameter, parameters
from vidqa.preflight._base import Context
from vidqa.spec.models import TrainSpec


def trained_parameters(context: Context, train_spec: TrainSpec) -> list[Parameter]:
    """Every parameter as in the engine. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
    family = family_of(context.processor_folder)
    return parameters(family.tensors(family.sizes_of(context.processor_folder)), train_spec.policy)


def trained_model(context: Context, train_spec: TrainSpec) -> ParamCounts:
    """The model for estimates. Raises MODEL_FILE_MISSING, MODEL_UNSUPPORTED."""
    sizes = family_of(context.processor_folder).sizes_of(context.processor_folder)
    return count_params(sizes, trained_parameters(context, train_spec))
