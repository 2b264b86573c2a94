"""Whether shared videos leave losses as they are: the samples of one step with and without, and nothing learned.

python -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --prove --spec S.toml --run-dir R
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
from vidqa.core.environment import world_size
from vidqa.core.files import write_json
from vidqa.core.problem import Exit, raise_errors
from vidqa.core.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.planned_samples import prepare_training
from vidqa.engine.data.prefetch import Prefetcher
from vidqa.engine.distributed import World
from vidqa.engine.export.proof import TOLERANCE
from vidqa.engine.loading.load import load_sharded
from vidqa.engine.model import DTYPES
from vidqa.engine.problems import ENGINE_UNPROVEN
from vidqa.planning.budget.activation_checkpointing import NO_RECOMPUTE
from vidqa.planning.packing import Steps
from vidqa.planning.pairs import learns_pairs
from vidqa.planning.samples import Sample, training_planner
from vidqa.spec import check_with_gpus, total_steps
from vidqa.spec.models import TrainSpec
from vidqa.spec.problems import CONFLICT

WHERE = "engine.share_video_prefix"
PROOF = "sharing.json"


@dataclass(frozen=True)
class Computed:
    """A step computed one way, over all ranks: mean loss of each sample by its number, tokens with padding, and the
    seconds of a forward pass once all was decoded and compiled."""

    losses: dict[int, float]
    tokens: int
    seconds: float

    def as_dict(self) -> dict[str, float]:
        mean = sum(self.losses.values()) / max(1, len(self.losses))
        return {"loss": mean, "tokens": self.tokens, "forward_s": round(self.seconds, 3)}


def prove(spec: TrainSpec, run: RunFolder) -> int:
    """Carry out the first step of a TrainSpec in which samples share a video, both ways, whichever of them the spec
    asks for. Writes sharing.json. Raises ENGINE_UNPROVEN where a loss differs or nothing is shared."""
    raise_errors(check_with_gpus(spec, world_size()))
    if not spec.engine.packing:
        raise CONFLICT.error(WHERE, "videos are shared inside packs, and packing is false", "set engine.packing = true")
    if learns_pairs(spec):
        raise CONFLICT.error("engine.objective", "pairs always share their prompt", "prove it with objective sft")
    mesh, folder = spec.policy.parallelism, Path(spec.policy.model_name_or_path)
    world = distributed.start(mesh.dp_replicate_size, mesh.dp_shard_size, spec.engine.step_timeout_s, mesh.cp_size)
    planner = training_planner(spec, folder)
    samples = prepare_training(spec, planner, world, run).train
    place = (samples, world.data_ranks, world.device.type)
    alone, shared = (Steps(_sharing(spec, share), *place) for share in (False, True))
    alone.order = shared.order  # the same samples, in the order that sharing gives them
    step = _first_shared(shared, total_steps(spec, len(samples)))
    with load_sharded(folder, spec.policy, spec.train, world, NO_RECOMPUTE) as model:
        pass
    model.eval()
    sizes, workers = planner.family.sizes_of(folder).vision, spec.train.train_policy.dataloader_num_workers
    computed: dict[bool, Computed] = {}
    with open_frames(spec.engine, workers) as source:
        for steps, share in ((alone, False), (shared, True)):
            collator = Collator(planner, sizes, world.device.type, share=share, context=world.context)
            packs = steps.packs(step)[world.data_rank]
            _compute(model, packs, samples, source, collator, world)  # decodes and compiles
            computed[share] = _compute(model, packs, samples, source, collator, world)
    world.on_main(lambda: _judge(run, step, computed[False], computed[True], TOLERANCE[DTYPES[spec.train.param_dtype]]))
    return int(Exit.OK)


def _sharing(spec: TrainSpec, share: bool) -> Any:
    return spec.model_copy(update={"engine": spec.engine.model_copy(update={"share_video_prefix": share})})


def _first_shared(steps: Steps, total: int) -> int:
    """The first step with a unit of several samples."""
    epoch = range(min(total, steps.order.steps_per_epoch))
    first = next((step for step in epoch if any(len(unit) > 1 for unit in steps.units(step))), None)
    if first is None:
        message = "no two samples of a step are about one video, or none of them fit into one pack"
        remedy = "Leave engine.share_video_prefix false, or raise train.train_batch_per_replica or engine.pack_tokens."
        raise ENGINE_UNPROVEN.error(WHERE, message, remedy)
    return first


@torch.no_grad()
def _compute(
    model: Any,
    packs: Sequence[Sequence[int]],
    samples: Sequence[Sample],
    source: FrameSource,
    collator: Collator,
    world: World,
) -> Computed:
    """This rank's packs; what cannot be decoded has no loss."""
    own = list[tuple[int, float, int]]()  # number, sum and count of supervised tokens: several ranks may have some
    tokens, started = 0, time.perf_counter()
    with Prefetcher(packs, samples, source, collator, world.device) as batches:
        for loaded in batches:
            batch, nll = loaded.batch, model.packed(loaded.batch)
            tokens += len(batch.input_ids_T)
            for place, number in enumerate(batch.samples):
                of_sample = nll[batch.owner_N == place]
                own.append((number, of_sample.sum().item(), len(of_sample)))
    everyone = world.gather((own, tokens, time.perf_counter() - started))
    sums, counts = Counter[int](), Counter[int]()
    for number, total, count in (part for losses_of, _, _ in everyone for part in losses_of):
        sums[number] += total
        counts[number] += count
    losses = {number: sums[number] / count for number, count in counts.items() if count}
    return Computed(losses, sum(count for _, count, _ in everyone), max(seconds for _, _, seconds in everyone))


def _judge(run: RunFolder, step: int, alone: Computed, shared: Computed, tolerance: float) -> None:
    """Say how far losses lie apart. `tolerance` is a share of a loss, or of 1 where it is smaller."""
    apart = {n: abs(loss - shared.losses.get(n, float("inf"))) for n, loss in alone.losses.items()}
    agree = bool(apart) and all(apart[n] <= tolerance * max(1.0, loss) for n, loss in alone.losses.items())
    largest = max(apart.values(), default=0.0)
    facts = {"step": step + 1, "samples": len(apart), "alone": alone.as_dict(), "shared": shared.as_dict()}
    write_json(run.path / PROOF, {**facts, "largest_difference": largest, "tolerance": tolerance, "agree": agree})
    for name, computed in (("alone", alone), ("shared", shared)):
        values = computed.as_dict()
        note(f"{name:<7} loss {values['loss']:.6f}, {computed.tokens:,} tokens, forward {computed.seconds:.3f} s")
    text = f"losses of {len(apart)} samples differ by at most {largest:.2g}, {tolerance:g} allowed"
    if not agree:
        raise ENGINE_UNPROVEN.error(WHERE, text if apart else "no sample of the step can be decoded")
    note(f"proved: {text}")
