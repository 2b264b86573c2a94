"""Inference: a model answers questions about videos and images that nobody has answered yet."""

from __future__ import annotations

from vidqa.actions._base import Action, DataSet, ModelKey, Parent, Resuming, Sampling
from vidqa.actions.evaluate import longest_prompt, vllm_python

INFERENCE = Action(
    name="inference",
    spec="vidqa.spec.models:InferenceSpec",
    tables=("dataset", "model", "inference", "vision", "generation", "num_gpus"),
    output_key="results_dir",
    models=(ModelKey("model.model_name"), ModelKey("model.base_model_path", only_with="model.enable_lora")),
    data=(DataSet("asked", "dataset.annotation_path", "dataset.media_dir", root="eval"),),
    decoding="engine",
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
    exclusive=(("vision.fps", "vision.nframes", "SPEC_FPS_AND_NFRAMES"),),
    parent=Parent("best", "vidqa.spec.sources:exported"),
    processes=lambda spec: spec.num_gpus,
    processes_key="num_gpus",
    interpreters=lambda spec: vllm_python(spec, spec.inference.generator),
    resuming=Resuming("inference.skip_saved", same_inputs=True),
    outcome="vidqa.jobs.outcome:of_inference",
    program="vidqa.engine.inference:inference",
    answering="inference",
    sampling=Sampling(
        planner="vidqa.planning.samples:evaluation_planner",
        vision="vision",
        length_key="model.max_length",
        longest=longest_prompt,
        limit=lambda spec: None if spec.inference.limit < 0 else spec.inference.limit,
        prompt=lambda spec: spec.inference.prompt,
        windows=lambda spec: (spec.inference.window_s, spec.inference.overlap_s),
    ),
    needs_answers=False,
)
