"""Vectors of media from the vision tower, and of questions from token embeddings or a sentence model.

Shape letters: V vision tokens, T temporal patches, D width, K dimensions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from vidqa.core.problem import Problem
from vidqa.engine.actions.text_metrics import TextModel, sentence_embedder, vector_width
from vidqa.engine.answering.batch_inference import model_folders
from vidqa.engine.data.host_to_device import mapped
from vidqa.engine.data.pixels import pixels_of
from vidqa.engine.export import load_export
from vidqa.engine.families import torch_half
from vidqa.engine.model import DTYPES
from vidqa.families import Sizes
from vidqa.planning.samples import Planner, Sample
from vidqa.spec.models import EmbedSpec

SEED = 0  # of the random projection: equal for all vectors that are compared
TEXT_MODEL = "embed.text_model"
Batch = Sequence[tuple[tuple[bytes, ...], Sample, Sequence[Any], list[Problem]]]


def widths_of(spec: EmbedSpec, sizes: Sizes) -> tuple[int, int]:
    """The widths of the vector of a medium and of a question. Raises METRIC_UNAVAILABLE."""
    width = sizes.text.hidden
    text = vector_width(_text_folder(spec), TEXT_MODEL) if spec.embed.text_model else width
    return (spec.embed.dimensions or 2 * width), (spec.embed.dimensions or text)


class Embedder:
    """Computes vectors of media and texts; models are loaded on first use."""

    def __init__(self, spec: EmbedSpec, planner: Planner, device: torch.device) -> None:
        self.spec, self.planner, self.device = spec, planner, device
        self.family = torch_half(planner.family)
        folder, base = model_folders(spec)
        self.sizes = planner.family.sizes_of(base or folder)

    @cached_property
    def model(self) -> Any:
        folder, base = model_folders(self.spec)
        return load_export(folder, base, DTYPES[self.spec.model.dtype], self.device)

    def media(self, batch: Batch) -> tuple[dict[bytes, np.ndarray], dict[tuple[bytes, ...], list[Problem]]]:
        """Vectors by the keys of media, and the problems of samples whose media could not be decoded."""
        bad = {keys: problems for keys, _, _, problems in batch if problems}
        media = [
            (key, plan, frames)
            for keys, sample, arrays, problems in batch
            if not problems
            for key, plan, frames in zip(keys, sample.plans, arrays, strict=True)
        ]
        if not media:
            return {}, bad
        media.sort(key=lambda item: (item[1].height, item[1].width))  # frames of one size are one dense batch
        rules = {"video": self.planner.geometry.video, "image": self.planner.geometry.image}
        pixels = pixels_of([(frames, rules[plan.kind]) for _, plan, frames in media])
        index = self.family.vision_index([plan.grid for _, plan, _ in media], self.sizes.vision, None)
        patches = mapped(pixels, self._moved).patches()
        features = self.family.vision_features(self.model, patches, mapped(index, self._moved)).float()
        parts = features.split([plan.tokens for _, plan, _ in media])
        pooled = torch.stack([_pooled(part, plan.grid[0]) for part, (_, plan, _) in zip(parts, media, strict=True)])
        return dict(zip((key for key, _, _ in media), self._shortened(pooled), strict=True)), bad

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of questions, float32 [N, K]."""
        return self._shortened(self._text_vectors(texts))

    @cached_property
    def _text_vectors(self) -> Callable[[Sequence[str]], torch.Tensor]:
        if self.spec.embed.text_model:
            embedded = sentence_embedder(TextModel(_text_folder(self.spec), TEXT_MODEL, self.device))
            return lambda texts: torch.stack(list(embedded(texts)))
        table = self.model.get_input_embeddings().weight.detach()
        ids = self.planner.chat.text_ids
        return lambda texts: torch.stack([table[list(ids(text))].float().mean(0) for text in texts])

    def _shortened(self, vectors: torch.Tensor) -> np.ndarray:
        """Vectors [N, D] as float32 [N, K] of length 1, randomly projected if the spec sets fewer dimensions."""
        count = self.spec.embed.dimensions
        if count:
            draw = torch.Generator().manual_seed(SEED)
            vectors = vectors.cpu() @ torch.randn(vectors.shape[1], count, generator=draw) / count**0.5
        return normalize(vectors.float(), dim=-1).cpu().numpy()

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)


def _text_folder(spec: EmbedSpec) -> Path:
    return Path(os.path.expanduser(spec.embed.text_model))


def _pooled(tokens_VD: torch.Tensor, pairs: int) -> torch.Tensor:
    """Pool vision tokens [V, D] into [2 D]: the mean of all tokens, and the standard deviation over time of the means
    of temporal patches. The mean describes the scene, the deviation its motion."""
    over_time_TD = tokens_VD.unflatten(0, (pairs, -1)).mean(1)
    return torch.cat([over_time_TD.mean(0), over_time_TD.std(0, correction=0)])
