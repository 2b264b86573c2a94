"""Answers by transformers' own `generate`, the reference: prompts padded on the left, every token as planned.

What a sample is answered depends on the model and on the sample, never on the others in its batch: its draws come from
a generator of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from vidqa.engine.batch.pixels import as_tensor
from vidqa.engine.batch.resize import patchify
from vidqa.planning.samples import Planner, Sample


@dataclass(frozen=True)
class Answer:
    """`finish_reason` is "stop" when the model ended its turn and "length" when it was cut off."""

    text: str
    finish_reason: str
    tokens: int


@dataclass(frozen=True)
class Decoding:
    """How answers are generated; `temperature` 0 is greedy, which draws nothing from `seed`."""

    max_tokens: int
    temperature: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0


class OwnDraws(LogitsProcessor):
    """Makes the largest score a draw from the distribution at a temperature: the logarithm of an exponential variate is
    taken from every score. Each row has its variates from a generator that its sample's id and the seed alone start."""

    def __init__(self, sample_ids: Sequence[str], decoding: Decoding, device: torch.device) -> None:
        self.temperature = decoding.temperature
        self.generators = [torch.Generator(device) for _ in sample_ids]
        for generator, sample_id in zip(self.generators, sample_ids, strict=True):
            digest = hashlib.sha256(f"{decoding.seed} {sample_id}".encode()).digest()
            generator.manual_seed(int.from_bytes(digest[:8], "big"))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        variates = torch.empty_like(scores)
        for row, generator in zip(variates, self.generators, strict=True):
            row.exponential_(generator=generator)
        return scores / self.temperature - variates.log()


def model_inputs(
    planner: Planner, samples: Sequence[Sample], frames: Sequence[Sequence[np.ndarray]], device: torch.device
) -> dict[str, torch.Tensor]:
    """What a stock model takes: ids padded on the left, patches and grids of images and videos in reading order.
    `frames[i][m]` is uint8 [n, 3, h, w]."""
    rows = [planner.encode(sample).token_ids.astype(np.int64) for sample in samples]
    width = max(map(len, rows))
    ids = np.full((len(rows), width), planner.chat.pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, width - len(row) :] = row
        mask[number, width - len(row) :] = 1
    slots = planner.chat.slot_ids
    kinds = np.where(ids == slots["image"], 1, np.where(ids == slots["video"], 2, 0))
    inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": kinds}
    tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        rules = getattr(planner.geometry, kind)
        media = [
            (plan, array)
            for sample, arrays in zip(samples, frames, strict=True)
            for plan, array in zip(sample.plans, arrays, strict=True)
            if plan.kind == kind
        ]
        if media:
            parts = [patchify(as_tensor(array), rules, rules.mean, rules.std) for _, array in media]
            tensors[pixels] = torch.cat(parts)
            tensors[grid] = torch.tensor([plan.grid for plan, _ in media])
    return {name: tensor.to(device) for name, tensor in tensors.items()}


@torch.no_grad()
def generate_answers(
    model: Any,
    planner: Planner,
    samples: Sequence[Sample],
    frames: Sequence[Sequence[np.ndarray]],
    decoding: Decoding,
) -> list[Answer]:
    """One answer per sample; `planner` must be one for generation."""
    device = next(model.parameters()).device
    inputs = model_inputs(planner, samples, frames, device)
    scores = LogitsProcessorList()
    if decoding.temperature > 0:
        scores.append(OwnDraws([sample.record.id for sample in samples], decoding, device))
    ends = sorted(planner.chat.eos_ids)
    output = model.generate(
        **inputs,
        max_new_tokens=decoding.max_tokens,
        logits_processor=scores,
        eos_token_id=ends,
        pad_token_id=planner.chat.pad_id,
        synced_gpus=False,  # ranks generate on their own; transformers would otherwise see FSDP and wait
        # A model folder's own sampling settings would be part of no recipe.
        do_sample=False,
        repetition_penalty=decoding.repetition_penalty,
        temperature=None,
        top_p=None,
        top_k=None,
    )
    return [_answer(row, planner, ends) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]


def _answer(row: list[int], planner: Planner, ends: list[int]) -> Answer:
    stop = next((place for place, token in enumerate(row) if token in ends), None)
    kept = row if stop is None else row[:stop]
    return Answer(planner.chat.decode(kept).strip(), "length" if stop is None else "stop", len(kept))
