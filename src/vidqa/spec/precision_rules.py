"""Rules of a base in few bits, of moments of 8 bits, and of weights in host memory."""

from __future__ import annotations

from collections.abc import Iterator

from vidqa.core.problem import Problem
from vidqa.spec import problems as codes
from vidqa.spec.models import GrpoSpec, TrainSpec


def bitsandbytes_key(spec: TrainSpec) -> str | None:
    """The key that asks for bitsandbytes; None where none does."""
    if spec.policy.quantization == "nf4":
        return "policy.quantization"
    return "train.optm_name" if spec.train.optm_name == "AdamW8bit" else None


def precision_rules(spec: TrainSpec) -> Iterator[Problem]:
    """What a base in few bits, and weights in host memory, do not go with."""
    key, precision = "policy.quantization", spec.policy.quantization
    mesh = spec.policy.parallelism
    if precision and spec.policy.lora is None:
        message = f"quantization is {precision}, and policy.lora is absent: matrices of few bits cannot train"
        yield codes.CONFLICT.at(key, message, "build the spec with --profile small-card, or set quantization = null")
    if precision and mesh.cp_size > 1:
        message = f"quantization is {precision}, and cp_size is {mesh.cp_size}"
        yield codes.CONFLICT.at(key, message, "set policy.parallelism.cp_size = 1, or quantization = null")
    if isinstance(spec, GrpoSpec):
        on = f"quantization is {precision}" if precision else spec.train.fsdp_offload and "fsdp_offload is true"
        if on:
            message = f"{on}: the rollout model is a copy in 16 bits on the GPU"
            yield codes.CONFLICT.at(key if precision else "train.fsdp_offload", message, "leave it out")
