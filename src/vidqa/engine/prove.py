"""Proof that engine.share_video_prefix does not change losses: the losses of the samples of one step are computed with
and without shared video prefixes, and compared. Nothing is trained.

python -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --verify --spec S.toml --run-dir R
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vidqa.core.cli import note
from vidqa.core.files import write_json
from vidqa.core.problem import Exit
from vidqa.core.run_folder import RunFolder
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.planned_samples import prepare_training
from vidqa.engine.data.prefetch import Prefetcher
from vidqa.engine.distributed import World
from vidqa.engine.export.proof import TOLERANCE
from vidqa.engine.loading.load import load_sharded
from vidqa.engine.model import DTYPES
from vidqa.engine.problems import ENGINE_UNPROVEN
from vidqa.engine.training.trainer import start_world
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE
from vidqa.planning.packing import Steps
from vidqa.planning.pairs import learns_pairs
from vidqa.planning.samples import Sample, training_planner
from vidqa.spec import total_steps
from vidqa.spec.keys import with_values
from vidqa.spec.models import TrainSpec
from vidqa.spec.problems import CONFLICT

KEY = "engine.share_video_prefix"
PROOF = "sharing.json"


@dataclass(frozen=True)
class StepLosses:
    """The result of the forward pass of one step over all ranks: the mean loss of each sample by its number, the number
    of tokens including padding, and the seconds of the slowest rank after decoding and compilation."""

    losses: dict[int, float]
    tokens: int
    seconds: float

    def as_dict(self) -> dict[str, float]:
        mean = sum(self.losses.values()) / max(1, len(self.losses))
        return {"loss": mean, "tokens": self.tokens, "forward_s": round(self.seconds, 3)}


def prove(spec: TrainSpec, run: RunFolder) -> int:
    """Compute the first step of a TrainSpec in which samples share a video, with and without sharing, whatever the spec
    sets. Writes sharing.json, returns 0. Raises ENGINE_UNPROVEN if a loss differs or no step shares a video, and
    CONFLICT for a spec without packing or of pairs."""
    if not spec.engine.packing:
        raise CONFLICT.error(KEY, "videos are shared inside packs, but packing is false", "set engine.packing = true")
    if learns_pairs(spec):
        raise CONFLICT.error("engine.objective", "pairs always share their prompt", "prove it with objective sft")
    folder, world = Path(spec.policy.model_name_or_path), start_world(spec)
    planner = training_planner(spec, folder)
    samples = prepare_training(spec, planner, world, run).train
    ranks_and_device = (world.data_ranks, world.device.type)
    alone, shared = (Steps(with_values(spec, {KEY: share}), samples, *ranks_and_device) for share in (False, True))
    alone.order = shared.order  # so that a step has the same samples in both
    step = _first_step_that_shares(shared, total_steps(spec, len(samples)))
    with load_sharded(folder, spec.policy, spec.train, world, NO_RECOMPUTE) as model:
        pass
    model.eval()
    sizes, workers = planner.family.sizes_of(folder).vision, spec.train.train_policy.dataloader_num_workers
    losses: dict[bool, StepLosses] = {}
    with open_frames(spec.engine, workers) as source:
        for steps, share in ((alone, False), (shared, True)):
            collator = Collator(planner, sizes, world.device.type, share=share, context=world.context)
            packs = steps.packs(step)[world.data_rank]
            _forward(model, packs, samples, source, collator, world)  # decodes and compiles, so that the next is timed
            losses[share] = _forward(model, packs, samples, source, collator, world)
    tolerance = TOLERANCE[DTYPES[spec.train.param_dtype]]
    world.on_main(lambda: _compare(run, step, losses[False], losses[True], tolerance))
    return int(Exit.OK)


def _first_step_that_shares(steps: Steps, total: int) -> int:
    """The first step with a unit (samples of one video) of several samples. Raises ENGINE_UNPROVEN."""
    epoch = range(min(total, steps.order.steps_per_epoch))
    first = next((step for step in epoch if any(len(unit) > 1 for unit in steps.units(step))), None)
    if first is None:
        message = "no two samples of a step share a video and fit into one pack"
        remedy = "Keep engine.share_video_prefix = false, or raise train.train_batch_per_replica or engine.pack_tokens."
        raise ENGINE_UNPROVEN.error(KEY, message, remedy)
    return first


@torch.no_grad()
def _forward(
    model: Any,
    packs: Sequence[Sequence[int]],
    samples: Sequence[Sample],
    source: FrameSource,
    collator: Collator,
    world: World,
) -> StepLosses:
    """The losses of the `packs` of all ranks; `packs` are this rank's. A sample that cannot be decoded has none."""
    # (number, sum, count) of supervised tokens: with context parallelism several ranks have parts of a sample.
    own = list[tuple[int, float, int]]()
    tokens, started = 0, time.perf_counter()
    with Prefetcher(packs, samples, source, collator, world.device) as batches:
        for loaded in batches:
            batch, nll = loaded.batch, model.packed(loaded.batch)
            tokens += len(batch.input_ids_T)
            for position, number in enumerate(batch.samples):
                sample_nll = nll[batch.owner_N == position]
                own.append((number, sample_nll.sum().item(), len(sample_nll)))
    by_rank = world.gather((own, tokens, time.perf_counter() - started))
    sums, counts = Counter[int](), Counter[int]()
    for number, total, count in (part for parts, _, _ in by_rank for part in parts):
        sums[number] += total
        counts[number] += count
    losses = {number: sums[number] / count for number, count in counts.items() if count}
    return StepLosses(losses, sum(count for _, count, _ in by_rank), max(seconds for _, _, seconds in by_rank))


def _compare(run: RunFolder, step: int, alone: StepLosses, shared: StepLosses, tolerance: float) -> None:
    """Write and check the differences of the losses. `tolerance` is relative to a loss above 1, absolute below."""
    differences = {n: abs(loss - shared.losses.get(n, float("inf"))) for n, loss in alone.losses.items()}
    limits = {n: tolerance * max(1.0, loss) for n, loss in alone.losses.items()}
    agree = bool(differences) and all(differences[n] <= limit for n, limit in limits.items())
    largest = max(differences.values(), default=0.0)
    facts = {"step": step + 1, "samples": len(differences), "alone": alone.as_dict(), "shared": shared.as_dict()}
    write_json(run.path / PROOF, {**facts, "largest_difference": largest, "tolerance": tolerance, "agree": agree})
    for name, losses in (("alone", alone), ("shared", shared)):
        loss = losses.as_dict()["loss"]
        note(f"{name:<7} loss {loss:.6f}, {losses.tokens:,} tokens, forward {losses.seconds:.3f} s")
    text = f"losses of {len(differences)} samples differ by at most {largest:.2g}, {tolerance:g} allowed"
    if not agree:
        raise ENGINE_UNPROVEN.error(KEY, text if differences else "no sample of the step can be decoded")
    note(f"proved: {text}")
