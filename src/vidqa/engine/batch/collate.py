"""From samples to one packed batch: tokens, positions, labels and every index the model needs, all made on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from vidqa.engine.batch.resize import patchify
from vidqa.engine.model.attention import Segments, segments_of
from vidqa.engine.model.qwen3_vl import VisionIndex, vision_index
from vidqa.samples import Planner, Sample

ALIGN = {"cpu": 8, "cuda": 128}  # samples are padded to a multiple of this many tokens


@dataclass(frozen=True)
class Batch:
    """One micro-step of one rank. T tokens (samples padded to the alignment, longest first), N supervised, V vision
    tokens, P patches of C values. `owner_N` is the place in `samples` that each supervised token belongs to."""

    input_ids_T: torch.Tensor
    position_3T: torch.Tensor
    segments: Segments
    predict_at_N: torch.Tensor  # the token whose output predicts ...
    target_N: torch.Tensor  # ... this token id
    owner_N: torch.Tensor
    patches_PC: torch.Tensor
    vision: VisionIndex
    visual_at_V: torch.Tensor
    samples: tuple[int, ...]
    tokens: int  # without padding

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        moved = {f.name: _move(getattr(self, f.name), device) for f in fields(self)}
        return replace(self, **moved)


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.pin_memory().to(device, non_blocking=True)
    if isinstance(value, VisionIndex):
        return replace(value, **{f.name: _move(getattr(value, f.name), device) for f in fields(value)})
    return value


class Collator:
    """Builds batches for one model. `vision_config` is its config's; `device_type` decides the padding."""

    def __init__(self, planner: Planner, vision_config: Any, device_type: str) -> None:
        self.planner = planner
        self.vision_config = vision_config
        self.device_type = device_type
        self.image_id, self.video_id = (planner.chat.slot_ids[kind] for kind in ("image", "video"))
        self.rope = planner.family.rope_positions
        self.geometry = planner.geometry

    def __call__(
        self, numbers: Sequence[int], samples: Sequence[Sample], frames: Sequence[Sequence[np.ndarray | None]]
    ) -> Batch:
        """`frames[i][m]` is uint8 [n, 3, h, w] of medium m of sample i; None leaves that sample's answer unlearned."""
        order = sorted(range(len(samples)), key=lambda i: -padded(samples[i].length, self.device_type))
        rows = [self._tokens(samples[i], usable=all(f is not None for f in frames[i])) for i in order]
        starts = np.cumsum([0] + [padded(len(ids), self.device_type) for ids, _, _ in rows])
        media = self._media([samples[i] for i in order], [frames[i] for i in order], rows, starts[:-1])
        grids, visual_at, pieces = media or self._blank_medium()
        predict, target, owner = self._supervised(rows, starts[:-1])
        lengths = [padded(len(ids), self.device_type) for ids, _, _ in rows] or [ALIGN[self.device_type]]
        return Batch(
            input_ids_T=_packed([ids for ids, _, _ in rows], lengths, self.planner.chat.pad_id),
            position_3T=_packed([position for _, _, position in rows], lengths, 0, leading=(3,)),
            segments=segments_of(lengths),
            predict_at_N=torch.from_numpy(predict),
            target_N=torch.from_numpy(target),
            owner_N=torch.from_numpy(owner),
            patches_PC=torch.cat(pieces),
            vision=vision_index(grids, self.vision_config),
            visual_at_V=torch.from_numpy(visual_at),
            samples=tuple(numbers[i] for i in order),
            tokens=sum(len(ids) for ids, _, _ in rows),
        )

    def _tokens(self, sample: Sample, usable: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids [S], supervised [S] and positions [3, S]; they must be what was planned."""
        encoded = self.planner.encode(sample)
        ids = encoded.token_ids.astype(np.int64)
        assert len(ids) == sample.length, f"{sample.record.source}: built {len(ids)} tokens, planned {sample.length}"
        grids: dict[str, list[tuple[int, int, int]]] = {"image": [], "video": []}
        for plan in sample.plans:
            grids[plan.kind].append(plan.grid)
        merge = self.geometry.video.merge_size
        position = self.rope(ids, self.image_id, self.video_id, grids["image"], grids["video"], merge)
        return ids, encoded.supervised & usable, position

    def _media(self, samples, frames, rows, starts):
        """Grids, placeholders and patches of the pack's media, grouped by frame size so that each size is one dense
        batch in the vision tower. None for a pack without media."""
        media = []
        for sample, arrays, (ids, _, _), start in zip(samples, frames, rows, starts, strict=True):
            at = start + np.flatnonzero((ids == self.image_id) | (ids == self.video_id))
            for plan, array in zip(sample.plans, arrays, strict=True):
                media.append((plan, array, at[: plan.tokens]))
                at = at[plan.tokens :]
        if not media:
            return None
        media.sort(key=lambda medium: medium[0].grid[1:], reverse=True)
        grids = [plan.grid for plan, _, _ in media]
        return grids, np.concatenate([places for _, _, places in media]), [self._patches(p, a) for p, a, _ in media]

    def _patches(self, plan, array: np.ndarray | None) -> torch.Tensor:
        rules = self.geometry.video if plan.kind == "video" else self.geometry.image
        if array is None:  # an unusable medium still fills its place; nothing is learned from it
            array = np.zeros((len(plan.indices), 3, plan.height, plan.width), dtype=np.uint8)
        assert array.shape == (len(plan.indices), 3, plan.height, plan.width), (
            f"{array.shape} is not as planned: {plan}"
        )
        patches = patchify(as_tensor(array), rules, rules.mean, rules.std)
        assert len(patches) == plan.patches, f"{len(patches)} patches built, {plan.patches} planned"
        return patches

    def _blank_medium(self):
        """One black block of patches for a pack without media: every rank runs the vision tower in every micro-step."""
        rules = self.geometry.video
        width = 3 * rules.temporal_patch_size * rules.patch_size**2
        patches = torch.zeros(rules.merge_size**2, width)
        return [(1, rules.merge_size, rules.merge_size)], np.zeros(0, dtype=np.int64), [patches]

    def _supervised(self, rows, starts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        predict, target, owner = [], [], []
        for number, ((ids, supervised, _), start) in enumerate(zip(rows, starts, strict=True)):
            at = np.flatnonzero(supervised)
            predict.append(start + at - 1)
            target.append(ids[at])
            owner.append(np.full(len(at), number))
        return tuple(
            np.concatenate([*part, np.zeros(0, np.int64)]).astype(np.int64) for part in (predict, target, owner)
        )  # type: ignore[return-value]


def padded(length: int, device_type: str) -> int:
    """Tokens that a sample takes in a pack."""
    align = ALIGN[device_type]
    return -(-length // align) * align


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """The array without a copy; torch warns of read-only memory (the frame cache's maps), which nothing writes to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def _packed(
    parts: Sequence[np.ndarray], lengths: Sequence[int], fill: int, leading: tuple[int, ...] = ()
) -> torch.Tensor:
    """The parts side by side, each padded to its length."""
    packed = np.full((*leading, sum(lengths)), fill, dtype=np.int64)
    start = 0
    for part, length in zip(parts, lengths, strict=False):
        packed[..., start : start + part.shape[-1]] = part
        start += length
    return torch.from_numpy(packed)
