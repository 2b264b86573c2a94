"""Planning of samples: read the headers of media, plan frames, and count tokens of records. Nothing is decoded.

Preflight, training and evaluation share one `Planner`. The collator builds the same tokens, and asserts the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from vidqa.core.gc_pause import paused
from vidqa.core.problem import Problem, ProblemError
from vidqa.data.problems import FIELD
from vidqa.data.record import MediaRef, MediumKeys, Record
from vidqa.families import family_of, require_plain_weights
from vidqa.families.chat import Chat, Encoded, Outline, load_chat, media_order
from vidqa.planning.problems import SAMPLE_TOO_LONG
from vidqa.spec.models import EmbedSpec, EvaluateSpec, InferenceSpec, QuantizeSpec, TrainSpec
from vidqa.video.plan import plan_frames, plan_image
from vidqa.video.probe import Header, probe_many
from vidqa.video.problems import MEDIA_KEYS
from vidqa.video.types import VISION_KEYS, FramePlan, ImageMeta, VisionSpec, vision_spec, with_keys

TOKEN_BYTES = 4  # of one id in Outline.prefix
MOST_TOKENS = 1 << 20  # of a medium: the longest context of any model


@dataclass(frozen=True, slots=True)
class Prompting:
    """The prompt around a record; the same in training and evaluation unless a spec says otherwise."""

    system_prompt: str = ""
    response_mode: str = "answer"  # answer | think | hybrid
    for_generation: bool = False


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium after planning."""

    plan: FramePlan
    tokens: int  # in a prompt, timestamps and markers included
    last_placeholder: int  # index of the last placeholder of a feature among these tokens
    identity: bytes  # a hash of the file's key and the plan


@dataclass(frozen=True, slots=True)
class Sample:
    """A record after planning."""

    record: Record
    plans: tuple[FramePlan, ...]  # one for each of record.media
    prompting: Prompting
    length: int  # tokens of text and media
    supervised: int  # tokens with a loss
    # The first `prefix` tokens, up to the last placeholder, are equal in all samples with this key, and have no loss.
    prefix: int = 0
    prefix_key: bytes = b""

    @property
    def patches(self) -> int:
        """Patches of all media, the input length of the vision tower."""
        return sum(plan.patches for plan in self.plans)

    @property
    def media_tokens(self) -> int:
        """Placeholders of all media, the features that the decoder gets."""
        return sum(plan.tokens for plan in self.plans)

    def too_long(self, longest: int, remedy: str | None = None) -> Problem:
        """The problem SAMPLE_TOO_LONG; `longest` is the limit in tokens."""
        message = f"{self.length} tokens, {self.media_tokens} of them video or image; {longest} allowed"
        return SAMPLE_TOO_LONG.at(self.record.place, message, remedy)


def training_planner(spec: TrainSpec, model_folder: Path) -> Planner:
    """The planner of a TrainSpec. Raises MODEL_QUANTIZED."""
    require_plain_weights(model_folder, "training begins with")
    prompting = Prompting(spec.custom.system_prompt, spec.custom.train_dataset.response_mode)
    return Planner(model_folder, spec.custom.vision, prompting)


def calibration_planner(spec: QuantizeSpec, model_folder: Path) -> Planner:
    """The planner of a QuantizeSpec: whole conversations, as in training. Raises MODEL_QUANTIZED."""
    require_plain_weights(model_folder, "quantizing begins with")
    return Planner(model_folder, spec.vision, Prompting(spec.dataset.system_prompt, spec.dataset.response_mode))


def validation_mode(spec: TrainSpec) -> str:
    """The response mode of a TrainSpec's validation samples: that of their set, or of the training set if they are held
    out of it."""
    validation_set = spec.custom.val_dataset
    return validation_set.response_mode if validation_set.annotation_path else spec.custom.train_dataset.response_mode


def evaluation_planner(spec: EvaluateSpec | InferenceSpec | EmbedSpec, model_folder: Path) -> Planner:
    """The planner of a spec that generates answers: frames and tokens as in training, up to where the answer begins."""
    return Planner(model_folder, spec.vision, Prompting(spec.dataset.system_prompt, for_generation=True))


class Planner:
    """Plan records for one model and one VisionSpec; caches the header of every file."""

    def __init__(self, model_folder: Path, vision: object, prompting: Prompting) -> None:
        """Take `vision`, the spec's table with the keys of VISION_KEYS. Raises ProblemError if the model folder cannot
        be read, or does not support one of these keys."""
        self.folder = model_folder
        self.family = family_of(model_folder)
        self.geometry = self.family.geometry(model_folder)
        self.chat: Chat = load_chat(model_folder)
        self.vision: VisionSpec = self.vision_spec(vision)
        self.prompting = prompting
        self._headers: dict[str, Header] = {}
        self._media: dict[tuple[str, MediumKeys], Medium | tuple[Problem, ...]] = {}

    def vision_spec(self, table: object) -> VisionSpec:
        """The VisionSpec of this model for a spec's table with the keys of VISION_KEYS. Raises MEDIA_KEYS."""
        return vision_spec(self.geometry, **{key: getattr(table, key, None) for key in VISION_KEYS})

    def for_generation(self) -> Planner:
        """A planner for prompts that end where the answer begins; it shares this one's caches."""
        other = copy(self)
        other.prompting = replace(self.prompting, for_generation=True)
        return other

    def with_vision(self, vision: VisionSpec) -> Planner:
        """A planner of the same model and prompts with another VisionSpec and empty caches."""
        other = copy(self)
        other.vision, other._headers, other._media = vision, {}, {}
        return other

    def encode(self, sample: Sample) -> Encoded:
        """The tokens of a sample of this model; a planner for generation leaves the answer out."""
        prompting = replace(sample.prompting, for_generation=self.prompting.for_generation)
        return self.chat.encode(sample.record, sample.plans, **asdict(prompting))

    def plan(self, records: Sequence[Record], response_mode: str | None = None) -> tuple[list[Sample], list[Problem]]:
        """Samples in the order of their records, and the problems of records that cannot become one. `response_mode`
        replaces the planner's."""
        prompting = replace(self.prompting, response_mode=response_mode or self.prompting.response_mode)
        unread: dict[str, MediaRef] = {}
        for ref in (ref for record in records for ref in record.media):
            if ref.file not in self._headers:
                unread.setdefault(ref.file, ref)
        self._headers |= zip(unread, probe_many(unread.values()), strict=True)
        samples: list[Sample] = []
        problems: list[Problem] = []
        with paused():
            outlines = self.chat.outlines(records, **asdict(prompting))
            for record, outline in zip(records, outlines, strict=True):
                try:
                    samples.append(self._sample(record, prompting, outline))
                except ProblemError as bad:
                    problems.extend(replace(p, where=f"{record.place}: {p.where}") for p in bad.problems)
        return samples, problems

    def _sample(self, record: Record, prompting: Prompting, outline: Outline | list[Problem]) -> Sample:
        """Build a sample; `outline` counts the record's tokens with one token for each medium."""
        media = [self._medium_of(ref) for ref in record.media]
        if isinstance(outline, list):
            raise ProblemError(outline)
        plans = tuple(medium.plan for medium in media)
        length = outline.tokens + sum(medium.tokens - 1 for medium in media)
        if not media or outline.prefix_supervised:
            return Sample(record, plans, prompting, length, outline.supervised)
        last_medium = media[media_order(record)[-1]]
        tokens_after_prefix = outline.tokens - len(outline.prefix) // TOKEN_BYTES
        prefix = length - tokens_after_prefix - last_medium.tokens + last_medium.last_placeholder + 1
        key = blake2b(outline.prefix + b"".join(medium.identity for medium in media), digest_size=16).digest()
        return Sample(record, plans, prompting, length, outline.supervised, prefix, key)

    def _medium_of(self, ref: MediaRef) -> Medium:
        medium = self._media.get(ref.view)
        if medium is None:
            medium = self._media[ref.view] = self._plan_medium(ref)
        if isinstance(medium, tuple):
            raise ProblemError(medium)
        if medium.plan.kind != ref.kind:
            message = f"it is listed as {ref.kind} here, and as {medium.plan.kind} elsewhere"
            raise FIELD.error(ref.key, message, "list the file as what it is in every record")
        return medium

    def set_headers(self, headers: Mapping[str, Header]) -> None:
        """Use these headers, by MediaRef.file, instead of reading the files; plans from other headers are dropped."""
        self._headers |= headers
        self._media.clear()

    def _plan_medium(self, ref: MediaRef) -> Medium | tuple[Problem, ...]:
        header = self._headers[ref.file]
        if isinstance(header, list):
            return tuple(header)
        try:
            vision = with_keys(self.vision, dict(ref.keys)) if ref.keys else self.vision
            if isinstance(header, ImageMeta):
                plan = plan_image(header.width, header.height, vision)
            else:
                plan = plan_frames(header, vision, ref.span)
        except ProblemError as bad:
            return tuple(bad.problems)
        if plan.tokens > MOST_TOKENS:
            message = f"it would have {plan.tokens:,} tokens; no model supports more than {MOST_TOKENS:,}"
            return (MEDIA_KEYS.at(ref.key, message, "lower min_pixels"),)
        token_ids = self.chat.expansion(plan)
        last_placeholder = int(np.flatnonzero(token_ids == self.chat.slot_ids[plan.kind])[-1])
        identity = blake2b(repr((ref.key, plan)).encode(), digest_size=16).digest()
        return Medium(plan, len(token_ids), last_placeholder, identity)
