"""Every check, in the order of running and reporting."""

from __future__ import annotations

from vidqa.preflight import (
    answering_checks,
    budget_checks,
    data_checks,
    disk_checks,
    environment_checks,
    gpu_checks,
    media_checks,
    memory_checks,
    model_checks,
    spec_checks,
    time_checks,
)
from vidqa.preflight._base import AtLaunch, Check

CHECKPOINT, HERE, NEVER = AtLaunch.CHECKPOINT, AtLaunch.HERE, AtLaunch.NEVER
OUTPUT, NEW_OUTPUT = AtLaunch.OUTPUT, AtLaunch.NEW_OUTPUT
CHECKS = (
    Check("environment", "packages", environment_checks.packages, (), HERE),
    Check("environment", "packages of options", environment_checks.optional_packages, ("spec",), HERE),
    Check("environment", "packages of the model", environment_checks.model_packages, ("models",), HERE),
    Check("environment", "torch and torchvision", environment_checks.torch_pair, (), HERE),
    Check("environment", "GPUs", gpu_checks.gpus),
    Check("environment", "8-bit products", gpu_checks.eight_bits, ("spec",)),
    Check("environment", "open files", environment_checks.open_files, (), HERE),
    Check("environment", "output folder", environment_checks.output_folder, ("spec",), OUTPUT),
    Check("environment", "disk", disk_checks.disk, ("model_folder",), NEW_OUTPUT),
    Check("environment", "shared memory", environment_checks.shared_memory, ("spec",), HERE),
    Check("model", "access", model_checks.access, ("spec",), NEVER),
    Check("model", "weights", model_checks.weights, ("models",)),
    Check("model", "architecture", model_checks.architecture, ("models",)),
    Check("model", "adapter to continue", model_checks.continued_adapter, ("models",)),
    Check("model", "learning rates", model_checks.learning_rates, ("models",)),
    Check("model", "tied adapters", model_checks.tied_adapters, ("models",)),
    Check("model", "processor", model_checks.processor, ("models",)),
    Check("model", "tokenizer and chat template", model_checks.tokenizer, ("models",)),
    Check("spec", "rules", spec_checks.rules),
    Check("spec", "rules of the evaluation", spec_checks.evaluation_rules),
    Check("spec", "same model in the evaluation", spec_checks.same_model, ("spec", "evaluation")),
    Check("spec", "same frames in the evaluation", spec_checks.same_frames, ("spec", "evaluation")),
    Check("spec", "checkpoint to resume", spec_checks.resume_target, ("spec",), CHECKPOINT),
    Check("data", "annotations", data_checks.records, ("spec",), leaks=True),
    Check("data", "sets apart", data_checks.disjoint, ("sets",), leaks=True),
    Check("data", "pairs", data_checks.pairs, ("annotations",)),
    Check("data", "answers", data_checks.answers, ("sets",), NEVER),
    Check("data", "rewards", data_checks.rewards, ("sets",)),
    Check("media", "headers", media_checks.probed, ("headers",)),
    Check("media", "planned frames", media_checks.decoded, ("to_decode",), NEVER),
    Check("media", "near duplicates", media_checks.near_duplicates, ("sets",), NEVER, leaks=True),
    Check("budget", "tokens", budget_checks.tokens, ("planned",)),
    Check("budget", "frame cache", disk_checks.frame_cache, ("to_decode",), NEVER),
    Check("budget", "steps", budget_checks.steps, ("annotations",)),
    Check("budget", "shared videos", budget_checks.sharing, ("planned",), NEVER),
    Check("budget", "GPU memory", memory_checks.memory, ("planned",)),
    Check("budget", "methods", memory_checks.methods, ("model_folder",), NEVER),
    Check("budget", "host memory", memory_checks.host_memory, ("model_folder",), HERE),
    Check("budget", "time", time_checks.time, ("planned",), NEVER),
    Check("budget", "answer length", answering_checks.answer_length, ("annotations",)),
    Check("platform", "job", environment_checks.suitable, ("spec",), NEVER),
    Check("platform", "ports", environment_checks.ports, (), HERE),
)
GROUPS = ("environment", "model", "spec", "data", "media", "budget", "platform")
LEAKS = "leaks"  # a group name: checks that compare training and KPI set, without the model
