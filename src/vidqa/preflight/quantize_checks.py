"""Checks of quantization: the modules, divisibility by groups, calibration samples, memory and disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vidqa.core.problem import Problem
from vidqa.planning.budget.memory import GIB
from vidqa.planning.quantization import BF16, calibration_problems, plan_quantization
from vidqa.preflight.disk_checks import DiskNeed, disk_problems
from vidqa.preflight.environment_checks import existing
from vidqa.preflight.inputs import Inputs, Skip
from vidqa.preflight.memory_checks import available_gib
from vidqa.preflight.problems import MEMORY
from vidqa.spec.quantize_tables import needs_calibration


def modules(inputs: Inputs) -> list[Problem]:
    """Count the linear layers to quantize, and check that groups divide their inputs."""
    plan, problems = plan_quantization(inputs.model_folder, _quantize(inputs))
    inputs.facts["quantization"] = {"modules": len(plan.modules), "kept": len(plan.unquantized), "bytes": plan.bytes}
    return problems


def samples(inputs: Inputs) -> list[Problem]:
    """Check that there are enough calibration samples, and that they have media."""
    quantize = _quantize(inputs)
    if not needs_calibration(quantize):
        raise Skip("nothing is calibrated")
    return calibration_problems(quantize, inputs.usable("calibration"))


def room(inputs: Inputs) -> list[Problem]:
    """Check disk space for the quantized (and a merged) folder, and host memory for model and calibration."""
    inputs.require_visible(inputs.output_dir)
    plan, _ = plan_quantization(inputs.model_folder, _quantize(inputs))
    whole = BF16 * plan.parameters
    folders = 2 if _quantize(inputs).search else 1  # the next attempt is written beside the previous one
    needed = folders * plan.bytes + whole * len(list(inputs.models)[1:])
    problems = disk_problems([DiskNeed(existing(inputs.output_dir), needed, "the quantized model")])
    if inputs.declared.anything or inputs.platform != "local":
        return problems
    needed_gib, has = (whole + _activation_bytes(inputs)) / GIB, available_gib()
    inputs.facts["host_memory"] = {"model_gib": round(needed_gib, 1), "available_gib": round(has, 1)}
    if needed_gib > has:
        message = f"model and activations take {needed_gib:.1f} GiB of host memory; {has:.1f} are available"
        remedy = "lower quantize.num_calibration_samples, or use a machine with more memory"
        problems.append(MEMORY.at("host memory", message, remedy))
    return problems


def _activation_bytes(inputs: Inputs) -> int:
    """Bytes of the decoder's inputs and vision features of all samples, which calibration keeps on the host."""
    quantize = _quantize(inputs)
    if not needs_calibration(quantize):
        return 0
    sizes = inputs.sizes
    usable = sorted(inputs.usable("calibration"), key=lambda sample: -sample.length)
    used = usable[: quantize.num_calibration_samples]
    tokens = sum(sample.length + sizes.vision.taps * sample.media_tokens for sample in used)
    return BF16 * sizes.text.hidden * tokens


def evaluation_file(inputs: Inputs) -> list[Problem]:
    """Check that the spec of the evaluation is readable and valid."""
    quantize = _quantize(inputs)
    if not quantize.evaluate:
        raise Skip("quantize.evaluate is empty")
    inputs.require_visible(Path(os.path.expanduser(quantize.evaluate)))
    _ = inputs.evaluation
    return []


def _quantize(inputs: Inputs) -> Any:
    return inputs.spec.quantize  # type: ignore[attr-defined]
