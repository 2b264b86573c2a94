"""From records to samples: every medium probed and planned, every token counted, nothing decoded.

Preflight, training and evaluation all plan with one `Planner`; what it counts is what the collator later builds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from vidqa.chat import Chat, Encoded, load_chat
from vidqa.data.record import MediaRef, Record
from vidqa.families import family_of
from vidqa.problem import Problem, ProblemError
from vidqa.sample_problems import SAMPLE_TOO_LONG
from vidqa.video import plan_frames, plan_image, vision_spec
from vidqa.video.headers import Header, read_headers
from vidqa.video.types import FramePlan, ImageMeta, VisionSpec


@dataclass(frozen=True, slots=True)
class Prompting:
    """How records are put to the model; the same in training and evaluation unless a spec says otherwise."""

    system_prompt: str = ""
    response_mode: str = "answer"  # answer | think | hybrid
    for_generation: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """A record after planning. `length` counts tokens of text and media, `supervised` those that are learned.

    The first `prefix` tokens, up to the last of its media, are the same in every sample with the same `prefix_key`;
    they are learned from in none of them.
    """

    record: Record
    plans: tuple[FramePlan, ...]
    prompting: Prompting
    length: int
    supervised: int
    prefix: int = 0
    prefix_key: bytes = b""

    @property
    def patches(self) -> int:
        return sum(plan.patches for plan in self.plans)

    @property
    def media_tokens(self) -> int:
        return sum(plan.tokens for plan in self.plans)

    @property
    def place(self) -> str:
        """Where the record stands, for problems."""
        return f"{self.record.source} (id {self.record.id})"

    def too_long(self, longest: int, remedy: str | None = None) -> Problem:
        """The problem of a sample with more than `longest` tokens."""
        message = f"{self.length} tokens, {self.media_tokens} of them video or image; {longest} allowed"
        return SAMPLE_TOO_LONG.at(self.place, message, remedy)


def training_planner(spec: Any, model_folder: Path) -> Planner:
    """The planner of a TrainSpec."""
    prompting = Prompting(spec.custom.system_prompt, spec.custom.train_dataset.response_mode)
    return Planner(model_folder, spec.custom.vision, prompting)


def validation_mode(spec: Any) -> str:
    """The response mode of a TrainSpec's validation samples: their set's own, or that of the set they come from."""
    held = spec.custom.val_dataset
    return held.response_mode if held.annotation_path else spec.custom.train_dataset.response_mode


def evaluation_planner(spec: Any, model_folder: Path) -> Planner:
    """The planner of an EvaluateSpec: the same frames and tokens, up to where the answer begins."""
    return Planner(model_folder, spec.vision, Prompting(spec.dataset.system_prompt, for_generation=True))


def longest_allowed(spec: Any) -> int:
    """Tokens that a sample of this spec may have; an evaluation leaves room for the answer."""
    if hasattr(spec, "policy"):
        return spec.policy.model_max_length
    return spec.model.max_length - spec.generation.max_tokens


class Planner:
    """Plans records for one model and one way of sampling; remembers every file it has probed."""

    def __init__(self, model_folder: Path, vision: object, prompting: Prompting) -> None:
        """`vision` is the spec's table with fps, nframes, total_pixels and max_pixels."""
        self.family = family_of(model_folder)
        self.geometry = self.family.geometry(model_folder)
        self.chat: Chat = load_chat(model_folder)
        self.vision: VisionSpec = vision_spec(
            self.geometry,
            fps=getattr(vision, "fps", None),
            nframes=getattr(vision, "nframes", None),
            total_pixels=getattr(vision, "total_pixels", None),
            max_pixels=getattr(vision, "max_pixels", None),
        )
        self.prompting = prompting
        self._plans: dict[str, FramePlan | tuple[Problem, ...]] = {}

    def for_generation(self) -> Planner:
        """The same planner for prompts that end where the answer begins; it shares what was probed."""
        twin = copy(self)
        twin.prompting = replace(self.prompting, for_generation=True)
        return twin

    def encode(self, sample: Sample) -> Encoded:
        """The sample's tokens, as the model will see them; a planner for generation leaves the answer out."""
        wanted = replace(sample.prompting, for_generation=self.prompting.for_generation)
        return self._encode(sample.record, sample.plans, wanted)

    def _encode(self, record: Record, plans: Sequence[FramePlan], prompting: Prompting) -> Encoded:
        return self.chat.encode(
            record,
            plans,
            system_prompt=prompting.system_prompt,
            response_mode=prompting.response_mode,
            for_generation=prompting.for_generation,
        )

    def plan(self, records: Sequence[Record], response_mode: str | None = None) -> tuple[list[Sample], list[Problem]]:
        """Samples in the order of their records, and the problems of records that cannot become one. `response_mode`
        takes the place of the planner's own."""
        prompting = replace(self.prompting, response_mode=response_mode or self.prompting.response_mode)
        new = {ref.key: ref for record in records for ref in record.media if ref.key not in self._plans}
        self.take(dict(zip(new, read_headers(new.values()), strict=True)))
        samples: list[Sample] = []
        problems: list[Problem] = []
        for record in records:
            try:
                samples.append(self._sample(record, prompting))
            except ProblemError as bad:
                problems.extend(replace(p, where=f"{record.source} (id {record.id}): {p.where}") for p in bad.problems)
        return samples, problems

    def _sample(self, record: Record, prompting: Prompting) -> Sample:
        plans = tuple(self._plan_of(ref) for ref in record.media)
        encoded = self._encode(record, plans, prompting)
        sample = Sample(record, plans, prompting, len(encoded.token_ids), int(encoded.supervised.sum()))
        return self._with_prefix(sample, encoded) if plans else sample

    def _with_prefix(self, sample: Sample, encoded: Encoded) -> Sample:
        slots = np.flatnonzero(
            np.isin(encoded.token_ids, [slot for slot in self.chat.slot_ids.values() if slot is not None])
        )
        prefix = int(slots[-1]) + 1
        if encoded.supervised[:prefix].any():
            return sample
        identity = repr([(ref.key, plan) for ref, plan in zip(sample.record.media, sample.plans, strict=True)])
        key = blake2b(encoded.token_ids[:prefix].tobytes() + identity.encode(), digest_size=16).digest()
        return replace(sample, prefix=prefix, prefix_key=key)

    def _plan_of(self, ref: MediaRef) -> FramePlan:
        plan = self._plans[ref.key]
        if isinstance(plan, tuple):
            raise ProblemError(plan)
        return plan

    def take(self, headers: Mapping[str, Header]) -> None:
        """Plan media whose headers have been read, by their keys: they are not read again."""
        for key, header in headers.items():
            self._plans[key] = self._planned(header)

    def _planned(self, header: Header) -> FramePlan | tuple[Problem, ...]:
        if isinstance(header, list):
            return tuple(header)
        try:
            if isinstance(header, ImageMeta):
                return plan_image(header.width, header.height, self.vision)
            return plan_frames(header, self.vision)
        except ProblemError as bad:
            return tuple(bad.problems)
