"""The type of checks, the list of all checks in the order of running and reporting, and the result of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from vidqa.core.problem import Problem, ProblemError, bounded
from vidqa.preflight import (
    answering_checks,
    budget_checks,
    data_checks,
    disk_checks,
    environment_checks,
    media_checks,
    memory_checks,
    model_checks,
    quantize_checks,
    spec_checks,
)
from vidqa.preflight.inputs import Inputs, Skip


class AtLaunch(Enum):
    """Conditions for running a check at a launch without a passed report."""

    ALWAYS = "always"
    NEVER = "it decodes, only informs, or is part of the launch itself"
    HERE = "the job runs on this machine and in this environment"
    OUTPUT = "the output folder is on this machine"
    NEW_OUTPUT = "the output folder is on this machine, and the run is new"
    CHECKPOINT = "the checkpoint that it resumes is on this machine"


@dataclass(frozen=True)
class Check:
    """One check. `needs` names the parts of the inputs without which it is blocked or skipped; `leaks` marks checks
    that compare two sets, which can be run separately."""

    group: str
    name: str
    run: Callable[[Inputs], list[Problem]]
    needs: tuple[str, ...] = ()
    at_launch: AtLaunch = AtLaunch.ALWAYS
    leaks: bool = False


def _gpu_memory(inputs: Inputs) -> list[Problem]:
    training = inputs.training
    return memory_checks.memory(inputs, training) if training else answering_checks.memory(inputs)


CHECKPOINT, HERE, NEVER = AtLaunch.CHECKPOINT, AtLaunch.HERE, AtLaunch.NEVER
OUTPUT, NEW_OUTPUT = AtLaunch.OUTPUT, AtLaunch.NEW_OUTPUT
CHECKS = (
    Check("environment", "packages", environment_checks.packages, (), HERE),
    Check("environment", "packages of options", environment_checks.optional_packages, ("spec",), HERE),
    Check("environment", "packages of the model", environment_checks.model_packages, ("models",), HERE),
    Check("environment", "torch and torchvision", environment_checks.torch_pair, (), HERE),
    Check("environment", "GPUs", environment_checks.gpus),
    Check("environment", "8-bit products", environment_checks.eight_bits, ("spec",)),
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
    Check("budget", "GPU memory", _gpu_memory, ("planned",)),
    Check("budget", "methods", memory_checks.methods, ("model_folder",), NEVER),
    Check("budget", "host memory", memory_checks.host_memory, ("model_folder",), HERE),
    Check("budget", "time", budget_checks.time, ("planned",), NEVER),
    Check("budget", "answer length", answering_checks.answer_length, ("annotations",)),
    Check("platform", "job", environment_checks.suitable, ("spec",), NEVER),
    Check("platform", "ports", environment_checks.ports, (), HERE),
)
# Further checks of single actions, which refer to them.
ANSWERING = (
    Check("model", "models of metrics", answering_checks.metric_folders, ("spec",)),
    Check("spec", "scoring function", answering_checks.scoring_function, ("spec",)),
    Check("data", "new to the model", data_checks.new_to_model, ("sets",), NEVER),
)
EMBEDDING = (Check("model", "text model", answering_checks.text_model, ("spec",)),)
QUANTIZING = (
    Check("model", "quantized modules", quantize_checks.modules, ("models",)),
    Check("spec", "evaluation of the quantized model", quantize_checks.evaluation_file, ("spec",)),
    Check("budget", "calibration samples", quantize_checks.samples, ("planned",)),
    Check("budget", "room to quantize", quantize_checks.room, ("planned",)),
)
GROUPS = ("environment", "model", "spec", "data", "media", "budget", "platform")
LEAKS = "leaks"  # a group name: checks that compare training and KPI set, without the model


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: "ok", "warning", "error", "skipped" (it does not apply) or "blocked" (an input is
    unavailable because of the problems `blocked_by`); `why` is the reason why it did not run."""

    group: str
    name: str
    status: str
    problems: list[Problem]
    why: str = ""
    blocked_by: tuple[Problem, ...] = ()


def run_check(check: Check, inputs: Inputs) -> CheckResult:
    part = ""
    try:
        for part in check.needs:
            getattr(inputs, part)
    except ProblemError as missing:
        first = missing.problems[0]
        why = f"{part} is unavailable: {first.code} at {first.where}"
        return CheckResult(check.group, check.name, "blocked", [], why, tuple(missing.problems))
    except Skip as reason:
        return CheckResult(check.group, check.name, "skipped", [], str(reason))
    try:
        problems = bounded(check.run(inputs))
    except Skip as reason:
        return CheckResult(check.group, check.name, "skipped", [], str(reason))
    except ProblemError as stopped:
        problems = bounded(stopped.problems)
    severities = {problem.severity for problem in problems}
    status = "error" if "error" in severities else "warning" if problems else "ok"
    return CheckResult(check.group, check.name, status, problems)
