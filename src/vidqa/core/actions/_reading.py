"""What all actions have in common that read records with a model which they leave as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vidqa.core.actions._base import Action, DataSet, ModelKey, Parent, RecordSampling, Resuming


def reading(
    name: str,
    table: str,
    *,
    data: str,
    more_data: tuple[DataSet, ...] = (),
    longest: Callable[[Any], int],
    sampling: Mapping[str, Any] | None = None,
    **others: Any,
) -> Action:
    """An action over a set of records, which reports call `data`, and `more_data`. `table` is the one of its spec that
    says how: batch_size, skip_saved, limit. `longest` is how many tokens of a record the model may read."""

    def limit(spec: Any) -> int | None:
        most = getattr(spec, table).limit
        return None if most < 0 else most

    return Action(
        name=name,
        output_key="results_dir",
        models=(ModelKey("model.model_name"), ModelKey("model.base_model_path", only_with="model.enable_lora")),
        data=(DataSet(data, "dataset.annotation_path", "dataset.media_dir", root="eval"), *more_data),
        decoding="engine",
        exclusive=(("vision.fps", "vision.nframes"),),
        parent=Parent("best", "vidqa.spec.parent_layers:exported"),
        processes=lambda spec: spec.num_gpus,
        processes_key="num_gpus",
        resuming=Resuming(f"{table}.skip_saved", same_inputs=True),
        sampling=RecordSampling(
            planner="vidqa.planning.samples:evaluation_planner",
            vision="vision",
            length_key="model.max_length",
            longest=longest,
            limit=limit,
            **(sampling or {}),
        ),
        **others,
    )


def answering(name: str, table: str, **others: Any) -> Action:
    """An action whose model generates answers; its table has seed and generator, too."""

    def longest(spec: Any) -> int:  # a question leaves room for its answer
        return spec.model.max_length - spec.generation.max_tokens

    return reading(name, table, longest=longest, answering=table, **others)
