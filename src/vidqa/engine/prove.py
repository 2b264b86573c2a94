"""Whether shared videos leave losses as they are: the samples of one step with and without, and nothing learned.

python -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --prove --spec S.toml --run-dir R
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vidqa.contract.cli import note
from vidqa.contract.environment import world_size
from vidqa.contract.files import write_json
from vidqa.contract.problem import Exit, raise_errors
from vidqa.contract.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.batch.loader import Loader
from vidqa.engine.distributed import World
from vidqa.engine.exports.proof import TOLERANCE
from vidqa.engine.model.load import DTYPES, load_sharded
from vidqa.engine.prepare import frame_cache, on_main, prepare_training
from vidqa.engine.problems import ENGINE_SHARING_UNPROVEN
from vidqa.planning.budget.recompute import NOTHING
from vidqa.planning.packing.steps import Steps
from vidqa.planning.samples import Sample, training_planner
from vidqa.spec import check_with_gpus, total_steps
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


def prove(spec: Any, run: RunFolder) -> int:
    """Carry out the first step of a TrainSpec in which samples share a video, both ways, whichever of them the spec
    asks for. Writes sharing.json. Raises ENGINE_SHARING_UNPROVEN where a loss differs or nothing is shared."""
    raise_errors(check_with_gpus(spec, world_size()))
    if not spec.engine.packing:
        raise CONFLICT.error(WHERE, "videos are shared inside packs, and packing is false", "set engine.packing = true")
    mesh, folder = spec.policy.parallelism, Path(spec.policy.model_name_or_path)
    world = distributed.start(mesh.dp_replicate_size, mesh.dp_shard_size, spec.engine.step_timeout_s, mesh.cp_size)
    planner = training_planner(spec, folder)
    samples = prepare_training(spec, planner, world, run).train
    place = (samples, world.data_ranks, world.device.type)
    alone, shared = (Steps(_sharing(spec, share), *place) for share in (False, True))
    alone.order = shared.order  # the same samples, in the order that sharing gives them
    step = _first_shared(shared, total_steps(spec, len(samples)))
    with load_sharded(folder, spec.policy, spec.train, world, NOTHING) as model:
        pass
    model.eval()
    sizes, workers = planner.family.sizes_of(folder).vision, spec.train.train_policy.dataloader_num_workers
    found: dict[bool, Computed] = {}
    with closing(FrameSource(workers, spec.engine.decode_timeout_s, frame_cache(spec.engine))) as source:
        for steps, share in ((alone, False), (shared, True)):
            collator = Collator(planner, sizes, world.device.type, share=share, context=world.context)
            packs = steps.packs(step)[world.data_rank]
            _compute(model, packs, samples, source, collator, world)  # decodes and compiles
            found[share] = _compute(model, packs, samples, source, collator, world)
    on_main(world, lambda: _judge(run, step, found[False], found[True], TOLERANCE[DTYPES[spec.train.param_dtype]]))
    return int(Exit.OK)


def _sharing(spec: Any, share: bool) -> Any:
    return spec.model_copy(update={"engine": spec.engine.model_copy(update={"share_video_prefix": share})})


def _first_shared(steps: Steps, total: int) -> int:
    """The first step with a unit of several samples."""
    epoch = range(min(total, steps.order.steps_per_epoch))
    found = next((step for step in epoch if any(len(unit) > 1 for unit in steps.units(step))), None)
    if found is None:
        message = "no two samples of a step are about one video, or none of them fit into one pack"
        remedy = "Leave engine.share_video_prefix false, or raise train.train_batch_per_replica or engine.pack_tokens."
        raise ENGINE_SHARING_UNPROVEN.error(WHERE, message, remedy)
    return found


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
    with Loader(packs, samples, source, collator, world.device) as batches:
        for loaded in batches:
            batch, nll = loaded.batch, model(loaded.batch)
            tokens += len(batch.input_ids_T)
            for place, number in enumerate(batch.samples):
                of_sample = nll[batch.owner_N == place]
                own.append((number, of_sample.sum().item(), len(of_sample)))
    everyone = world.gather((own, tokens, time.perf_counter() - started))
    sums, counts = Counter[int](), Counter[int]()
    for number, total, count in (part for found, _, _ in everyone for part in found):
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
    for name, each in (("alone", alone), ("shared", shared)):
        values = each.as_dict()
        note(f"{name:<7} loss {values['loss']:.6f}, {each.tokens:,} tokens, forward {each.seconds:.3f} s")
    text = f"losses of {len(apart)} samples differ by at most {largest:.2g}, {tolerance:g} allowed"
    if not agree:
        raise ENGINE_SHARING_UNPROVEN.error(WHERE, text if apart else "no sample of the step can be decoded")
    note(f"proved: {text}")
