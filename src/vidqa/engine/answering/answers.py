"""Answers and their recipe, the settings that they depend on; answers are decoded from tokens and saved in one
append-only file per rank, merged by sample id."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence, Set
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from vidqa.core.cli import note
from vidqa.core.files import remove
from vidqa.core.run_folder import RunFolder
from vidqa.data import fingerprint
from vidqa.data.problems import shown_names
from vidqa.data.record import Record
from vidqa.engine.problems import ENGINE_ANSWERS_MISSING
from vidqa.evaluation.results import FREE
from vidqa.families.chat import Chat
from vidqa.planning.problems import RESUME_MISMATCH
from vidqa.planning.requests import Result
from vidqa.planning.resume_compat import weights_hash
from vidqa.planning.samples import Planner, Sample
from vidqa.spec.models import EvaluateSpec, InferenceSpec
from vidqa.video.types import VisionSpec

# Neutral values of sampling settings, which a recipe omits.
DRAWS_ANY = {"top_p": 1.0, "top_k": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
AnsweringSpec = EvaluateSpec | InferenceSpec


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of a file of answers. `finish_reason` is "stop" if the model ended its turn, "length" if it was truncated,
    and "scored" if it was not generated: then `logprobs` has the log-probability of each allowed answer. `tokens` is
    the length of a generated text, without the end-of-turn token."""

    sample_id: str
    text: str
    finish_reason: str
    tokens: int
    logprobs: dict[str, float] | None = None


def answer_of(result: Result, chat: Chat) -> Answer:
    """The answer with the decoded text of a generated result."""
    token_ids = result.token_ids[:-1] if result.finish_reason == "stop" else result.token_ids
    return Answer(result.id, chat.decode(token_ids).strip(), result.finish_reason, len(token_ids))


class SavedAnswers:
    """Answers saved under one recipe; answers of different recipes are never mixed."""

    def __init__(self, folder: Path, recipe: dict[str, Any], rank: int) -> None:
        # Keys in FREE may differ between comparable scores, so they may differ here, except the model.
        fixed = {key: value for key, value in recipe.items() if key not in FREE or key == "model"}
        digest = hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()[:12]
        self.folder = folder / digest
        self.path = self.folder / f"rank-{rank}.jsonl"

    def append(self, answers: Sequence[Answer]) -> None:
        """Append answers; they are on disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for answer in answers:
                file.write(json.dumps(msgspec.to_builtins(answer), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> dict[str, Answer]:
        """Read all ranks' answers by sample id; the first answer of an id counts. A torn last line is truncated, and
        lines without JSON are skipped: those samples are answered again. Both are reported. Call it while no rank
        writes. Raises RESUME_MISMATCH for JSON that is not an answer."""
        answers: dict[str, Answer] = {}
        for path in sorted(self.folder.glob("rank-*.jsonl")):
            lines = path.read_bytes().split(b"\n")
            if torn := lines.pop():
                os.truncate(path, path.stat().st_size - len(torn))
                note(f"{path}: the last line is truncated after {len(torn)} bytes; that sample is asked again")
            broken = 0
            for number, line in enumerate(lines, 1):
                try:
                    answer = msgspec.json.decode(line, type=Answer)
                    if (answer.finish_reason == "scored") != (answer.logprobs is not None):
                        raise msgspec.ValidationError("Only scored answers have `logprobs`")
                except msgspec.ValidationError as wrong:
                    remedy = "correct or remove the line, or answer all again with evaluation.skip_saved = false"
                    raise RESUME_MISMATCH.error(f"{path}:{number}", f"no saved answer: {wrong}", remedy) from wrong
                except (ValueError, RecursionError):
                    broken += 1
                else:
                    answers.setdefault(answer.sample_id, answer)
            if broken:
                note(f"{path}: {broken} lines cannot be read; those samples are asked again")
        return answers

    def forget(self) -> dict[str, Answer]:
        """Delete earlier answers; returns an empty dict, like `read` without answers."""
        remove(self.folder, owner=self.folder.parent)
        return {}


def require_answers(
    samples: Sequence[Sample], answers: Mapping[str, Answer], undecoded: Set[str], run: RunFolder
) -> None:
    """Raise ENGINE_ANSWERS_MISSING if a planned sample that could be decoded has no answer."""
    expected = [sample.record.id for sample in samples if sample.record.id not in undecoded]
    if missing := [sample_id for sample_id in expected if sample_id not in answers]:
        message = f"{len(missing)} of {len(expected)} answers are missing: {shown_names(missing)}"
        raise ENGINE_ANSWERS_MISSING.error(run.path / "answers", message)


def answers_recipe(
    spec: AnsweringSpec, how: Any, planner: Planner, records: Sequence[Record], model: dict[str, Any]
) -> dict[str, Any]:
    """The recipe of answers. `how` is the spec's table with seed and generator."""
    rules, drawn = planner.vision.video, {name: getattr(spec.generation, name) for name in DRAWS_ANY}
    return {
        "schema_version": 1,
        "model": model,
        "data_fingerprint": fingerprint(records),
        "samples": len(records),
        "frames": {
            "fps": planner.vision.fps,
            "nframes": planner.vision.nframes,
            "total_pixels": planner.vision.total_pixels,
            "max_frame_pixels": planner.vision.max_pixels,
            **_frame_settings(planner.vision),
            "min_pixels": rules.min_pixels,
            "max_pixels": rules.max_pixels,
            "patch_size": rules.patch_size,
            "merge_size": rules.merge_size,
        },
        "prompt": {
            "system_prompt": planner.prompting.system_prompt,
            "chat_template_sha256": hashlib.sha256(planner.chat.template.source.encode()).hexdigest(),
        },
        "generation": {
            "max_tokens": spec.generation.max_tokens,
            "temperature": spec.generation.temperature,
            "repetition_penalty": spec.generation.repetition_penalty,
            **{name: value for name, value in drawn.items() if value != DRAWS_ANY[name]},
            "seed": how.seed,
            "dtype": spec.model.dtype,
            # Omitted for the reference generator, as in older recipes.
            **({} if how.generator == "transformers" else {"generator": how.generator}),
        },
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "av")},
    }


def fingerprint_model(folder: Path, base: Path | None) -> dict[str, Any]:
    """The identity of the evaluated weights: folders and hash."""
    return {"folder": str(folder), "base": str(base) if base else None, "sha256": weights_hash(folder, base)}


def _frame_settings(vision: VisionSpec) -> dict[str, Any]:
    """Settings of frames that differ from the defaults, so that earlier recipes stay unchanged."""
    keys = {"min_frame_pixels": vision.min_pixels, "sides": vision.sides, "shown_s": vision.shown}
    keys["cap_pixels_per_frame"] = vision.video.capped or None
    return {name: value for name, value in keys.items() if value is not None}
