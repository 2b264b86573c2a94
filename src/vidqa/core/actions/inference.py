"""Inference: a model answers questions about videos and images that nobody has answered yet."""

from __future__ import annotations

from vidqa.core.actions._reading import answering

INFERENCE = answering(
    "inference",
    "inference",
    data="asked",
    spec="vidqa.spec.models:InferenceSpec",
    tables=("dataset", "model", "inference", "vision", "generation", "num_gpus"),
    rules="vidqa.spec.rules:inference_rules",
    built_from="--parent-run RUN --set media=FOLDER",
    shorthand={  # TAO's own keys
        "model_path": "model.model_name",
        "base_model_path": "model.base_model_path",
        "enable_lora": "model.enable_lora",
        "media": "dataset.annotation_path",
        "prompt": "inference.prompt",
        "fps": "vision.fps",
        "total_pixels": "vision.total_pixels",
        "max_new_tokens": "generation.max_tokens",
    },
    outcome="vidqa.jobs.job_results:of_inference",
    program="vidqa.engine.actions.inference:inference",
    sampling={
        "prompt": lambda spec: spec.inference.prompt,
        "windows": lambda spec: (spec.inference.window_s, spec.inference.overlap_s),
    },
    needs_answers=False,
)
