"""Rules of a spec: values that our engine does not support, checks against data and GPUs, and the rules of the actions
that read records with a model. Rules of trainings are in `train_rules`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from vidqa.core.actions import action_for, resolve
from vidqa.core.files import LONGEST_NAME
from vidqa.core.problem import Problem
from vidqa.spec import problems as codes
from vidqa.spec.evaluate_tables import METRIC_MODELS, is_folder, metric_models
from vidqa.spec.keys import facts, flat, leaves
from vidqa.spec.layers import brief
from vidqa.spec.models import EmbedSpec, EvaluateSpec, GrpoSpec, InferenceSpec, QuantizeSpec, Spec, TrainSpec
from vidqa.spec.policy_tables import Policy
from vidqa.spec.quantize_tables import METHODS, few_samples, is_smoothed, needs_calibration
from vidqa.spec.run_lookup import ADAPTER, EXPORTS
from vidqa.spec.run_tables import Vision
from vidqa.spec.schedule import effective_batch, steps_per_epoch, total_steps, warmup_steps

HF_MODEL = re.compile(r"^hf_model://[\w.-]+/[\w.-]+(@[\w./-]+)?$")
BARE_ID = re.compile(r"^[\w-][\w.-]*/[\w.-]+$")
SHORTEST_STEP_S = 0.1  # between the starts of two windows
VALIDATE = (
    "set validation.enable to true and give one validation set (custom.val_dataset, or "
    "train.train_policy.dataset.test_size such as 0.1), or validation.enable to false and none"
)


@dataclass(frozen=True)
class DataFacts:
    """Facts about the data, after any split: numbers of training and validation samples, and the tokens of the longest
    training sample if they have been counted."""

    train_samples: int
    val_samples: int
    longest_tokens: int | None = None


def check(spec: Spec, target: str = "native") -> list[Problem]:
    """All problems that can be found without the data. `target` is "native" or "cosmos-rl"."""
    problems = list(resolve(action_for(spec).rules)(spec))
    return problems + (native_problems(spec) if target == "native" else [])


def check_with_data(spec: TrainSpec, facts: DataFacts) -> list[Problem]:
    """All problems of `check`, updated by facts of the data, and the rules about data: it replaces `check`."""
    problems = check(spec)
    if facts.longest_tokens is not None:
        problems = [problem for problem in problems if problem.code != codes.MODEL_MAX_LENGTH.name]
    return [*problems, *_length_rules(spec, facts), *_step_rules(spec, facts)]


def check_with_gpus(spec: Spec, gpus: int) -> list[Problem]:
    """SPEC_DP_MISMATCH if the spec's number of ranks does not match the job's GPUs."""
    declared = action_for(spec)
    count = declared.processes(spec)
    if count == gpus or (count < gpus and not declared.fills_gpus):
        return []
    return [codes.DP_MISMATCH.at(declared.processes_key, f"the spec asks for {count} processes, GPUs: {gpus}")]


def check_with_nodes(spec: Spec, nodes: int) -> list[Problem]:
    """SPEC_DP_MISMATCH, a warning, if GPUs that share each layer's weights are on several nodes."""
    if nodes < 2 or not isinstance(spec, TrainSpec):
        return []
    mesh = spec.policy.parallelism
    per_node, rest = divmod(action_for(spec).processes(spec), nodes)
    group = mesh.dp_shard_size * mesh.cp_size
    if rest or (group <= per_node and per_node % group == 0):
        return []
    message = f"{group} GPUs share each layer's weights, a node has {per_node}: they cross the network in every pass"
    inside = f"dp_shard_size = {per_node // mesh.cp_size} and dp_replicate_size = {nodes}"
    remedy = f"set {inside}, if preflight finds that the model fits" if per_node % mesh.cp_size == 0 else ""
    return [codes.DP_MISMATCH.at("policy.parallelism.dp_shard_size", message, remedy, severity="warning")]


def check_with_heads(policy: Policy, key_heads: int) -> list[Problem]:
    """SPEC_VALUE if cp_size does not divide the number of key heads of a model."""
    size = policy.parallelism.cp_size
    if key_heads % size == 0:
        return []
    possible = ", ".join(str(number) for number in range(1, key_heads + 1) if key_heads % number == 0)
    message = f"cp_size is {size}, and the model has {key_heads} key heads"
    return [codes.VALUE.at("policy.parallelism.cp_size", message, f"set it to one of {possible}")]


def _length_rules(spec: TrainSpec, facts: DataFacts) -> Iterator[Problem]:
    longest, most = facts.longest_tokens or 0, spec.policy.model_max_length
    if longest > most:
        message = f"model_max_length is {most}; the longest sample has {longest} tokens"
        yield codes.MODEL_MAX_LENGTH.at("policy.model_max_length", message)
    if spec.engine.packing and spec.engine.pack_tokens is not None and longest > spec.engine.pack_tokens:
        message = f"a pack holds {spec.engine.pack_tokens} tokens; the longest sample has {longest}"
        yield codes.MODEL_MAX_LENGTH.at("engine.pack_tokens", message, "raise it, or leave it unset")


def _step_rules(spec: TrainSpec, facts: DataFacts) -> Iterator[Problem]:
    samples, remedy = facts.train_samples, None
    steps, warmup = total_steps(spec, samples), warmup_steps(spec, samples)
    if steps == 0:
        message = f"{samples} samples are fewer than one step of {effective_batch(spec)}"
        if isinstance(spec, GrpoSpec):
            size = spec.rollout.n_generation
            message = f"{samples} questions, {size} completions each: fewer than one step of {effective_batch(spec)}"
            remedy = f"set it to {max(1, samples) * size} or less"
        yield codes.ZERO_STEPS.at("train.train_batch_per_replica", message, remedy)
    elif warmup >= steps > 1:
        message = f"warm-up takes {warmup} of {steps} steps"
        yield codes.CONFLICT.at("train.optm_warmup_steps", message, "shorten the warm-up", severity="warning")
    yield from unreached_steps(spec, samples)
    if spec.validation.enable and facts.val_samples == 0:
        yield codes.CONFLICT.at("validation.enable", "validation is on and the validation set is empty", VALIDATE)


def unreached_steps(spec: TrainSpec, train_samples: int) -> Iterator[Problem]:
    """SPEC_CONFLICT, a warning with the calculation, if the epochs end before train.max_num_steps."""
    limit, per_epoch = spec.train.max_num_steps, steps_per_epoch(spec, train_samples)
    planned = spec.train.epoch * per_epoch
    if limit is None or not per_epoch or planned >= limit:
        return
    message = (
        f"max_num_steps is {limit}, and {spec.train.epoch} epochs of {per_epoch} steps ({train_samples} samples in "
        f"batches of {effective_batch(spec)}) are {planned} steps: training ends there"
    )
    remedy = f"set train.epoch to {-(-limit // per_epoch)} for {limit} steps, or leave train.max_num_steps out"
    yield codes.CONFLICT.at("train.max_num_steps", message, remedy, severity="warning")


def native_problems(spec: Spec) -> list[Problem]:
    """An error for every value that our engine does not support, a warning for every one without effect."""
    values, fields = flat(spec), leaves(action_for(spec).name)
    problems = [_native_problem(path, values[path], field) for path, field in fields.items() if path in values]
    if "tao" in values.get("logging.logger", ()):
        message = "the tracker tao is not supported"
        problems.append(codes.NO_EFFECT.at("logging.logger", message, 'use ["console"]', severity="warning"))
    return [problem for problem in problems if problem]


def _native_problem(path: str, value: Any, field: FieldInfo) -> Problem | None:
    about = facts(field)
    native, instead = about["x-native"], about.get("x-instead")
    if native == "no effect" and value != field.default:
        remedy = f"use {instead} instead" if instead else "remove it, or ignore this"
        return codes.NO_EFFECT.at(path, f"{path} = {brief(value)} has no effect here", remedy, severity="warning")
    if isinstance(native, dict) and not _allowed(native["only"], value):
        only = " or ".join(map(repr, native["only"]))
        remedy = f"use {instead} instead" if instead else f"set {path} to {only}, or use --target cosmos-rl"
        return codes.NOT_SUPPORTED.at(path, f"the native engine supports only {only}; got {brief(value)}", remedy)
    return None


def _allowed(only: list[Any], value: Any) -> bool:
    return any(value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in only)


def evaluate_rules(spec: EvaluateSpec) -> Iterator[Problem]:
    """Problems of an evaluation that can be found without the data."""
    yield from reading_rules(spec)
    for name, key in METRIC_MODELS.items():
        if name in spec.metrics.names and name not in metric_models(spec):
            message = f"{name} is not computed: metrics.{key} is {getattr(spec.metrics, key)!r}, which is not a path"
            remedy = f"write ./NAME or the full path of a model's folder there, or leave {name} out of metrics.names"
            yield codes.NO_EFFECT.at("metrics.names", message, remedy, severity="warning")


def inference_rules(spec: InferenceSpec) -> Iterator[Problem]:
    """Problems of an inference that can be found without the data."""
    yield from reading_rules(spec)
    window, overlap = spec.inference.window_s, spec.inference.overlap_s
    if (window or overlap) and round(window - overlap, 6) < SHORTEST_STEP_S:
        message = f"overlap_s is {overlap:g} and window_s is {window:g}"
        remedy = f"set overlap_s to {SHORTEST_STEP_S:g} below window_s, or less"
        yield codes.CONFLICT.at("inference.overlap_s", message, remedy)


def embed_rules(spec: EmbedSpec) -> Iterator[Problem]:
    """Problems of an embedding that can be found without the data."""
    yield from reading_rules(spec)
    if spec.dataset.query_media_dir:
        yield from required("dataset.query_annotation_path", spec.dataset.query_annotation_path)
    if (name := spec.embed.text_model) and not is_folder(name):
        message = f"{name!r} is not a folder"
        yield codes.VALUE.at("embed.text_model", message, "write ./NAME, or the full path of a model's folder")


def reading_rules(
    spec: EvaluateSpec | InferenceSpec | EmbedSpec | QuantizeSpec, model_key: str = "model_name"
) -> Iterator[Problem]:
    """Problems of the records that are read, and of the model that reads them, which may be an adapter with a base
    model."""
    yield from required("dataset.annotation_path", spec.dataset.annotation_path)
    yield from output_rules("results_dir", spec.results_dir)
    yield from vision_rules(spec.vision, "vision")
    model = spec.model
    yield from model_name_rules(f"model.{model_key}", getattr(model, model_key), adapter_allowed=model.enable_lora)
    if model.enable_lora and not model.base_model_path:
        message = "enable_lora is true and base_model_path is empty"
        yield codes.VALUE.at("model.base_model_path", message, "set it to the adapter's base model")
    elif model.enable_lora:
        yield from model_name_rules("model.base_model_path", model.base_model_path)


def required(path: str, value: str) -> Iterator[Problem]:
    if not value.strip():
        yield codes.VALUE.at(path, f"{path} is empty", f"set {path}")


def output_rules(path: str, folder: str) -> Iterator[Problem]:
    """SPEC_VALUE if an output folder has no name, or one that no file system allows."""
    yield from required(path, folder)
    if any(len(name.encode()) > LONGEST_NAME for name in folder.split("/")):
        yield codes.VALUE.at(path, f"a name in it has more than {LONGEST_NAME} bytes", "shorten it")


def vision_rules(vision: Vision, path: str) -> Iterator[Problem]:
    if vision.fps is not None and vision.nframes is not None:
        remedy = "keep one: fps for clips of different length, nframes for the same cost per clip"
        yield codes.CONFLICT.at(f"{path}.fps", f"fps is {vision.fps:g} and nframes is {vision.nframes}", remedy)
    if vision.fps is None and vision.nframes is None:
        yield codes.VALUE.at(path, "fps and nframes are both unset", "set nframes (8) or fps (2)")
    if (vision.resized_height is None) != (vision.resized_width is None):
        yield codes.CONFLICT.at(path, "one of resized_height and resized_width is set", "set both or none")
    pixels = [name for name in ("total_pixels", "max_pixels", "min_pixels") if getattr(vision, name) is not None]
    if vision.resized_height is not None and pixels:
        yield codes.CONFLICT.at(path, f"resized_height is set, and so is {' and '.join(pixels)}")
    for low, high in (("min_pixels", "max_pixels"), ("min_frames", "max_frames"), ("video_start", "video_end")):
        least, most = getattr(vision, low), getattr(vision, high)
        if least is not None and most is not None and (least > most or (least == most and low == "video_start")):
            yield codes.CONFLICT.at(f"{path}.{low}", f"{low} is {least:g} and {high} is {most:g}")
    if vision.nframes is not None and (vision.min_frames is not None or vision.max_frames is not None):
        message = f"nframes is {vision.nframes}, but min_frames and max_frames bound fps sampling only"
        yield codes.CONFLICT.at(path, message, "leave min_frames and max_frames out, or nframes")


def model_name_rules(path: str, name: str, *, adapter_allowed: bool = False) -> Iterator[Problem]:
    """Problems with the name of a whole model: empty, no name of the hub, or the folder of an adapter or a run."""
    yield from required(path, name)
    folder, merge = Path(os.path.expanduser(name)), f"python scripts/export.py {shlex.quote(name)} --merge --out FOLDER"
    if name.startswith("hf_model://"):
        if not HF_MODEL.match(name):
            yield codes.MODEL.at(path, f"{name!r} is not hf_model://org/name")
    elif os.path.isfile(folder):
        yield codes.MODEL.at(
            path, f"{name} is a file", "name the folder of the model, hf_model://org/name, or RUN/best"
        )
    elif BARE_ID.match(name) and not os.path.isdir(name):
        parent = os.path.dirname(name)
        mistyped = f"name another folder in {parent}, or " if os.path.isdir(parent) else ""
        remedy = f"{mistyped}write hf_model://{name}"
        yield codes.MODEL.at(path, f"{name!r} is a bare id, and no such folder exists", remedy)
    elif not name or "://" in name or os.path.isfile(folder / "config.json"):
        return
    elif os.path.isfile(folder / ADAPTER):
        if not adapter_allowed:
            remedy = f"merge it first: {merge}, then give FOLDER"
            yield codes.MODEL.at(path, f"{name} contains a LoRA adapter, not a model", remedy)
    elif os.path.isdir(folder / EXPORTS):
        remedy = f"build the spec with --model {shlex.quote(f'{folder}/best')}"
        yield codes.MODEL.at(path, f"{name} is the folder of a run", remedy)


def quantize_rules(spec: QuantizeSpec) -> Iterator[Problem]:
    """Problems of a quantization that can be found without the data."""
    quantize = spec.quantize
    yield from reading_rules(spec, "model_path")
    scheme, method = quantize.quantization_scheme, quantize.method
    if scheme not in METHODS.get(method, (scheme,)):
        message = f"method is {method!r} and quantization_scheme is {scheme}"
        possible = ", ".join(name for name in ("auto", "rtn", *METHODS) if scheme in METHODS.get(name, (scheme,)))
        yield codes.CONFLICT.at("quantize.method", message, f"set quantize.method to one of {possible}")
    count = quantize.num_calibration_samples
    if needs_calibration(quantize) and (problem := few_samples(quantize, count)):
        yield codes.VALUE.at("quantize.num_calibration_samples", problem, "set it to 64 or more")
    yield from pattern_rules("quantize.keep", quantize.keep)
    if quantize.search:
        yield from required("quantize.evaluate", quantize.evaluate)
        if method == "awq" or is_smoothed(quantize):
            message = "quantize.search compares outputs of layers for the same inputs, which SmoothQuant and AWQ scale"
            yield codes.CONFLICT.at("quantize.method", message, 'set quantize.method = "gptq"')
    if quantize.evaluate and not os.path.isfile(os.path.expanduser(quantize.evaluate)):
        message = f"there is no file {quantize.evaluate!r}"
        yield codes.VALUE.at("quantize.evaluate", message, "name the spec that scripts/build_spec.py evaluate wrote")


def pattern_rules(path: str, patterns: Iterable[str]) -> Iterator[Problem]:
    """SPEC_VALUE for patterns that are not regular expressions."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as broken:
            yield codes.VALUE.at(path, f"{pattern!r} is not a regular expression: {broken}")
