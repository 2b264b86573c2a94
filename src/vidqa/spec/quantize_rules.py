"""Rules of a quantization spec, and what its scheme and method mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from vidqa.core.problem import Problem
from vidqa.spec import problems as codes
from vidqa.spec.models import QuantizeSpec
from vidqa.spec.rules import pattern_rules, reading_rules, required

AUTO = {"W8A8": "gptq", "W4A16": "gptq"}  # the method of "auto", where it is not rounding to nearest
METHODS = {"gptq": ("W8A8", "W8A16", "W4A16"), "awq": ("W8A16", "W4A16")}  # the schemes of each other method
OBSERVED = ("FP8", "NVFP4")  # activations have scales that calibration observes
FEWEST, FEW = 16, 64  # calibration samples; fewer than FEW need quantize.force
GROUPED = ("W8A16", "W4A16")  # schemes that quantize.group_size is of


def method_of(quantize: Any) -> str:
    """rtn, gptq or awq."""
    return AUTO.get(quantize.quantization_scheme, "rtn") if quantize.method == "auto" else quantize.method


def is_smoothed(quantize: Any) -> bool:
    """Whether SmoothQuant comes before the method."""
    is_auto = quantize.method == "auto" and quantize.quantization_scheme == "W8A8"
    return is_auto and quantize.smoothing_strength > 0


def needs_calibration(quantize: Any) -> bool:
    """Whether training samples decide any number of the result."""
    observed = quantize.quantization_scheme in OBSERVED or quantize.kv_precision == "fp8"
    return observed or method_of(quantize) != "rtn"


def few_samples(quantize: Any, count: int) -> str:
    """Why so many samples are too few; empty where they are enough."""
    if count < FEWEST:
        return f"{count} samples calibrate; at least {FEWEST} are needed"
    if count < FEW and not quantize.force:
        return f"{count} samples calibrate; fewer than {FEW} need quantize.force = true"
    return ""


def quantize_rules(spec: QuantizeSpec) -> Iterator[Problem]:
    """What is wrong with a quantization, whatever its data."""
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
        yield codes.VALUE.at("quantize.evaluate", message, "name the spec that build_spec.py evaluate wrote")
