"""What all actions have in common that put questions to a model: its keys, its processes, its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vidqa.actions._base import Action, DataSet, ModelKey, Parent, RecordSampling, Resuming


def longest_prompt(spec: Any) -> int:
    """Tokens that a question may have: the answer has room after it."""
    return spec.model.max_length - spec.generation.max_tokens


def asking(name: str, table: str, *, data: str, sampling: Mapping[str, Any] | None = None, **others: Any) -> Action:
    """An action that puts the records of a set, which reports call `data`, to a model. `table` is the one of its spec
    that says how: batch_size, seed, generator, skip_saved, limit."""

    def interpreters(spec: Any) -> dict[str, str]:
        return {"engine.vllm.python": "vllm"} if getattr(spec, table).generator == "vllm" else {}

    def limit(spec: Any) -> int | None:
        most = getattr(spec, table).limit
        return None if most < 0 else most

    return Action(
        name=name,
        output_key="results_dir",
        models=(ModelKey("model.model_name"), ModelKey("model.base_model_path", only_with="model.enable_lora")),
        data=(DataSet(data, "dataset.annotation_path", "dataset.media_dir", root="eval"),),
        decoding="engine",
        exclusive=(("vision.fps", "vision.nframes", "SPEC_FPS_AND_NFRAMES"),),
        parent=Parent("best", "vidqa.spec.sources:exported"),
        processes=lambda spec: spec.num_gpus,
        processes_key="num_gpus",
        interpreters=interpreters,
        resuming=Resuming(f"{table}.skip_saved", same_inputs=True),
        answering=table,
        sampling=RecordSampling(
            planner="vidqa.planning.samples:evaluation_planner",
            vision="vision",
            length_key="model.max_length",
            longest=longest_prompt,
            limit=limit,
            **(sampling or {}),
        ),
        **others,
    )
