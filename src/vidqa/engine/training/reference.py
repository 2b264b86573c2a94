"""Log-probabilities of all answers under the initial model of a training on pairs, computed once.

The model must have its initial weights here, also in a resumed run. The values are stored in the run folder with a
hash of the model and the plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidqa.core.files import replacing
from vidqa.core.problem import Problem
from vidqa.core.run_folder import RunFolder
from vidqa.engine.data.collate import PairCollator
from vidqa.engine.data.dataloader import Schedule
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.planned_samples import BadSamples
from vidqa.engine.data.prefetch import Prefetcher
from vidqa.engine.training.objectives import Preference
from vidqa.engine.training.resume import Start
from vidqa.engine.training.validate import plan_forward
from vidqa.planning.pairs import PairSample
from vidqa.planning.resume_compat import weights_hash

FILE = "reference.npz"


def load_reference(
    objective: Preference,
    model: Any,
    schedule: Schedule,
    start: Start,
    collator: PairCollator,
    source: FrameSource,
    run: RunFolder,
) -> None:
    """Set the objective's reference: the stored one, or a forward pass over the pairs that the run uses. Every rank
    takes part. Raises ENGINE_BAD_SAMPLE."""
    world, used = schedule.world, _used(schedule)
    key = world.on_main(lambda: _key(schedule, start, collator, used))
    sums = world.on_main(lambda: _stored(run.path / FILE, key))
    if sums is None:
        sums = _computed(objective, model, schedule, collator, source, run, used)
        world.on_main(lambda: _store(run.path / FILE, key, sums))
    objective.reference = torch.from_numpy(sums).to(world.device)


def _pairs(schedule: Schedule) -> list[PairSample]:
    """The pairs of the training set, then those of the validation set."""
    return [*schedule.data.train, *schedule.data.validation]  # type: ignore[list-item]


def _used(schedule: Schedule) -> list[int]:
    """The numbers of the pairs that some step, or the validation, uses."""
    train = {number for step in range(schedule.total) for number in schedule.order.step(step)}
    held = range(len(schedule.data.validation)) if schedule.spec.validation.enable else ()
    return [*sorted(train), *(len(schedule.data.train) + number for number in held)]


def _computed(
    objective: Preference,
    model: Any,
    schedule: Schedule,
    collator: PairCollator,
    source: FrameSource,
    run: RunFolder,
    used: Sequence[int],
) -> np.ndarray:
    """Compute sums of log-probabilities, float32 [answers]; NaN for answers that are not used, have no supervised token
    or could not be decoded."""
    world, pairs = schedule.world, _pairs(schedule)
    world.note(f"computing the reference of {len(used)} pairs")
    packs = plan_forward(schedule.spec, pairs, world, used)
    sums, bad = np.full(2 * len(pairs), np.nan, np.float32), list[Problem]()
    model.eval()
    with torch.no_grad(), Prefetcher(packs, pairs, source, collator, world.device) as batches:
        for loaded in batches:
            bad += loaded.problems
            answers, tokens = objective.answer_sums(model, loaded.batch)
            sums[list(loaded.batch.samples)] = answers.where(tokens > 0, torch.nan).cpu().numpy()
    model.train()
    BadSamples(run, world, schedule.spec.engine.on_bad_sample).report(bad)
    return np.fmax.reduce(world.gather(sums))  # each answer is of one rank, and NaN on the others


def _key(schedule: Schedule, start: Start, collator: PairCollator, used: Sequence[int]) -> str:
    """A hash of the model, the samples and the precision that the sums depend on."""
    spec, planner = schedule.spec, collator.planner
    lora, adapter = spec.policy.lora, start.first_adapter(spec)
    model: list[Any] = [weights_hash(Path(folder)) for folder in (spec.policy.model_name_or_path, adapter) if folder]
    # Adapters may be initialised with random values, drawn from the seed.
    model += [spec.policy.quantization, lora and {**lora.model_dump(), "lora_path": adapter}, spec.train.seed]
    counts = [(pair.record.id, pair.prefix_key.hex(), pair.length, pair.chosen) for pair in _pairs(schedule)]
    parts = [model, spec.train.param_dtype, schedule.data.fingerprint, list(used), counts]
    rendering = [asdict(planner.prompting), asdict(planner.vision)]
    return hashlib.sha256(json.dumps([parts, rendering], default=str).encode()).hexdigest()


def _stored(path: Path, key: str) -> np.ndarray | None:
    try:
        with np.load(path) as stored:
            return stored["sums"] if str(stored["key"]) == key else None
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _store(path: Path, key: str, sums: np.ndarray) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, key=np.array(key), sums=sums)
