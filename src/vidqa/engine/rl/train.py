"""Reinforcement learning by GRPO, readable from top to bottom: questions, rollout, rewards, update, sync, save.

python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine grpo --spec spec.toml --run-dir RUN
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from vidqa.contract.environment import world_size
from vidqa.contract.problem import Exit, ProblemError, raise_errors
from vidqa.contract.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.distributed import World
from vidqa.engine.generators._base import Sampling
from vidqa.engine.learner import Learner
from vidqa.engine.memory_policy import memory_policy_of
from vidqa.engine.model.ahead import map_memory
from vidqa.engine.model.load import load_reference, load_sharded
from vidqa.engine.model.resharding import Resharding
from vidqa.engine.model.trainable import trainable_table
from vidqa.engine.objectives.grpo import PolicyGradient
from vidqa.engine.optimizer import build_optimizer, learning_rate, set_learning_rate
from vidqa.engine.prepare import Prepared, check_steps, frame_cache, on_main, prepare_questions, write_plan
from vidqa.engine.problems import ENGINE_NOT_FINITE, ENGINE_ROLLOUT_DIFFERS
from vidqa.engine.progress import Progress, Silent, open_progress
from vidqa.engine.quarantine import Quarantine
from vidqa.engine.resume import Start, resume, start_of, trainer_facts
from vidqa.engine.rl.meter import StepMeter
from vidqa.engine.rl.questions import QuestionStream
from vidqa.engine.rl.record import RolloutRecord
from vidqa.engine.rl.rollout import Group, Question, RolloutModel, Rollouts
from vidqa.engine.rl.update import Micro, Updates, without_adapters
from vidqa.engine.rl.watch import StopWatch
from vidqa.engine.saving import Saver
from vidqa.engine.schedule import StepSchedule
from vidqa.engine.signals import StopRequest
from vidqa.engine.trackers import require_trackers
from vidqa.families import family_of as tables_of
from vidqa.planning.budget.params import parameters
from vidqa.planning.budget.rollouts import RolloutShape, rollout_memory, rollout_shape, update_packing
from vidqa.planning.packing.prefix_sharing import max_tokens, split_indices
from vidqa.planning.packing.steps import pack_budget
from vidqa.planning.rollouts import prompt_planner
from vidqa.planning.samples import Planner, Sample, training_planner
from vidqa.rewards import Rewards, label_of, shuffled_options
from vidqa.rewards.problems import REWARD_CONSTANT
from vidqa.spec import check_with_gpus
from vidqa.spec.grpo_rules import MOST_RETRIES, REWARDS, reward_weights, temperature_of

# The largest difference of trainer and rollout log-probabilities with which a run goes on: of any token in float32, on
# average in bfloat16, where each may round differently.
MOST_APART = {"float32": ("rollout_difference_max", 1e-3), "bfloat16": ("rollout_difference", 5e-2)}


def train(spec: Any, run: RunFolder) -> int:
    """Carry out a GrpoSpec in `run`. Returns 0, or 6 where a signal or a stop rule ended it (saved and resumable)."""
    with (
        open_training(spec, run) as training,
        open_progress(spec, run, training.world, training.first, training.schedule.total) as progress,
    ):
        saver = training.saver
        try:
            if not training.carry_out(progress):
                return int(Exit.NOT_DONE)
            training.close()  # room for the export that is loaded again
            if proof := saver.finish():
                progress.say(proof)
            return int(Exit.OK)
        except (OSError, ProblemError):
            saver.background.settle()
            raise


@contextmanager
def open_training(spec: Any, run: RunFolder) -> Iterator[Training]:
    """A GrpoSpec's training in `run`, where its next step is to be taken."""
    stop = StopRequest()
    raise_errors(check_with_gpus(spec, world_size()))
    mesh, folder = spec.policy.parallelism, Path(spec.policy.model_name_or_path)
    world = distributed.start(mesh.dp_replicate_size, mesh.dp_shard_size, spec.engine.step_timeout_s)

    planner = prompt_planner(spec, folder)
    data = prepare_questions(spec, planner, world, run)
    check_steps(spec, data)
    shape = rollout_shape(spec, max_tokens([*data.train, *data.validation]))
    start = start_of(spec.train.resume, run, world)
    schedule = StepSchedule(spec, data, world, memory_policy(spec, folder, data, shape, world))
    on_main(world, lambda: write_plan(run, data, schedule.facts()))
    on_main(world, lambda: require_trackers(spec.logging))

    workers = spec.train.train_policy.dataloader_num_workers
    with ExitStack() as opened:
        source = opened.enter_context(
            closing(FrameSource(workers, spec.engine.decode_timeout_s, frame_cache(spec.engine)))
        )
        training = Training(run, schedule, start, planner, source, shape, stop)
        opened.enter_context(training.rewards)
        opened.enter_context(training.held_rewards)
        yield training


def memory_policy(spec: Any, folder: Path, data: Prepared, shape: RolloutShape, world: World) -> Any:
    """The memory policy of updates beside the rollout model and its cache."""
    tables = tables_of(folder)
    sizes = tables.sizes_of(folder)
    count = sum(parameter.numel for parameter in parameters(tables.tensors(sizes), spec.policy) if not parameter.added)
    taken_gib = rollout_memory(spec, sizes, count, shape).gib
    packing = update_packing(spec, data.train, world.data_ranks, world.device.type)
    return memory_policy_of(spec, folder, world, packing, taken_gib)


def build_learner(
    schedule: StepSchedule, planner: Planner, shape: RolloutShape, stop: StopRequest
) -> tuple[Learner, RolloutModel, PolicyGradient]:
    """The model on its devices with its optimizer, the one that draws from its weights, and the objective."""
    spec, world, policy = schedule.spec, schedule.world, schedule.policy
    folder, keys = Path(spec.policy.model_name_or_path), spec.train.train_policy
    with load_sharded(folder, spec.policy, spec.train, world, policy.recompute) as model:
        pass  # nothing is computed before its weights are there
    exact = spec.train.fsdp_reduce_dtype == spec.train.master_dtype
    sums_once = exact and not world.is_sharded
    resharding = Resharding(model, policy.reshard, sums_once=sums_once, alone=world.size == 1)
    rollout_model = RolloutModel(spec, folder, planner, model, shape, world)
    objective = PolicyGradient(
        temperature=temperature_of(spec),
        banned=torch.tensor(rollout_model.banned, dtype=torch.int64, device=world.device),
        compile=spec.train.compile and world.device.type == "cuda",
        epsilon_low=keys.epsilon_low,
        epsilon_high=keys.epsilon_high,
        lower_bound=keys.lower_bound_ratio,
        kl_beta=keys.kl_beta,
        sequence_ratio=keys.variant == "gspo",
        rollout_cap=keys.behav_imp_weight_cap,
    )
    learner = Learner(
        model=model,
        resharding=resharding,
        optimizer=build_optimizer(model, spec.train),
        objective=objective,
        max_norm=spec.train.optm_grad_norm_clip,
        world=world,
        stop=stop,
    )
    return learner, rollout_model, objective


class Training:
    """A run from its first step, or from a checkpoint, to its last."""

    def __init__(
        self,
        run: RunFolder,
        schedule: StepSchedule,
        start: Start,
        planner: Planner,
        source: FrameSource,
        shape: RolloutShape,
        stop: StopRequest,
    ) -> None:
        spec, data, world = schedule.spec, schedule.data, schedule.world
        self.spec, self.world, self.schedule, self.first = spec, world, schedule, start.step
        self.policy, self.planner = spec.train.train_policy, planner
        folder = Path(spec.policy.model_name_or_path)

        # What learns.
        self.learner, self.rollout_model, objective = build_learner(schedule, planner, shape, stop)
        self.model = model = self.learner.model
        self.reference = None
        if self.policy.kl_beta > 0 and spec.policy.lora is None:
            self.reference = load_reference(folder, spec.policy, spec.train, world, schedule.policy.recompute)
        facts = trainer_facts(spec, data, model, world)
        resume(start, run, facts, model, self.learner.optimizer, world)
        self.consumed, self.updates = start.trainer.get("questions", 0), start.trainer.get("updates", 0)

        # What it is asked and rewarded for.
        labels = [label_of(sample.record) for sample in data.train]
        balance = spec.engine.balance == "label"
        seeds = {"seed": self.policy.dataloader_seed, "shuffle": self.policy.dataloader_shuffle}
        self.stream = QuestionStream(labels, balance=balance, **seeds)
        self.rollouts = Rollouts(self.rollout_model, planner, source)
        longest, timeout_s = spec.rollout.max_response_length, spec.engine.reward_timeout_s
        self.rewards = Rewards(self.policy.reward_function, self.policy, longest, timeout_s)
        held = spec.validation.reward_function or self.policy.reward_function
        self.held_rewards = Rewards(held, self.policy, spec.validation.max_response_length or longest, timeout_s)
        pack_tokens = schedule.policy.pack_tokens or pack_budget(spec)
        sizes = tables_of(folder).sizes_of(folder).vision
        self.update = Updates(spec, planner, sizes, objective, world, pack_tokens)

        # What measures it and saves it.
        self.quarantine = Quarantine(run, world, spec.engine.on_bad_sample)
        self.watch = StopWatch(spec.engine.stop, start.trainer.get("validation_start"))
        self.record = RolloutRecord(run.path, world.rank, start.step, world.size)
        learning = training_planner(spec, folder)
        self.saver = Saver(run, schedule, Collator(learning, sizes, world.device.type), facts, start)
        proofs, _ = learning.plan([sample.record for sample in (data.validation or data.train)[:20]])
        self.saver.store_proof_sample(proofs, source)
        self.meter = StepMeter(spec, model, world)
        table, policy = trainable_table(model), schedule.policy.record()
        policy |= {"predicted_gib": schedule.policy.peak_gib, "pack_tokens": pack_tokens}
        on_main(world, lambda: run.update_run(trainable=table, data_fingerprint=data.fingerprint, **policy))

    def carry_out(self, progress: Progress | Silent) -> bool:
        """Step after step to the end. False where a signal or a stop rule ended the run; its state is saved then."""
        spec, schedule = self.spec, self.schedule
        self.meter.timed("sync", self.rollout_model.sync)
        if spec.validation.enable and spec.validation.val_before_train and self.first == 0:
            progress.log(0, self._validate(0), line="before training")
        if self.saver.owed:
            self._conclude(self.first - 1, {}, progress, resumed=True)
        self.prefetched = self.ask(self.consumed, self._batch) if self.first < schedule.total else []
        for step in range(self.first, schedule.total):
            values, stop_requested = self._step(step)
            stopping = stop_requested and step + 1 < schedule.total
            stopping = self._conclude(step, values, progress, stopping=stopping)
            if stopping:
                self.saver.background.finish()
                why = f"the stop rule {self.watch.ended}" if self.watch.ended else "a signal"
                progress.say(f"{why} ended it after step {step + 1}; resume with train.resume = true")
                return False
        return True

    def close(self) -> None:
        """Free the models."""
        self.rollout_model.session.close()
        del self.learner, self.model, self.rollout_model, self.reference, self.rollouts

    def _step(self, step: int) -> tuple[dict[str, float], bool]:
        """One step: its metrics, and whether a signal asks to stop."""
        groups, facts = self._rollout(step)
        if step == 0:
            self._require_spread(groups)
        self.prefetched = self.ask(self.consumed, self._batch) if step + 1 < self.schedule.total else []
        values, stop_requested = self.learn(step, groups)
        self.meter.timed("sync", self.rollout_model.sync)
        self.record.write(step + 1, groups, divided=not self.policy.unbiased_advantage)
        return {**facts, **values}, stop_requested

    def learn(self, step: int, groups: Sequence[Group]) -> tuple[dict[str, float], bool]:
        """Every update of a step by this rank's groups: metrics, and whether a signal asks to stop."""
        rate = learning_rate(step, self.schedule.total, self.schedule.warmup, self.spec.train)
        set_learning_rate(self.learner.optimizer, rate)
        micro = self.meter.timed("plan", lambda: [self.update.plan(part) for part in self._parts(groups)])
        if len(micro) * self.policy.mu_iterations > 1:
            micro = self.meter.timed("old", lambda: [self._old(part) for part in micro])
        if self.policy.kl_beta > 0:
            micro = self.meter.timed("reference", lambda: [self._reference(part) for part in micro])
        if peak_gib := self.schedule.policy.peak_gib:  # capturing a graph, in a rollout, unmaps what is free
            map_memory(peak_gib, self.world.device)
        values, stop_requested = {"train/lr": rate}, False
        for number, part in enumerate(micro * self.policy.mu_iterations):
            if not part.tokens:  # no group was left, or all of it is masked
                continue
            taken = self.update.step(self.updates, part)
            outcome = self.meter.timed("update", lambda: self.learner.take(taken))  # noqa: B023  called at once
            if not outcome.is_finite:
                raise ENGINE_NOT_FINITE.error(f"step {step + 1}", f"loss {outcome.loss}, norm {outcome.grad_norm}")
            if number == 0:
                self._require_same(step, {**outcome.metrics, **outcome.maxima})
            self.updates += 1
            values |= self.meter.updated(outcome, part)
            stop_requested = stop_requested or outcome.stop_requested
        return values, stop_requested

    # --- rollout

    @property
    def _batch(self) -> int:
        return self.spec.train.train_batch_per_replica // self.spec.rollout.n_generation

    def ask(self, position: int, count: int) -> list[Question]:
        """This rank's of `count` questions from `position` of the stream on, spread over the ranks by cost."""
        samples = [self.schedule.data.train[number] for number in self.stream.take(position, count)]
        mine = split_indices(samples, self.world.size)[self.world.rank]
        return [self.question(position + place) for place in mine]

    def question(self, slot: int) -> Question:
        """The question at a position of the stream."""
        return self.rollouts.question(slot, self._prompt(self.schedule.data.train[self.stream.at(slot)], slot))

    def _prompt(self, sample: Sample, slot: int) -> Sample:
        """The question as it is asked at a position of the stream, its options permuted where the spec says so."""
        if not self.spec.engine.shuffle_options:
            return sample
        record = shuffled_options(sample.record, f"{self.policy.dataloader_seed} {slot}")
        if record is sample.record:
            return sample
        planned, problems = self.planner.plan([record])
        return planned[0] if not problems and planned[0].length <= sample.length + 8 else sample

    def _rollout(self, step: int) -> tuple[list[Group], dict[str, float]]:
        """This rank's groups of a step, and what all ranks say of them."""
        sampling = Sampling(
            self.spec.rollout.max_response_length, temperature=temperature_of(self.spec), seed=self.spec.rollout.seed
        )
        size, kept, every = self.spec.rollout.n_generation, list[Group](), list[Group]()
        questions, count = self.prefetched, self._batch
        retries = self.policy.max_retry_for_on_policy
        rounds = 1 + (MOST_RETRIES if retries < 0 else retries) if self.policy.variant == "dapo" else 1
        for _ in range(rounds):
            self.consumed += count
            drawn = self.meter.timed(
                "rollout",
                lambda: self.rollouts.draw(questions, self.rewards, sampling, size, str(step)),  # noqa: B023
            )
            self.quarantine.take([problem for group in drawn for problem in group.question.problems])
            drawn = [group for group in drawn if group.drawn]
            every += drawn
            kept += [group for group in drawn if self._is_kept(group)]
            count = self._batch - sum(self.world.gather(len(kept)))
            if count <= 0 or self.policy.variant != "dapo":
                break
            questions = self.ask(self.consumed, count)
        return kept, self.meter.rollouts(every, kept, self._right_part(), self.rollouts)

    def _is_kept(self, group: Group) -> bool:
        """dapo drops groups in which the filter metric does not vary."""
        if self.policy.variant != "dapo":
            return True
        metrics = self.policy.filter_reward_metric
        names = [REWARDS.get(name, name) for name in ([metrics] if isinstance(metrics, str) else metrics)]
        names = names or [name for name in [self._right_part()] if name]
        spreads = [group.part(name) for name in names] or [group.rewards]
        return any(values.max() > values.min() for values in spreads)

    def _right_part(self) -> str:
        """The part of the reward that says whether a completion is right; empty where there is none."""
        names = [REWARDS.get(name, "") for name in reward_weights(self.policy.reward_function)]
        return "accuracy" if "accuracy" in names else ""

    def _parts(self, groups: Sequence[Group]) -> list[list[Group]]:
        """This rank's groups of each update of a step."""
        size = self.policy.batch_size_per_optimize
        if size is None:
            return [list(groups)]
        parts = self.spec.train.train_batch_per_replica // size
        cuts = [len(groups) * part // parts for part in range(parts + 1)]
        return [list(groups[start:end]) for start, end in pairwise(cuts)]

    def _old(self, micro: Micro) -> Micro:
        return self.update.with_values(micro, "old", self.model)

    def _reference(self, micro: Micro) -> Micro:
        if self.reference is not None:
            return self.update.with_values(micro, "reference", self.reference)
        with without_adapters(self.model) as model:
            return self.update.with_values(micro, "reference", model)

    def _require_spread(self, groups: Sequence[Group]) -> None:
        """Raises REWARD_CONSTANT, with three samples, where all completions of the first step have one reward."""
        rewards = [drawn.reward.total for group in groups for drawn in group.drawn]
        found = self.world.gather((min(rewards, default=None), max(rewards, default=None)))
        bounds = [bound for pair in found for bound in pair if bound is not None]
        if not bounds or max(bounds) > min(bounds):
            return
        shown = [group.drawn[0] for group in groups[:3]]
        samples = "; ".join(f"{drawn.completion.record.id}: {drawn.completion.text[:120]!r}" for drawn in shown)
        raise REWARD_CONSTANT.error("step 1", f"every reward is {bounds[0]:g}; {samples}")

    def _require_same(self, step: int, values: dict[str, float]) -> None:
        """Raises ENGINE_ROLLOUT_DIFFERS where the trainer is not the model that drew the completions."""
        name, bound = MOST_APART[self.spec.train.param_dtype]
        if values[name] > bound:
            message = f"{name} is {values[name]:.3g} in {self.spec.train.param_dtype}; {bound:g} allowed"
            raise ENGINE_ROLLOUT_DIFFERS.error(f"step {step + 1}", message)

    # --- what follows a step

    def _validate(self, step: int) -> dict[str, float]:
        """Answers of the held-out set by the rollout model; the same on every rank."""
        valid, held = self.spec.validation, self.schedule.data.validation
        longest = valid.max_response_length or self.spec.rollout.max_response_length
        sampling = Sampling(longest, temperature=valid.temperature, seed=self.spec.rollout.seed)
        mine = split_indices(held, self.world.size)[self.world.rank]
        questions = [self.rollouts.question(place, held[place]) for place in mine]
        drawn = self.meter.timed(
            "validation",
            lambda: self.rollouts.draw(questions, self.held_rewards, sampling, valid.n_generation, "validation"),
        )
        return self.meter.validation(drawn, self.rollouts)

    def _conclude(
        self,
        step: int,
        values: dict[str, float],
        progress: Progress | Silent,
        *,
        stopping: bool = False,
        resumed: bool = False,
    ) -> bool:
        """Measure, warn and save what is due after `step`. Says whether the run ends here."""
        saver, spec = self.saver, self.spec
        measures = spec.validation.enable and bool(self.schedule.data.validation) and not stopping
        if measures and (self.schedule.validates_after(step) or saver.exports(step)):
            measured = self._validate(step + 1)
            saver.judge(step, measured)
            values = {**values, **measured}
        if values:
            values |= self.meter.step_values()
            for warning in self.watch.judge(values):
                progress.say(f"warning: step {step + 1}: {warning}")
            progress.log(step + 1, values, line=self.meter.line(values))
        stopping = stopping or (bool(self.watch.ended) and step + 1 < self.schedule.total)
        saver.trainer |= {
            "questions": self.consumed,
            "updates": self.updates,
            "validation_start": self.watch.start,
        }
        if stopping or saver.due(step):
            progress.settle()
        saver.after_step(step, self.model, self.learner.optimizer, stopping=stopping, resumed=resumed)
        return stopping
