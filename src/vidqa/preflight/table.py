"""Every check, in the order in which it is carried out and reported."""

from __future__ import annotations

from vidqa.preflight import (
    budget_checks,
    data_checks,
    environment_checks,
    media_checks,
    model_checks,
    platform_checks,
    spec_checks,
)
from vidqa.preflight._base import Check

CHECKS = (
    Check("environment", "packages", environment_checks.packages),
    Check("environment", "torch and torchvision", environment_checks.torch_pair),
    Check("environment", "output folder", environment_checks.output_folder, ("spec",)),
    Check("environment", "disk", environment_checks.disk, ("spec", "models")),
    Check("environment", "shared memory", environment_checks.shared_memory, ("spec",)),
    Check("model", "access", model_checks.access, ("spec",)),
    Check("model", "weights", model_checks.weights, ("models",)),
    Check("model", "architecture", model_checks.architecture, ("models",)),
    Check("model", "processor", model_checks.processor, ("models",)),
    Check("model", "tokenizer and chat template", model_checks.tokenizer, ("models",)),
    Check("spec", "rules", spec_checks.rules),
    Check("data", "annotations", data_checks.records, ("spec",)),
    Check("data", "training and validation apart", data_checks.disjoint, ("annotations",)),
    Check("media", "headers", media_checks.probed, ("media",)),
    Check("media", "planned frames", media_checks.decoded, ("planned",)),
    Check("budget", "tokens", budget_checks.tokens, ("planned",)),
    Check("budget", "steps", budget_checks.steps, ("planned",)),
    Check("platform", "job", platform_checks.suitable, ("spec",)),
    Check("platform", "ports", platform_checks.ports),
)
GROUPS = ("environment", "model", "spec", "data", "media", "budget", "platform")
