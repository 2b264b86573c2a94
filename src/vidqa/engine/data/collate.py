"""Collation of samples on the CPU: packed batches with tokens, positions, labels and all indices for our forward pass;
padded batches for a stock model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from vidqa.engine.data.feature_cache import CachedFeatures, FeatureCache, Features
from vidqa.engine.data.host_to_device import mapped
from vidqa.engine.data.layout import lay_out, prefix_lengths, prefixes_of
from vidqa.engine.data.pixels import Pixels, as_tensor, patchify, pixels_of
from vidqa.engine.distributed import WHOLE, Context
from vidqa.engine.families import torch_half
from vidqa.engine.families._base import Grid, VisionIndex
from vidqa.engine.model.attention import Segments, segments_of
from vidqa.engine.model.suffixes import Suffixes
from vidqa.families import VisionSizes
from vidqa.planning.packing import padded_length
from vidqa.planning.pairs import PairSample
from vidqa.planning.prefix_sharing import tower_workload
from vidqa.planning.samples import Planner, Sample
from vidqa.video.types import FramePlan, PixelRules


@dataclass(frozen=True)
class Batch:
    """One micro-step of one rank. T rows (tokens and padding, see `layout`), N supervised, V vision
    tokens, P patches of C values. `owner_N` is the index in `samples` of the sample of each supervised token.

    Ranks of a context share one pack. Each has T of its rows, the N and V among them, and whole frames: `visual_of_V`
    are the rows of the tower's output for its V (None: all). `segments` and `suffixes` are those of the whole pack.

    Media stay uint8 until the model reads `patches_PC`, on the device of the batch."""

    input_ids_T: torch.Tensor
    position_3T: torch.Tensor
    segments: Segments
    suffixes: Suffixes | None
    predict_at_N: torch.Tensor  # the token whose output predicts ...
    target_N: torch.Tensor  # ... this token id
    owner_N: torch.Tensor
    pixels: Pixels
    vision: VisionIndex
    visual_at_V: torch.Tensor
    visual_of_V: torch.Tensor | None
    samples: tuple[int, ...]
    tokens: int  # without padding
    values: Mapping[str, torch.Tensor] = field(default_factory=dict)  # from the objective: float32 [N] each
    cached: CachedFeatures | None = None  # features read from the cache, the last of V, and those to write

    @property
    def patches_PC(self) -> torch.Tensor:
        """float32, normalised at each use and not stored: they are larger than everything else in the batch."""
        return self.pixels.patches()

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`, one blocking copy per tensor: for single batches; `BatchSender` is for many."""
        return mapped(self, lambda tensor: tensor.to(device))


# A sample, the frames uint8 [n, 3, h, w] or features of each medium, token ids int64 [S], and their rows int64 [S].
Placed = tuple[Sample, Sequence[Any], np.ndarray, np.ndarray]
TokenValues = Callable[[Sample], Mapping[str, np.ndarray]]  # by name, for every token of a sample: float32 [S]


class Collator:
    """Builds batches for one model. `sizes` are those of its vision tower; `device_type` decides the padding; `values`
    adds further values of each supervised token; ranks of a `context` get their part of each pack."""

    def __init__(
        self,
        planner: Planner,
        sizes: VisionSizes,
        device_type: str,
        *,
        share: bool = False,
        values: TokenValues = lambda sample: {},
        context: Context = WHOLE,
    ) -> None:
        self.planner = planner
        self.sizes = sizes
        self.padded = partial(padded_length, device_type=device_type)
        self.share, self.values, self.context = share, values, context
        self.count_bits: int | None = None  # see `segments_of`
        self.image_id, self.video_id = (planner.chat.slot_ids[kind] for kind in ("image", "video"))
        self.family = torch_half(planner.family)
        self.geometry = planner.geometry

    def __call__(
        self,
        numbers: Sequence[int],
        samples: Sequence[Sample],
        frames: Sequence[Sequence[np.ndarray | Features | None]],
        features: FeatureCache | None = None,
    ) -> Batch:
        """Build the batch of a pack. `frames[i][m]` is uint8 [n, 3, h, w] of medium m of sample i, or its cached
        features; a sample with None has no labels. Features need whole packs: ranks of a context cannot use them."""
        layout = lay_out(samples, self.padded, share=self.share, count_bits=self.count_bits, ranks=self.context.size)
        own = self.context.rows(layout.total)
        tokens = [self._tokens(s, usable=all(f is not None for f in fs)) for s, fs in zip(samples, frames, strict=True)]
        input_ids = np.full(layout.total, self.planner.chat.pad_id, dtype=np.int64)
        position = np.zeros((3, layout.total), dtype=np.int64)
        for (ids, _, positions), rows in zip(tokens, layout.rows, strict=True):
            input_ids[rows], position[:, rows] = ids, positions
        firsts = [unit[0] for unit in layout.units]  # all samples of a unit have the same media
        media = self._media([(samples[i], frames[i], tokens[i][0], layout.rows[i]) for i in firsts], own, features)
        read = [medium for medium in media if isinstance(medium.content, Features)]
        computed = [medium for medium in media if not isinstance(medium.content, Features)]
        grids, media_pixels = self._computed(computed) if computed else self._blank_medium()
        places = [medium.places[medium.part].ravel() for medium in (*computed, *read)]
        visual_at = np.concatenate([np.zeros(0, dtype=np.int64), *places])
        stands = _among(visual_at, own)
        predict, target, owner = self._supervised([(*tokens[i][:2], layout.rows[i]) for i in layout.order])
        learns = _among(predict, own)
        return Batch(
            input_ids_T=torch.from_numpy(input_ids[own]),
            position_3T=torch.from_numpy(position[:, own]),
            segments=layout.segments,
            suffixes=layout.suffixes,
            predict_at_N=torch.from_numpy(predict[learns] - own.start),
            target_N=torch.from_numpy(target[learns]),
            owner_N=torch.from_numpy(owner[learns]),
            pixels=media_pixels,
            vision=self.family.vision_index(grids, self.sizes, self.count_bits),
            visual_at_V=torch.from_numpy(visual_at[stands] - own.start),
            visual_of_V=None if stands.all() else torch.from_numpy(np.flatnonzero(stands)),
            samples=tuple(numbers[i] for i in layout.order),
            tokens=sum(len(ids) for ids, _, _ in tokens),
            values=self._values([(samples[i], tokens[i][1]) for i in layout.order], learns),
            cached=_cached(computed, read, features) if features and media else None,
        )

    def segments(self, samples: Sequence[Sample]) -> tuple[Segments, Segments]:
        """The attention segments of the decoder and of the vision tower for a batch of these samples. The frames of a
        rank of a context depend on the tokens: its segments of the tower are left empty."""
        prefixes = prefixes_of(samples, self.padded, share=self.share)
        decoder = segments_of(prefix_lengths(prefixes, self.padded), count_bits=self.count_bits)
        if self.context.size > 1:
            return decoder, ()
        plans = [plan for unit in prefixes for plan in samples[unit[0]].plans]
        grids = [plan.grid for plan in sorted(plans, key=_frame_size, reverse=True)]
        frames = self.family.vision_segments(grids or self._blank_medium()[0], self.sizes, self.count_bits)
        return decoder, frames

    def _tokens(self, sample: Sample, usable: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids [S], supervised [S] and positions [3, S] of a sample."""
        ids, supervised = self._encoded(sample)
        positions = self.planner.family.rope_positions
        return ids, supervised & usable, positions(ids, self.image_id, self.video_id, sample.plans, self.geometry)

    def _encoded(self, sample: Any) -> tuple[np.ndarray, np.ndarray]:
        """Token ids int64 [S] and the supervised mask, bool [S]; asserts that S is the planned length."""
        encoded = self.planner.encode(sample)
        ids = encoded.token_ids.astype(np.int64)
        assert len(ids) == sample.length, f"{sample.record.source}: built {len(ids)} tokens, planned {sample.length}"
        return ids, encoded.supervised

    def _media(self, placed: Sequence[Placed], own: slice, features: FeatureCache | None) -> list[_Medium]:
        """The media with rows of this rank (`own`), sorted by frame size so that each size is one dense batch in the
        vision tower."""
        media = []
        for sample, arrays, ids, rows in placed:
            at = rows[(ids == self.image_id) | (ids == self.video_id)]
            keys = _keys(sample, arrays, features)
            for plan, array, key in zip(sample.plans, arrays, keys, strict=True):
                places, at = at[: plan.tokens].reshape(plan.grid[0], -1), at[plan.tokens :]
                if len(needed := np.flatnonzero(_among(places, own).any(axis=1))):
                    media.append(_Medium(plan, array, places, slice(needed[0], needed[-1] + 1), key))
        return sorted(media, key=lambda medium: _frame_size(medium.plan), reverse=True)

    def _computed(self, media: Sequence[_Medium]) -> tuple[list[Grid], Pixels]:
        """The grids and pixels of the media that go through the vision tower."""
        pixels = pixels_of([self._checked(medium.plan, medium.content, medium.part) for medium in media])
        return [(item.part.stop - item.part.start, *item.plan.grid[1:]) for item in media], pixels

    def _checked(self, plan: FramePlan, array: np.ndarray | None, part: slice) -> tuple[np.ndarray, PixelRules]:
        """A slice of a medium's temporal patches, checked against the plan, and the pixel rules of its kind."""
        rules = self.geometry.video if plan.kind == "video" else self.geometry.image
        shape = (len(plan.indices), 3, plan.height, plan.width)
        if array is None:  # an unusable medium still takes its rows; its sample has no labels
            array = np.zeros(shape, dtype=np.uint8)
        built = (-(-len(array) // rules.temporal_patch_size), *(side // rules.patch_size for side in array.shape[-2:]))
        assert array.shape == shape and built == plan.grid, f"{array.shape} is not as planned: {plan}"
        step = rules.temporal_patch_size
        return array[part.start * step : part.stop * step], rules

    def _blank_medium(self) -> tuple[list[Grid], Pixels]:
        """One black block of patches for a pack without media to compute: every rank must run the vision tower in every
        micro-step."""
        rules = self.geometry.video
        black = np.zeros((rules.temporal_patch_size, 3, rules.factor, rules.factor), np.uint8)
        return [(1, rules.merge_size, rules.merge_size)], pixels_of([(black, rules)])

    def _values(self, placed: Sequence[tuple[Sample, np.ndarray]], learns: np.ndarray) -> dict[str, torch.Tensor]:
        """The objective's values of the supervised tokens selected by `learns`, in the order of `target_N`."""
        values_of = [(self.values(sample), supervised) for sample, supervised in placed]
        names = values_of[0][0] if values_of else ()
        values = {
            name: np.concatenate([own_values[name][chosen] for own_values, chosen in values_of]) for name in names
        }
        return {name: torch.from_numpy(value[learns]) for name, value in values.items()}

    def _supervised(
        self, placed: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The predicting rows, targets and owners, int64 [N], from (ids, supervised, rows) [S] of each sample."""
        predict, target, owner = ([np.zeros(0, np.int64)] for _ in range(3))
        for number, (ids, supervised, rows) in enumerate(placed):
            at = np.flatnonzero(supervised)
            predict.append(rows[at - 1])
            target.append(ids[at])
            owner.append(np.full(len(at), number))
        return np.concatenate(predict), np.concatenate(target), np.concatenate(owner)


@dataclass(frozen=True)
class _Medium:
    """A medium of a pack: its frames, its features or None; the rows [t, n] of the tokens of its temporal patches; the
    slice of temporal patches that this rank needs; and the cache key for its features (empty: not cached)."""

    plan: FramePlan
    content: Any
    places: np.ndarray
    part: slice
    key: str


def _keys(sample: Any, arrays: Sequence[Any], features: FeatureCache | None) -> list[str]:
    """The feature cache key of each medium of a sample; empty, so never cached, if it could not be decoded."""
    if features is None:
        return [""] * len(arrays)
    media = zip(sample.record.media, sample.plans, arrays, strict=True)
    return [features.key(ref, plan) if isinstance(frames, np.ndarray) else "" for ref, plan, frames in media]


def _cached(computed: Sequence[_Medium], read: Sequence[_Medium], features: FeatureCache) -> CachedFeatures:
    tokens = tuple((medium.key, medium.plan.tokens) for medium in computed)
    saved = features.flops.training_flops([tower_workload([medium.plan for medium in read])])
    return CachedFeatures(tuple(medium.content.values for medium in read), tokens, saved, features)


def _among(places: np.ndarray, own: slice) -> np.ndarray:
    """The mask of the rows that belong to a rank, bool."""
    return (places >= own.start) & (places < own.stop)


def _frame_size(plan: FramePlan) -> tuple[int, int]:
    """Rows and columns of patches: the sort key that makes frames of one size neighbours."""
    return plan.grid[1], plan.grid[2]


class PairCollator(Collator):
    """A collator for pairs. In `Batch.samples` the answers of pair n are 2n (chosen) and 2n + 1 (rejected). With
    `share`, pairs about one video share it, too. `first` is added to n: validation pairs follow the training pairs."""

    first = 0

    def __init__(self, *args: Any, share: bool = False, **options: Any) -> None:
        super().__init__(*args, share=True, **options)
        self.shares_videos = share

    def behind(self, count: int) -> PairCollator:
        """A copy of this collator for a set whose pairs are numbered from `count` on."""
        other = copy(self)
        other.first = count
        return other

    def __call__(
        self,
        numbers: Sequence[int],
        samples: Sequence[Sample],
        frames: Sequence[Sequence[Any]],
        features: FeatureCache | None = None,
    ) -> Batch:
        answers = [2 * (self.first + number) + side for number in numbers for side in (0, 1)]
        doubled = [of_sample for of_sample in frames for _ in (0, 1)]
        return super().__call__(answers, self._halves(samples), doubled, features)

    def segments(self, samples: Sequence[Sample]) -> tuple[Segments, Segments]:
        return super().segments(self._halves(samples))

    def _halves(self, samples: Sequence[Sample]) -> list[Sample]:
        halves: list[Sample] = []
        for place, pair in enumerate(samples):
            assert isinstance(pair, PairSample)
            halves += pair.halves(pair.prefix_key if self.shares_videos else str(place).encode())
        return halves


def stock_inputs(
    planner: Planner,
    prompts: Sequence[np.ndarray],
    plans: Sequence[Sequence[FramePlan]],
    frames: Sequence[Sequence[np.ndarray]],
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The inputs of a stock model for a left-padded batch: `prompts[i]` are token ids, `plans[i]` their media in
    reading order, and `frames[i][m]` is uint8 [n, 3, h, w]."""
    width = max(map(len, prompts))
    ids = np.full((len(prompts), width), planner.chat.pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for number, row in enumerate(prompts):
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
            for row_plans, arrays in zip(plans, frames, strict=True)
            for plan, array in zip(row_plans, arrays, strict=True)
            if plan.kind == kind
        ]
        if media:
            parts = [patchify(as_tensor(array), rules, rules.mean, rules.std) for _, array in media]
            tensors[pixels] = torch.cat(parts)
            tensors[grid] = torch.tensor([plan.grid for plan, _ in media])
        if media and kind == "video":
            tensors |= torch_half(planner.family).video_inputs([plan for plan, _ in media])
    return {name: tensor.to(device) for name, tensor in tensors.items()}
