"""Quantization: a model folder with 8-bit or 4-bit weights, calibrated on training records and evaluated."""

from __future__ import annotations

from typing import Any

from vidqa.core.actions._base import Action, DataSet, ModelKey, Parent, RecordSampling


def _packages(spec: Any) -> dict[str, str]:
    return {"quantize": f'quantize.quantization_scheme = "{spec.quantize.quantization_scheme}"'}


QUANTIZE = Action(
    name="quantize",
    spec="vidqa.spec.models:QuantizeSpec",
    tables=("dataset", "model", "quantize", "vision"),
    output_key="results_dir",
    models=(ModelKey("model.model_path"), ModelKey("model.base_model_path", only_with="model.enable_lora")),
    data=(DataSet("calibration", "dataset.annotation_path", "dataset.media_dir", root="train", is_trained_on=True),),
    decoding="engine",
    reads=lambda spec: ("quantize.evaluate",) if spec.quantize.evaluate else (),
    rules="vidqa.spec.rules:quantize_rules",
    build_options="--parent-run RUN --set scheme=FP8_DYNAMIC",
    shorthand={
        "model_path": "model.model_path",
        "scheme": "quantize.quantization_scheme",
        **{
            name: f"quantize.{name}"
            for name in ("quantization_scheme", "method", "kv_precision", "group_size", "keep", "max_drop", "force")
        },
        "evaluate": "quantize.evaluate",
        "search": "quantize.search",
        "num_calibration_samples": "quantize.num_calibration_samples",
        "max_sequence_length": "quantize.max_sequence_length",
        "fps": "vision.fps",
        "nframes": "vision.nframes",
        "total_pixels": "vision.total_pixels",
    },
    exclusive=(("vision.fps", "vision.nframes"),),
    parent=Parent("best", "vidqa.spec.parent_layers:quantized"),
    packages=_packages,
    outcome="vidqa.jobs.job_results:of_quantization",
    program="vidqa.engine.quantize.run:quantize",
    sampling=RecordSampling(
        planner="vidqa.planning.samples:calibration_planner",
        vision="vision",
        length_key="quantize.max_sequence_length",
        longest=lambda spec: spec.quantize.max_sequence_length,
        held_out=lambda spec: (spec.dataset.test_size, spec.dataset.split_seed) if spec.dataset.test_size else None,
    ),
    evaluated_by="evaluate",
    evaluation=lambda spec: spec.quantize.evaluate,
    checks="vidqa.preflight.registry:QUANTIZING",
)
