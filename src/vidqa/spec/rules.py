"""Rules that look at several keys at once, and rules that need to know the data."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vidqa.core.actions import action_for, resolve
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec import problems as codes
from vidqa.spec.adapter_keys import differences, is_adapter
from vidqa.spec.evaluate_tables import METRIC_MODELS, is_folder, metric_models
from vidqa.spec.learning_rates import shape_problems
from vidqa.spec.models import EmbedSpec, EvaluateSpec, GrpoSpec, InferenceSpec, QuantizeSpec, Spec, TrainSpec
from vidqa.spec.native_support import native_problems
from vidqa.spec.policy_tables import Lora, Policy
from vidqa.spec.run_lookup import ADAPTER, EXPORTS
from vidqa.spec.run_tables import Vision
from vidqa.spec.schedule import effective_batch, steps_per_epoch, total_steps, warmup_steps

VIDEO_LENGTH = 40960  # tokens below which a video sample may not fit
HF_MODEL = re.compile(r"^hf_model://[\w.-]+/[\w.-]+(@[\w./-]+)?$")
HUB_NAME = re.compile(r"([\w.-]+/)?[\w.-]+")
HIGHEST_RATE = {"a full fine-tune": 1e-4, "LoRA": 1e-3}
BARE_ID = re.compile(r"^[\w-][\w.-]*/[\w.-]+$")
KEEP_ONE = "keep one: fps for clips of different length, nframes for the same cost per clip"
VALIDATE = (
    "set validation.enable to true and one set to validate on (custom.val_dataset, or "
    "train.train_policy.dataset.test_size such as 0.1), or validation.enable to false and none"
)
VISION_TARGETS = ("all-linear", "attn.qkv", "attn.proj")


@dataclass(frozen=True)
class DataFacts:
    """What rules need to know of the data, after any split: samples that train, samples that validate, and the
    tokens of the longest training sample where they have been counted."""

    train_samples: int
    val_samples: int
    longest_tokens: int | None = None


def check(spec: Spec, target: str = "native") -> list[Problem]:
    """Every problem that can be seen without the data. `target` is "native" or "cosmos-rl"."""
    problems = list(resolve(action_for(spec).rules)(spec))
    return problems + (native_problems(spec) if target == "native" else [])


def check_with_data(spec: TrainSpec, facts: DataFacts, target: str = "native") -> list[Problem]:
    """Everything that `check` finds, in the light of the data, and the data's own rules: it replaces `check`."""
    problems = check(spec, target)
    if facts.longest_tokens is not None:
        problems = [problem for problem in problems if problem.code != codes.MODEL_MAX_LENGTH.name]
    return [*problems, *_length_rules(spec, facts), *_step_rules(spec, facts)]


def check_with_gpus(spec: Spec, gpus: int) -> list[Problem]:
    """SPEC_DP_MISMATCH where the spec's ranks are not the job's GPUs."""
    declared = action_for(spec)
    count = declared.processes(spec)
    if count == gpus or (count < gpus and not declared.fills_gpus):
        return []
    return [codes.DP_MISMATCH.at(declared.processes_key, f"the spec asks for {count} processes, GPUs: {gpus}")]


def check_with_nodes(spec: Spec, nodes: int) -> list[Problem]:
    """SPEC_DP_MISMATCH, a warning, where GPUs that share each layer's weights are on several nodes."""
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
    """SPEC_VALUE where cp_size does not divide a model's key heads."""
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
        message = f"{samples} samples make no step of {effective_batch(spec)}"
        if isinstance(spec, GrpoSpec):
            size = spec.rollout.n_generation
            message = f"{samples} questions make no step of {effective_batch(spec)} (with {size} completions each)"
            remedy = f"set it to {max(1, samples) * size} or less"
        yield codes.ZERO_STEPS.at("train.train_batch_per_replica", message, remedy)
    elif warmup >= steps > 1:
        message = f"warm-up takes {warmup} of {steps} steps"
        yield codes.CONFLICT.at("train.optm_warmup_steps", message, "shorten the warm-up", severity="warning")
    yield from unreached_steps(spec, samples)
    if spec.validation.enable and facts.val_samples == 0:
        yield codes.CONFLICT.at("validation.enable", "validation is on and the validation set is empty", VALIDATE)


def unreached_steps(spec: TrainSpec, train_samples: int) -> Iterator[Problem]:
    """SPEC_CONFLICT, a warning with the arithmetic, where the epochs end before train.max_num_steps."""
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


def train_rules(spec: TrainSpec) -> Iterator[Problem]:
    """What is wrong with a supervised training, whatever its data."""
    yield from training_rules(spec)
    batch, micro = spec.train.train_batch_per_replica, spec.train.train_policy.mini_batch
    if batch % micro:
        message = f"train_batch_per_replica {batch} is not a multiple of mini_batch {micro}"
        near = max(micro, batch // micro * micro)
        yield codes.CONFLICT.at("train.train_batch_per_replica", message, f"set it to {near}, or mini_batch to 1")


def training_rules(spec: TrainSpec) -> Iterator[Problem]:
    """What is wrong with a training of any kind."""
    data = spec.custom.train_dataset
    yield from required("train.output_dir", spec.train.output_dir)
    yield from required("custom.train_dataset.annotation_path", data.annotation_path)
    yield from _vision(spec.custom.vision, "custom.vision")
    yield from _model_name("policy.model_name_or_path", spec.policy.model_name_or_path)
    yield from _optimizer(spec)
    yield from _validation(spec)
    yield from _uploads(spec)
    yield from _patterns(spec)
    if spec.policy.lora is not None:
        yield from _lora(spec.policy.lora)
    yield from _preference(spec)
    yield from _quantized_base(spec.policy)
    if spec.engine.share_video_prefix and not spec.engine.packing:
        message = "share_video_prefix is true and packing is false: videos are shared only inside packs"
        yield codes.CONFLICT.at("engine.share_video_prefix", message)
    if spec.train.fp8.enable_fp8 and spec.train.fsdp_offload:
        message = "enable_fp8 and fsdp_offload are both true: moving weights takes longer than fp8 saves"
        yield codes.CONFLICT.at("train.fp8.enable_fp8", message, "set one of them to false")
    if spec.train.fp8.enable_fp8 and spec.policy.lora is not None:
        message = "enable_fp8 is true, and policy.lora is set: it does not make frozen matrices faster"
        yield codes.CONFLICT.at("train.fp8.enable_fp8", message)
    if (most := spec.policy.model_max_length) < VIDEO_LENGTH:
        message = f"model_max_length is {most}; videos may need {VIDEO_LENGTH}"
        yield codes.MODEL_MAX_LENGTH.at("policy.model_max_length", message, severity="warning")


def evaluate_rules(spec: EvaluateSpec) -> Iterator[Problem]:
    """What is wrong with an evaluation, whatever its data."""
    yield from reading_rules(spec)
    for name, key in METRIC_MODELS.items():
        if name in spec.metrics.names and name not in metric_models(spec):
            message = f"{name} is not computed: metrics.{key} is {getattr(spec.metrics, key)!r}, which is no path"
            remedy = f"write ./NAME or the whole path of a model's folder there, or leave {name} out of metrics.names"
            yield codes.NO_EFFECT.at("metrics.names", message, remedy, severity="warning")


def inference_rules(spec: InferenceSpec) -> Iterator[Problem]:
    """What is wrong with an inference, whatever its data."""
    yield from reading_rules(spec)
    window, overlap = spec.inference.window_s, spec.inference.overlap_s
    if overlap and overlap >= window:
        message = f"overlap_s is {overlap:g} and window_s is {window:g}"
        yield codes.CONFLICT.at("inference.overlap_s", message, "set overlap_s below window_s")


def embed_rules(spec: EmbedSpec) -> Iterator[Problem]:
    """What is wrong with an embedding, whatever its data."""
    yield from reading_rules(spec)
    if spec.dataset.query_media_dir:
        yield from required("dataset.query_annotation_path", spec.dataset.query_annotation_path)
    if (name := spec.embed.text_model) and not is_folder(name):
        message = f"{name!r} names no folder"
        yield codes.VALUE.at("embed.text_model", message, "write ./NAME, or the whole path of a model's folder")


def reading_rules(
    spec: EvaluateSpec | InferenceSpec | EmbedSpec | QuantizeSpec, model_key: str = "model_name"
) -> Iterator[Problem]:
    """What is wrong with the records that are read, and with the model that reads them: it may be an adapter on another
    one."""
    yield from required("dataset.annotation_path", spec.dataset.annotation_path)
    yield from required("results_dir", spec.results_dir)
    yield from _vision(spec.vision, "vision")
    model = spec.model
    yield from _model_name(f"model.{model_key}", getattr(model, model_key), adapter_allowed=model.enable_lora)
    if model.enable_lora and not model.base_model_path:
        message = "enable_lora is true and base_model_path is empty"
        yield codes.VALUE.at("model.base_model_path", message, "name the adapter's base")
    elif model.enable_lora:
        yield from _model_name("model.base_model_path", model.base_model_path)


def required(path: str, value: str) -> Iterator[Problem]:
    if not value.strip():
        yield codes.VALUE.at(path, f"{path} is empty", f"set {path}")


def _vision(vision: Vision, path: str) -> Iterator[Problem]:
    if vision.fps is not None and vision.nframes is not None:
        yield codes.CONFLICT.at(f"{path}.fps", f"fps is {vision.fps:g} and nframes is {vision.nframes}", KEEP_ONE)
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
        message = f"nframes is {vision.nframes}, and bounds of the number that fps takes are set"
        yield codes.CONFLICT.at(path, message, "leave min_frames and max_frames out, or nframes")


def _model_name(path: str, name: str, *, adapter_allowed: bool = False) -> Iterator[Problem]:
    """What is wrong with the name of a whole model: empty, no name of the hub, or the folder of an adapter or a run."""
    yield from required(path, name)
    folder, merge = Path(os.path.expanduser(name)), f"python scripts/export.py {shlex.quote(name)} --merge --out FOLDER"
    if name.startswith("hf_model://"):
        if not HF_MODEL.match(name):
            yield codes.MODEL.at(path, f"{name!r} is not hf_model://org/name")
    elif BARE_ID.match(name) and not os.path.isdir(name):
        yield codes.MODEL.at(path, f"{name!r} is a bare id, and no such folder is here", f"write hf_model://{name}")
    elif not name or "://" in name or (folder / "config.json").is_file():
        return
    elif (folder / ADAPTER).is_file():
        if not adapter_allowed:
            remedy = f"merge it first: {merge}, and name FOLDER"
            yield codes.MODEL.at(path, f"{name} holds a LoRA adapter and no model", remedy)
    elif (folder / EXPORTS).is_dir():
        is_lora = (folder / "best" / ADAPTER).is_file()
        whole = f"merge its adapter: {merge}, and name FOLDER" if is_lora else f"name {folder}/best"
        remedy = f"{whole}, or leave it to --parent-run {shlex.quote(name)}"
        yield codes.MODEL.at(path, f"{name} is the folder of a run", remedy)


def _optimizer(spec: TrainSpec) -> Iterator[Problem]:
    rate = spec.train.optm_lr
    yield from shape_problems(rate)
    rates = [rate] if isinstance(rate, int | float) else list(rate.values()) if isinstance(rate, dict) else rate
    if not any(rates):
        yield codes.VALUE.at("train.optm_lr", f"the learning rate is {rate}", "set it, such as 1e-5")
    kind = "a full fine-tune" if spec.policy.lora is None else "LoRA"
    remedy = "lower train.optm_lr: about 1e-5 for a full fine-tune, 1e-4 for LoRA"
    highest = HIGHEST_RATE[kind]
    if isinstance(spec, GrpoSpec):
        highest, kind = highest / 10, f"reinforcement learning ({kind})"
        remedy = "lower train.optm_lr: about 1e-6 for full training, 1e-5 for LoRA"
    if any(value > highest for value in rates):
        message = f"the learning rate {rate} is above {highest:g}, which is high for {kind}"
        yield codes.VALUE.at("train.optm_lr", message, remedy, severity="warning")
    if spec.train.optm_warmup_steps is not None and spec.train.optm_warmup_epochs is not None:
        yield codes.CONFLICT.at("train.optm_warmup_steps", "optm_warmup_steps and optm_warmup_epochs are both set")


def _validation(spec: TrainSpec) -> Iterator[Problem]:
    annotations, part = spec.custom.val_dataset.annotation_path, spec.train.train_policy.dataset.test_size
    valid = spec.validation
    if valid.enable and not annotations and part is None:
        yield codes.CONFLICT.at("validation.enable", "neither custom.val_dataset nor test_size is set", VALIDATE)
    if valid.enable and not valid.freq and not valid.freq_in_epoch:
        yield codes.VALUE.at("validation.freq_in_epoch", "freq and freq_in_epoch are both 0", "set one of them")
    if annotations and part is not None:
        message = "custom.val_dataset is used and test_size is not"
        yield codes.CONFLICT.at("train.train_policy.dataset.test_size", message, VALIDATE, severity="warning")
    if (annotations or part is not None) and not valid.enable:
        message = "there is a validation set and validation.enable is false"
        yield codes.CONFLICT.at("validation.enable", message, VALIDATE, severity="warning")


def _uploads(spec: TrainSpec) -> Iterator[Problem]:
    ckpt = spec.train.ckpt
    if ckpt.upload_s3:
        yield from required("train.ckpt.s3_bucket", ckpt.s3_bucket or "")
    if ckpt.upload_hf and not HUB_NAME.fullmatch(ckpt.hf_repo_name):
        message = f"{ckpt.hf_repo_name!r} is not organisation/name or name"
        yield codes.VALUE.at("train.ckpt.hf_repo_name", message, "correct it")


def _patterns(spec: TrainSpec) -> Iterator[Problem]:
    policy = spec.policy
    if policy.freeze_pattern is not None and policy.trainable_pattern is not None:
        yield codes.CONFLICT.at("policy.freeze_pattern", "freeze_pattern and trainable_pattern are both set")
    groups = {"policy.freeze_pattern": policy.freeze_pattern, "policy.trainable_pattern": policy.trainable_pattern}
    if policy.lora is not None:
        groups["policy.lora.r_pattern"] = list(policy.lora.r_pattern or {})
        groups["policy.lora.alpha_pattern"] = list(policy.lora.alpha_pattern or {})
    for path, patterns in groups.items():
        yield from pattern_rules(path, patterns or [])


def pattern_rules(path: str, patterns: Iterable[str]) -> Iterator[Problem]:
    """SPEC_VALUE for patterns that are no regular expressions."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as broken:
            yield codes.VALUE.at(path, f"{pattern!r} is not a regular expression: {broken}")


def bitsandbytes_key(spec: TrainSpec) -> str | None:
    """The key that asks for bitsandbytes; None where none does."""
    if spec.policy.quantization == "nf4":
        return "policy.quantization"
    return "train.optm_name" if spec.train.optm_name == "AdamW8bit" else None


def _quantized_base(policy: Policy) -> Iterator[Problem]:
    key, precision, size = "policy.quantization", policy.quantization, policy.parallelism.cp_size
    if precision and policy.lora is None:
        message = f"quantization is {precision}, and policy.lora is absent: matrices of few bits cannot train"
        yield codes.CONFLICT.at(key, message, "build the spec with --profile small-card, or set quantization = null")
    if precision and size > 1:
        message = f"quantization is {precision}, and cp_size is {size}"
        yield codes.CONFLICT.at(key, message, "set policy.parallelism.cp_size = 1, or quantization = null")


def _preference(spec: TrainSpec) -> Iterator[Problem]:
    engine = spec.engine
    if engine.objective != "dpo":
        for name in ("dpo_beta", "dpo_label_smoothing", "dpo_sft_weight"):
            if (value := getattr(engine, name)) != type(engine).model_fields[name].default:
                message = f'{name} is {value:g}, and engine.objective is "{engine.objective}"'
                remedy = "set engine.objective to dpo, or leave it out"
                yield codes.NO_EFFECT.at(f"engine.{name}", message, remedy, severity="warning")
    elif (size := spec.policy.parallelism.cp_size) > 1:
        message = f'cp_size is {size}, and engine.objective is "dpo": GPUs of a context have parts of an answer'
        yield codes.CONFLICT.at("policy.parallelism.cp_size", message, "set it to 1")


def _lora(lora: Lora) -> Iterator[Problem]:
    yield from _continued_adapter(lora)
    if not lora.target_modules:
        yield codes.VALUE.at("policy.lora.target_modules", "the list is empty", "set it, such as all-linear")
    targets = {lora.target_modules} if isinstance(lora.target_modules, str) else set(lora.target_modules)
    saved = set(lora.modules_to_save or [])
    clash = targets & saved
    if any("visual" in module for module in saved):  # the whole vision tower trains in full
        clash |= targets & set(VISION_TARGETS)
    if clash:
        message = f"{', '.join(sorted(clash))} would have adapters and train in full through {sorted(saved)}"
        yield codes.CONFLICT.at("policy.lora.target_modules", message)


def _continued_adapter(lora: Lora) -> Iterator[Problem]:
    """What does not fit between policy.lora and the adapter that it continues, where that is on this machine."""
    path, name = "policy.lora.lora_path", lora.lora_path
    if not name:
        return
    folder = Path(os.path.expanduser(name))
    if "://" in name:
        remedy = "fetch it first: hf download ORG/NAME --local-dir FOLDER, then name FOLDER"
        yield codes.VALUE.at(path, f"{name} is no folder", remedy)
    elif folder.is_dir() and not is_adapter(folder):
        yield codes.MODEL.at(path, f"{name} holds no {ADAPTER}", "name the folder of an adapter, such as RUN/best")
    if not is_adapter(folder):
        return
    try:
        differing = differences(folder, lora)
    except ProblemError as unusable:
        yield from unusable.problems
        return
    for key, stored, value in differing:
        message = f"it is {value!r:.80}, and {stored!r:.80} in the adapter {name}"
        remedy = "leave it out: it is taken from the adapter; or leave lora_path out for a new one"
        yield codes.CONFLICT.at(f"policy.lora.{key}", message, remedy)
