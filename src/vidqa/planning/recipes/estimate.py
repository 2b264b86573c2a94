"""Memory and time of a training on data that is described, not read: so many samples, all of one length and size.

The arithmetic is preflight's: frames as planned, the heaviest pack, the fastest memory policy that fits, and the
utilisation that a similar measured training has reached. Text is taken as `TEXT` tokens and the time stamps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vidqa.families import Geometry, family_of
from vidqa.families.published import published
from vidqa.families.sizes import Sizes, Tensor
from vidqa.planning.budget.cards import CARDS, Card, card_of, mfu_on
from vidqa.planning.budget.forecast import forecast, pack_sizes
from vidqa.planning.budget.measured import START_S, efficiency
from vidqa.planning.budget.memory import MicroStep, Model, fits, model_of, setup_of
from vidqa.planning.budget.trained import parameters
from vidqa.planning.budget.work import flops_model, share_again
from vidqa.planning.packing.packs import padded
from vidqa.planning.packing.sharing import Work
from vidqa.planning.packing.steps import pack_budget
from vidqa.planning.samples import Sample
from vidqa.spec import total_steps
from vidqa.spec.models import TrainSpec
from vidqa.spec.policy_tables import Policy
from vidqa.video import plan_frames, plan_image, vision_spec
from vidqa.video.types import FramePlan, VideoMeta

TEXT = 120  # tokens of a question with its options, the answer, and the turns around them
ANSWER = 20  # of these, what is learned
FRAME = 32  # patches of a side of a frame, 512 pixels
STAMP = 9  # tokens of the time stamp of two frames, in families that write one


@dataclass(frozen=True)
class Data:
    """What a training set is like: `samples` questions about media of one size, an image where `seconds` is 0."""

    samples: int
    seconds: float
    width: int
    height: int
    source_fps: float = 30.0


@dataclass(frozen=True)
class Estimate:
    """`fits` says whether a GPU has room for the peak with the margin that preflight leaves, `again` what share of the
    work backward does again for it. `steps` and `hours` are of the whole run, decoding not counted; `mfu` is the
    utilisation assumed."""

    tokens: int
    peak_gib: float
    fits: bool
    again: float
    steps: int
    hours: float
    mfu: float


@cache
def _known(repository: str) -> tuple[Sizes, tuple[Tensor, ...], Geometry]:
    """Sizes, parameters and processor of a published model."""
    found = published(repository)
    if found is None:
        raise ValueError(f"{repository} is not in the table of published models")
    with TemporaryDirectory(prefix="vidqa-recipe-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(found.config), encoding="utf-8")
        (folder / "processor_config.json").write_text(json.dumps(found.processor), encoding="utf-8")
        family = family_of(folder)
        sizes = family.sizes_of(folder)
        return sizes, tuple(family.tensors(sizes)), family.geometry(folder)


@cache
def _model(repository: str, chosen: str) -> Model:
    """The model with the parts that train; `chosen` is the JSON of the spec's table `policy` where it says which."""
    sizes, tensors, _ = _known(repository)
    return model_of(sizes, parameters(tensors, Policy.model_validate_json(chosen)))


def estimate(spec: TrainSpec, data: Data, gpu: str, memory_gib: float) -> Estimate:
    """What the training needs on GPUs of a kind (a word of CARDS) with so much memory."""
    repository = spec.policy.model_name_or_path.removeprefix("hf_model://")
    sizes, _, geometry = _known(repository)
    plan = _plan(spec.custom.vision.model_dump(), data, geometry)
    stamps = 0 if geometry.positions_per_s else STAMP * plan.grid[0]
    length = plan.tokens + TEXT + (stamps if plan.kind == "video" else 0)
    model = _trained(spec)
    found = forecast(spec, model, EqualSamples(spec, length, plan.patches), memory_gib)

    flops = flops_model(sizes, vision_trains=model.vision.trained > 0, decoder_trains=spec.policy.lora is None)
    pairs = plan.grid[0] * (plan.grid[1] * plan.grid[2]) ** 2
    work = flops.of([Work(length, length**2, ANSWER, plan.patches, pairs, (plan.grid,))])
    steps = total_steps(spec, data.samples)
    again = share_again(spec, model, found.policy.recompute, found.micro_step)
    reached = efficiency(model, setup_of(spec, found.policy), again).on(gpu)
    seconds = steps * spec.train.train_batch_per_replica * work / (CARDS[gpu].peak * reached.mfu)
    return Estimate(
        tokens=length,
        peak_gib=found.memory.peak_gib,
        fits=fits(found.memory.peak_gib, memory_gib),
        again=again,
        steps=steps,
        hours=(START_S + seconds) / 3600,
        mfu=reached.mfu,
    )


@dataclass(frozen=True)
class OneCard:
    """A training of equal samples on a card: whether there is room, real tokens a second, and work done again."""

    fits: bool
    tokens_per_s: float
    again: float


def equal_samples(spec: TrainSpec, length: int, card: Card) -> OneCard:
    """Of samples of `length` tokens, nearly all of them of a video in frames of `FRAME` patches a side."""
    model, patches = _trained(spec), 4 * (length - TEXT)
    found = forecast(spec, model, EqualSamples(spec, length, patches), card.memory_gib)
    flops = flops_model(model.sizes, vision_trains=model.vision.trained > 0, decoder_trains=spec.policy.lora is None)
    grid = (max(1, patches // FRAME**2), FRAME, FRAME)
    work = flops.of([Work(length, length**2, ANSWER, patches, patches * FRAME**2, (grid,))])
    again = share_again(spec, model, found.policy.recompute, found.micro_step)
    reached = efficiency(model, setup_of(spec, found.policy), again)
    here = card_of(reached.gpu)
    mfu = mfu_on(card, reached.mfu, here) if here else reached.mfu
    return OneCard(fits(found.memory.peak_gib, card.memory_gib), length * card.peak * mfu / work, again)


def _trained(spec: TrainSpec) -> Model:
    repository = spec.policy.model_name_or_path.removeprefix("hf_model://")
    return _model(repository, spec.policy.model_dump_json(include={"lora", "freeze_pattern", "trainable_pattern"}))


def _plan(vision: Mapping[str, Any], data: Data, geometry: Geometry) -> FramePlan:
    asked = vision_spec(geometry, **vision)
    if not data.seconds:
        return plan_image(data.width, data.height, asked)
    frames = round(data.seconds * data.source_fps)
    return plan_frames(VideoMeta(data.source_fps, frames, data.seconds, data.width, data.height), asked)


class EqualSamples:
    """The packs of samples that are all of one length, which a step spreads evenly."""

    def __init__(self, spec: TrainSpec, length: int, patches: int) -> None:
        self.each, self.patches, self.batch = padded(length, "cuda"), patches, spec.train.train_batch_per_replica
        self.budget = pack_budget(spec)
        self.answered: Sequence[Sample] = ()

    def heaviest(self, pack_tokens: int | None) -> list[MicroStep]:
        packs = -(-self.batch // max(1, (pack_tokens or self.budget) // self.each))
        together = -(-self.batch // packs)
        return [MicroStep(together * self.each, together * self.patches, together * ANSWER, packs > 1)]

    def sizes(self, spec: TrainSpec) -> Sequence[int | None]:
        return pack_sizes(spec, self.each, self.budget)
