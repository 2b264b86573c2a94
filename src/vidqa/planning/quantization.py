"""The plan of a quantization, from shapes alone: the modules by name, their groups of weights, and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vidqa.core.problem import Problem
from vidqa.data.record import Record
from vidqa.data.record_groups import media_by_file, same_bytes_between
from vidqa.families import Tensor, family_of
from vidqa.planning.problems import QUANTIZE_CALIBRATION
from vidqa.planning.samples import Sample
from vidqa.spec.problems import VALUE
from vidqa.spec.quantize_tables import GROUPED, Quantize, few_samples

# Linear layers that inference programs fuse into one matrix product, so that they must share a scheme.
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
NAME_MODULES = "name decoder modules to leave unquantized, such as layers\\.0\\. or down_proj"
WEIGHT = ".weight"
BF16 = 2
NVFP4_GROUP = 16  # weights that share a scale, of one byte


@dataclass(frozen=True)
class QuantizationPlan:
    """The quantized linear layers (`modules`), by full name with their weight's shape [out, in]; `unquantized` are the
    decoder's other ones. `parameters` counts those of the whole model, and `bytes` is the size of its weights."""

    modules: dict[str, tuple[int, int]]
    unquantized: tuple[str, ...]
    parameters: int
    bytes: int


def plan_quantization(folder: Path, quantize: Quantize) -> tuple[QuantizationPlan, list[Problem]]:
    """The plan for the model in `folder` with the spec's table `quantize`. Problems: SPEC_VALUE for a pattern that
    matches nothing or everything, or groups that do not divide a row."""
    family = family_of(folder)
    tensors = family.tensors(family.sizes_of(folder))
    linear = {t.name.removesuffix(WEIGHT): (t.shape[0], t.shape[1]) for t in tensors if _is_of_decoder(t, family.tower)}
    problems, excluded = [], set[str]()
    for pattern in quantize.keep:
        matched = {fused_group(name) for name in linear if re.search(pattern, name)}
        excluded |= matched
        if not matched:
            message = f"{pattern!r} matches no linear layer of the decoder"
            problems.append(VALUE.at("quantize.keep", message, NAME_MODULES))
    modules = {name: shape for name, shape in linear.items() if fused_group(name) not in excluded}
    if not modules:
        problems.append(VALUE.at("quantize.keep", "every linear layer of the decoder is kept", NAME_MODULES))
    problems += _group_problems(modules, quantize)
    small = sum(out * _row_bytes(width, quantize) for out, width in modules.values())
    parameters = sum(t.numel for t in tensors)
    others = parameters - sum(out * width for out, width in modules.values())
    unquantized = tuple(name for name in linear if name not in modules)
    return QuantizationPlan(modules, unquantized, parameters, int(small) + BF16 * others), problems


def fused_group(name: str) -> str:
    """The fused matrix product that a linear layer is part of: LAYER.self_attn.qkv for q_proj."""
    module, _, last = name.rpartition(".")
    return f"{module}.{FUSED.get(last, last)}"


def _is_of_decoder(tensor: Tensor, tower: str) -> bool:
    return bool(tensor.linear and tensor.unit) and tensor.name.endswith(WEIGHT) and not tensor.name.startswith(tower)


def group_of(quantize: Quantize) -> int | None:
    """Weights of a row that share a scale; None if the whole row does."""
    if quantize.quantization_scheme.startswith("NVFP4"):
        return NVFP4_GROUP
    return quantize.group_size if quantize.quantization_scheme in GROUPED else None


def _row_bytes(width: int, quantize: Quantize) -> float:
    """Bytes of a weight row of `width` numbers, with its scales."""
    is_float4, group = quantize.quantization_scheme.startswith("NVFP4"), group_of(quantize)
    is_half = is_float4 or quantize.quantization_scheme == "W4A16"
    return width * (0.5 if is_half else 1) + (1 if is_float4 else BF16) * (width / group if group else 1)


def _group_problems(modules: dict[str, tuple[int, int]], quantize: Quantize) -> list[Problem]:
    size = group_of(quantize) or 1
    wrong = {name: width for name, (_, width) in modules.items() if width % size}
    if not wrong:
        return []
    name, width = next(iter(wrong.items()))
    message = f"{size} does not divide the {width} inputs of {name} ({len(wrong)} such layers)"
    possible = [str(group) for group in (128, 64, 32, 16) if not any(w % group for _, w in modules.values())]
    remedy = "choose a scheme with one scale per row, such as FP8_DYNAMIC or W8A8"
    if possible and quantize.quantization_scheme in GROUPED:
        remedy = f"set quantize.group_size to {' or '.join(possible)}"
    return [VALUE.at("quantize.group_size", message, remedy)]


def calibration_problems(quantize: Quantize, samples: Sequence[Sample]) -> list[Problem]:
    """QUANTIZE_CALIBRATION for too few samples, or if no planned sample has a medium."""
    where = "dataset.annotation_path"
    few = few_samples(quantize, min(len(samples), quantize.num_calibration_samples))
    problems = [QUANTIZE_CALIBRATION.at(where, few)] if few else []
    if not any(sample.plans for sample in samples):
        problems.append(QUANTIZE_CALIBRATION.at(where, f"none of {len(samples)} samples has a video or an image"))
    return problems


def overlap_problems(records: Iterable[Record], protected: Iterable[Record]) -> list[Problem]:
    """QUANTIZE_CALIBRATION if records show media that an evaluation asks about: the same file, or one with the same
    content."""
    ours, theirs = media_by_file(records), media_by_file(protected)
    shared = [(key, key) for key in ours.keys() & theirs.keys()]
    shared += same_bytes_between(ours.values(), theirs.values())
    if not shared:
        return []
    first, other = sorted(shared)[0]
    message = f"{len(shared)} calibration videos or images are in the evaluation set: {first} is {other}"
    return [QUANTIZE_CALIBRATION.at("dataset.annotation_path", message)]
