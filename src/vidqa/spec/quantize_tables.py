"""The tables of a quantization: the model, the samples for calibration and proof, and scheme and method with their
meaning."""

from __future__ import annotations

from typing import Literal

from vidqa.spec._field import Count, HeldOut, NotNegative, Positive, ResponseMode, Share, Table, key
from vidqa.spec.compat_keys import with_compat_keys
from vidqa.spec.evaluate_tables import EvaluateDataset
from vidqa.spec.policy_tables import DEFAULT_MODEL
from vidqa.spec.run_tables import DecodeEngine

SchemeName = Literal["FP8_DYNAMIC", "FP8", "W8A8", "W8A16", "W4A16", "NVFP4", "NVFP4A16"]
AUTO = {"W8A8": "gptq", "W4A16": "gptq"}  # the method for "auto", if it is not rounding to nearest
METHODS = {"gptq": ("W8A8", "W8A16", "W4A16"), "awq": ("W8A16", "W4A16")}  # the schemes of methods other than rtn
OBSERVED = ("FP8", "NVFP4")  # activations have scales that calibration observes
FEWEST, FEW = 16, 64  # calibration samples; fewer than FEW need quantize.force
GROUPED = ("W8A16", "W4A16")  # schemes to which quantize.group_size applies


class QuantizeModel(Table):
    model_path: str = key(
        DEFAULT_MODEL, "Model", "hf_model://org/name or a local folder: an export, or an adapter with enable_lora."
    )
    enable_lora: bool = key(False, "LoRA", "model_path is an adapter; it is merged into base_model_path first.")
    base_model_path: str = key("", "Base model", "Base model of the adapter; only read with enable_lora.")


@with_compat_keys
class QuantizeDataset(EvaluateDataset):
    annotation_path: str = key(
        "", "Annotations", "Training records with answers, for calibration of scales and verification of the result."
    )
    response_mode: ResponseMode = key(
        "answer", "Response mode", "As in the training: think, answer, or hybrid (reasoning where a record has it)."
    )
    test_size: HeldOut = key(
        None, "Held-out part", "Part of these records that training held out for validation; not for calibration."
    )
    split_seed: Count = key(0, "Split seed", "The training's train.train_policy.dataloader_seed.")


@with_compat_keys
class Quantize(Table):
    quantization_scheme: SchemeName = key(
        "FP8_DYNAMIC",
        "Scheme",
        "FP8_DYNAMIC: weights and activations in 8-bit floats, no calibration. FP8: the same with fixed activation "
        "scales. W8A8: 8-bit integers. W8A16, W4A16: weights in 8 or 4 bits, activations unquantized. NVFP4, "
        "NVFP4A16: 4-bit floats for Blackwell GPUs, with and without activations.",
    )
    method: Literal["auto", "rtn", "gptq", "awq"] = key(
        "auto",
        "Method",
        "Rounding method. auto: GPTQ for W4A16, SmoothQuant and GPTQ for W8A8, else rtn (to nearest). awq needs a GPU.",
    )
    kv_precision: Literal["bf16", "fp8"] = key(
        "bf16", "KV cache", "fp8: calibrated scales for a KV cache in 8-bit floats."
    )
    smoothing_strength: Share = key(
        0.8, "Smoothing", "For W8A8: how far SmoothQuant moves activation outliers into weights; 0 is off."
    )
    num_calibration_samples: Positive = key(
        512, "Calibration samples", "Training samples for calibration, balanced over question kinds. TAO's is 1."
    )
    max_sequence_length: Positive = key(
        128000,
        "Maximum sample length",
        "Maximum tokens of a sample. A longer one is an error and is never cut. TAO's is 4096, which cuts videos.",
    )
    group_size: Positive = key(128, "Group", "Weights that share a scale in W8A16 and W4A16.")
    keep: list[str] = key(
        [],
        "Kept modules",
        "Regular expressions of decoder modules that are not quantized. q, k and v of a layer are treated alike, and "
        "so are gate and up.",
    )
    max_drop: NotNegative = key(
        1.0, "Maximum drop", "Maximum loss of accuracy in points; only read with quantize.evaluate."
    )
    evaluate: str = key(
        "",
        "Evaluation",
        "Evaluation spec, run with both models; exit code 5 if more than quantize.max_drop is lost. Its videos must "
        "not be used for calibration.",
    )
    search: bool = key(
        False,
        "Search",
        "If quantize.evaluate fails, quantize again without the layers of the largest output errors, up to a tenth of "
        "the parameters.",
    )
    seed: Count = key(1, "Seed", "Seed of sample selection.")
    force: bool = key(False, "Few samples", "Calibrate on fewer than 64 samples (never fewer than 16).")


class QuantizeEngine(DecodeEngine):
    decode_workers: Count = key(2, "Decode workers", "Video decoding processes.")


def method_of(quantize: Quantize) -> str:
    """The quantization method: rtn, gptq or awq."""
    return AUTO.get(quantize.quantization_scheme, "rtn") if quantize.method == "auto" else quantize.method


def is_smoothed(quantize: Quantize) -> bool:
    """Whether SmoothQuant is applied before the method."""
    is_auto = quantize.method == "auto" and quantize.quantization_scheme == "W8A8"
    return is_auto and quantize.smoothing_strength > 0


def needs_calibration(quantize: Quantize) -> bool:
    """Whether the result depends on training samples."""
    observed = quantize.quantization_scheme in OBSERVED or quantize.kv_precision == "fp8"
    return observed or method_of(quantize) != "rtn"


def few_samples(quantize: Quantize, count: int) -> str:
    """An error message if there are too few samples; empty if there are enough."""
    if count < FEWEST:
        return f"{count} calibration samples; at least {FEWEST} are needed"
    if count < FEW and not quantize.force:
        return f"{count} calibration samples; fewer than {FEW} need quantize.force = true"
    return ""
