"""The base of all training loops: memory policy, learner, initial state, saving, and the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch

from vidqa.core._optional import GPU_UNFIT, require
from vidqa.core.environment import world_size
from vidqa.core.problem import Exit, ProblemError, raise_errors
from vidqa.core.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.dataloader import SpecT, StepSchedule
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.planned_samples import BadSamples, Prepared
from vidqa.engine.distributed import World
from vidqa.engine.loading.freeze import trainable_table
from vidqa.engine.loading.fsdp import Resharding
from vidqa.engine.loading.load import load_adapter, load_sharded
from vidqa.engine.memory import use_memory
from vidqa.engine.model.quantized_base import EXTRA
from vidqa.engine.progress import Progress, open_progress
from vidqa.engine.signals import StopRequest
from vidqa.engine.training.learner import Learner
from vidqa.engine.training.objectives import Objective
from vidqa.engine.training.optimizer import build_optimizer, set_learning_rates
from vidqa.engine.training.resume import Start, resume, trainer_facts
from vidqa.engine.training.saving import Saver
from vidqa.families import family_of
from vidqa.planning.budget.autotune import Packing, answered_samples, best_policy, least_policy
from vidqa.planning.budget.memory import MemoryPolicy
from vidqa.planning.budget.methods import FIRST_OF_BITSANDBYTES
from vidqa.planning.budget.params import ParamCounts, count_params, parameters
from vidqa.planning.packing import Steps
from vidqa.planning.pairs import learns_pairs
from vidqa.planning.resume_compat import weights_hash
from vidqa.planning.samples import Sample
from vidqa.spec import check_with_gpus, total_steps
from vidqa.spec.models import TrainSpec
from vidqa.spec.train_rules import bitsandbytes_key


def start_world(spec: TrainSpec) -> World:
    """Join the ranks of a training. Raises the problems of check_with_gpus, ENV_PACKAGE_MISSING and ENV_GPU_UNFIT."""
    raise_errors(check_with_gpus(spec, world_size()))
    if (key := bitsandbytes_key(spec)) is not None:
        require("bitsandbytes", EXTRA)
        if torch.cuda.is_available() and torch.cuda.get_device_capability() < FIRST_OF_BITSANDBYTES:
            raise GPU_UNFIT.error(key, "bitsandbytes has no kernels for this GPU", f"Leave {key} at its default.")
    mesh = spec.policy.parallelism
    world = distributed.start(mesh.dp_replicate_size, mesh.dp_shard_size, spec.engine.step_timeout_s, mesh.cp_size)
    if world.device.type == "cpu":
        compute_in_this_thread()
    return world


def compute_in_this_thread() -> None:
    """Limit threads that this process starts from now on (loading, saving) to one core each. With OpenMP workers of
    their own there are more threads than cores, and OpenMP lets the workers of this thread sleep after every operation:
    steps after the first checkpoint took 2.5 times as long."""
    torch.get_num_threads()  # fixes the number of OpenMP threads of this thread
    with ThreadPoolExecutor(1) as started:
        started.submit(torch.set_num_threads, 1).result()


def choose_memory_policy(spec: TrainSpec, folder: Path, data: Prepared, world: World) -> MemoryPolicy:
    """The policy of the spec; if the spec leaves a choice, the fastest policy that fits the smallest GPU of the run.
    Memory of a CPU is not estimated: everything is recomputed there, in packs of the default size."""
    steps_of = partial(Steps, spec, data.train, world.data_ranks, world.device.type)
    packing = Packing(steps_of, total_steps(spec, len(data.train)), answered_samples(spec, data.validation))
    return memory_policy_of(spec, model_counts(spec, folder), world, packing)


def model_counts(spec: TrainSpec, folder: Path) -> ParamCounts:
    """The counts of frozen and trained parameters of the model in `folder` under the spec."""
    family = family_of(folder)
    sizes = family.sizes_of(folder)
    return count_params(sizes, parameters(family.tensors(sizes), spec.policy))


def memory_policy_of(
    spec: TrainSpec, model: ParamCounts, world: World, packing: Packing, reserved_gib: float = 0.0
) -> MemoryPolicy:
    """`choose_memory_policy` for any packs; `reserved_gib` of each GPU stay free for uses other than training."""
    if world.device.type != "cuda":
        return least_policy(spec, model)
    memory_gib = min(world.gather(use_memory(world.device, spec.engine.gpu_memory_gib)))

    def fastest() -> MemoryPolicy:
        chosen = best_policy(spec, model, packing, memory_gib, reserved_gib)
        return replace(chosen.policy, peak_gib=chosen.peak_gib)

    return world.on_main(fastest)


def build_learner(
    schedule: StepSchedule[Any],
    start: Start,
    stop: StopRequest,
    objective: Objective,
    warm_up: Callable[[Any], object] = lambda _: None,
) -> Learner:
    """Build the model on its devices with its optimizer; `warm_up(model)` runs while the weights are read. The state of
    `start` is loaded later: until then the model has its initial weights, from which DPO computes its reference."""
    spec, world, policy = schedule.spec, schedule.world, schedule.policy
    folder = Path(spec.policy.model_name_or_path)
    with (
        ThreadPoolExecutor(1, "hashing") as hashing,
        load_sharded(folder, spec.policy, spec.train, world, policy.recompute) as model,
    ):
        if world.is_main:
            hashing.submit(weights_hash, folder)  # cached for `trainer_facts`; takes seconds on a new machine
        exact = spec.train.fsdp_reduce_dtype == spec.train.master_dtype
        # Gradients that are offloaded to the host accumulate there.
        once = exact and not world.is_sharded and not spec.train.fsdp_offload
        resharding = Resharding(model, policy.reshard, sums_once=once, alone=world.size == 1)
        warm_up(model)
    if (adapter := start.first_adapter(spec)) and (start.folder is None or learns_pairs(spec)):
        load_adapter(model, Path(adapter), folder, spec.policy.quantization, world)
    return Learner(
        model=model,
        resharding=resharding,
        optimizer=build_optimizer(model, spec.train),
        objective=objective,
        max_norm=spec.train.optm_grad_norm_clip,
        world=world,
        stop=stop,
    )


class Trainer(Generic[SpecT]):
    """A run from its first step, or from a checkpoint, to its last. Subclasses implement the steps (`run_steps`)."""

    def __init__(
        self,
        run: RunFolder,
        schedule: StepSchedule[SpecT],
        start: Start,
        learner: Learner,
        collator: Collator,
        source: FrameSource,
        proof_samples: Sequence[Sample],
        **facts: Any,
    ) -> None:
        """Load the state of `start`. One of `proof_samples` proves the exports; `facts` are added to run.json."""
        spec, data, world = schedule.spec, schedule.data, schedule.world
        self.spec, self.world, self.schedule, self.first = spec, world, schedule, start.step
        self.learner, model = learner, learner.model
        trained = trainer_facts(spec, data, model, start, world)
        resume(start, run, trained, model, learner.optimizer, world)
        self.bad_samples = BadSamples(run, world, spec.engine.on_bad_sample)
        self.saver = Saver(run, schedule, collator, trained, start)
        self.saver.store_proof_sample(proof_samples, source)
        facts = {"trainable": trainable_table(model), "data_fingerprint": data.fingerprint} | facts
        world.on_main(lambda: run.update_run(**{**facts, **schedule.policy.record()}))

    def run_steps(self, progress: Progress) -> bool:
        """Take all steps to the end. Returns False if the run was stopped; its state is saved then."""
        raise NotImplementedError

    def free(self) -> None:
        """Drop the models."""
        del self.learner

    def schedule_rate(self, step: int) -> float:
        """Set the learning rates of a step and return the rate of the first group."""
        schedule = self.schedule
        return set_learning_rates(self.learner.optimizer, step, schedule.total, schedule.warmup, self.spec.train)

    def save(self, step: int, progress: Progress, **how: bool) -> None:
        """Save what is due after `step`, `how` as in `Saver.after_step`. No checkpoint is ahead of metrics.jsonl."""
        if how["stopping"] or self.saver.due(step):
            progress.settle()
        self.saver.after_step(step, self.learner.model, self.learner.optimizer, **how)

    def run_to_end(self, run: RunFolder) -> int:
        """Train, save, and prove the best export. Returns 0, or 6 if the run was stopped."""
        with open_progress(self.spec, run, self.world, self.first, self.schedule.total) as progress:
            try:
                if self.first >= (total := self.schedule.total):
                    progress.say(f"warning: no step is left to train: {self.first} are done, and the run has {total}")
                if not self.run_steps(progress):
                    return int(Exit.NOT_DONE)
                self.free()  # free memory for reloading the export
                if proof := self.saver.finish():
                    progress.say(proof)
                return int(Exit.OK)
            except (OSError, ProblemError):
                self.saver.background.settle()
                raise
