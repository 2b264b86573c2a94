"""Calibration samples: training samples, balanced over kinds of questions, as inputs of the decoder."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vidqa.core.problem import raise_errors
from vidqa.engine.data.collate import stock_inputs
from vidqa.engine.data.frames import open_frames
from vidqa.engine.data.prefetch import decode_ahead
from vidqa.engine.families import family_of
from vidqa.engine.torch_private import tree_map_only
from vidqa.evaluation.answers import parse_expected
from vidqa.planning.plan import load_sets
from vidqa.planning.quantization import calibration_problems, overlap_problems
from vidqa.planning.samples import Planner, Sample
from vidqa.spec import load
from vidqa.spec.models import QuantizeSpec
from vidqa.spec.quantize_tables import needs_calibration

PROVING = 8  # samples whose log-probabilities prove the result


@dataclass(frozen=True)
class Calibration:
    """The chosen samples. The first `PROVING` prove the result; without calibration there are no others. `fingerprint`
    covers the records, their order, and their tokens and frames."""

    samples: Sequence[Sample]
    fingerprint: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "samples": len(self.samples),
            "tokens": sum(sample.length for sample in self.samples),
            "kinds": dict(Counter(map(kind_of, self.samples))),
            "fingerprint": self.fingerprint,
        }


def choose_calibration(spec: QuantizeSpec, samples: Sequence[Sample], data_fingerprint: str) -> Calibration:
    """Choose the calibration samples of a QuantizeSpec from its usable samples. Raises QUANTIZE_CALIBRATION for too few
    samples, for text alone, and if the evaluation asks about the same videos."""
    quantize, calibrated = spec.quantize, needs_calibration(spec.quantize)
    raise_errors(calibration_problems(quantize, samples) if calibrated else [])
    selected = balanced(samples, quantize.num_calibration_samples if calibrated else PROVING, quantize.seed)
    if calibrated and quantize.evaluate:
        protected = load_sets(load(quantize.evaluate, "evaluate"))["evaluation"]
        raise_errors(overlap_problems([sample.record for sample in selected], protected))
    facts = [data_fingerprint, [sample.record.id for sample in selected], [sample.plans for sample in selected]]
    return Calibration(selected, hashlib.sha256(repr([*facts, spec.dataset.system_prompt]).encode()).hexdigest())


def balanced(samples: Sequence[Sample], count: int, seed: int) -> list[Sample]:
    """Draw `count` samples with `seed`, taking kinds in turn: equally many of each, as far as available."""
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    by_kind = defaultdict[str, list[Sample]](list)
    for number in order:
        by_kind[kind_of(samples[number])].append(samples[number])
    selected: list[Sample] = []
    while len(selected) < min(count, len(samples)):
        for group in by_kind.values():
            if group and len(selected) < count:
                selected.append(group.pop())
    return selected


def kind_of(sample: Sample) -> str:
    """The kind of a sample's question with that of its media: an image is calibrated apart from a video."""
    record = sample.record
    media = "+".join(sorted({plan.kind for plan in sample.plans})) or "text"
    return f"{record.kind or parse_expected(record.answer, record.question, '').kind}, {media}"


def decoded(spec: QuantizeSpec, samples: Sequence[Sample]) -> Iterator[tuple[Sample, list[np.ndarray]]]:
    """Yield samples with frames of their media, uint8 [n, 3, h, w]. Raises problems of media that do not decode."""
    with open_frames(spec.engine, spec.engine.decode_workers) as source:
        for sample, ticket in decode_ahead(samples, source):
            yield sample, [np.array(array) for array in source.frames(ticket)]


def decoder_rows(model: Any, planner: Planner, spec: QuantizeSpec, samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """The inputs of the decoder for every sample (`TorchFamily.decoder_inputs`), in host memory."""
    family, device = family_of(model), next(model.parameters()).device
    rows = []
    for sample, frames in decoded(spec, samples):
        inputs = stock_inputs(planner, [planner.encode(sample).token_ids], [sample.plans], [frames], device)
        rows.append(tree_map_only(torch.Tensor, torch.Tensor.cpu, family.decoder_inputs(model, inputs)))
    return rows
