"""Reinforcement learning by GRPO, readable from top to bottom: questions, rollout, rewards, update, sync, save.

python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine grpo --spec spec.toml --run-dir RUN
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from vidqa.core.run_folder import RunFolder
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.dataloader import StepSchedule
from vidqa.engine.data.frames import FrameSource, open_frames
from vidqa.engine.data.planned_samples import Prepared, check_steps, prepare_questions, write_plan
from vidqa.engine.distributed import World
from vidqa.engine.loading.load import load_reference
from vidqa.engine.problems import ENGINE_NOT_FINITE, ENGINE_ROLLOUT_DIFFERS
from vidqa.engine.progress import Progress, require_trackers
from vidqa.engine.rl.meter import EarlyStopping, StepMeter
from vidqa.engine.rl.rollout import Decoding, Group, Question, QuestionStream, RolloutRecord, Rollouts
from vidqa.engine.rl.rollout_model import RolloutModel, banned_ids
from vidqa.engine.rl.update import UpdatePlanner, without_adapters
from vidqa.engine.signals import StopRequest
from vidqa.engine.training.objectives import PolicyGradient
from vidqa.engine.training.resume import Start, start_of
from vidqa.engine.training.trainer import Trainer, build_learner, memory_policy_of, model_counts, start_world
from vidqa.engine.training.warmup import map_memory
from vidqa.evaluation.problems import REWARD_CONSTANT
from vidqa.evaluation.rewards import Rewards, label_of, shuffled_options
from vidqa.families import family_of as tables_of
from vidqa.planning.budget.memory import MemoryPolicy
from vidqa.planning.packing import pack_budget
from vidqa.planning.prefix_sharing import max_tokens, split_indices
from vidqa.planning.requests import Sampling
from vidqa.planning.rollouts import RolloutShape, prompt_planner, rollout_memory, rollout_shape, update_packing
from vidqa.planning.samples import Planner, training_planner, validation_mode
from vidqa.spec import effective_batch
from vidqa.spec.grpo_tables import MOST_RETRIES, REWARDS, reward_part, reward_weights
from vidqa.spec.models import GrpoSpec

# The largest allowed difference of trainer and rollout log-probabilities: of any token in float32, on average in
# bfloat16. There both round logits to 8 bits: the mean is below 0.01 for a tiny model, and 0.015 (2B) to 0.033 (8B) for
# random weights, whose distributions are flat.
MOST_APART = {"float32": ("rollout_difference_max", 1e-4), "bfloat16": ("rollout_difference", 5e-2)}


def train(spec: GrpoSpec, run: RunFolder) -> int:
    """Run a GrpoSpec's training in `run`. Returns 0, or 6 if a signal or stop rule ended it (saved and resumable)."""
    with open_training(spec, run) as training:
        return training.run_to_end(run)


@contextmanager
def open_training(spec: GrpoSpec, run: RunFolder) -> Iterator[Training]:
    """Open a GrpoSpec's training in `run`, ready to take its next step."""
    stop, folder = StopRequest(), Path(spec.policy.model_name_or_path)
    world = start_world(spec)
    planner = prompt_planner(spec, folder)
    data = prepare_questions(spec, planner, world, run)
    check_steps(spec, data)
    shape = rollout_shape(spec, max_tokens([*data.train, *data.validation]))
    start = start_of(spec.train.resume, run, world)
    schedule = StepSchedule(spec, data, world, memory_policy(spec, folder, data, shape, world))
    world.on_main(lambda: write_plan(run, data, schedule.facts()))
    world.on_main(lambda: require_trackers(spec.logging))

    workers = spec.train.train_policy.dataloader_num_workers
    with open_frames(spec.engine, workers) as source:
        training = Training(run, schedule, start, planner, source, shape, stop)
        with training.rewards, training.held_rewards:
            yield training


def memory_policy(spec: GrpoSpec, folder: Path, data: Prepared, shape: RolloutShape, world: World) -> MemoryPolicy:
    """The memory policy of updates beside the rollout model and its cache."""
    model = model_counts(spec, folder)
    packing = update_packing(spec, data.train, world.data_ranks, world.device.type)
    return memory_policy_of(spec, model, world, packing, rollout_memory(spec, model, shape).gib)


class Training(Trainer[GrpoSpec]):
    """A training by GRPO with its rollout model."""

    def __init__(
        self,
        run: RunFolder,
        schedule: StepSchedule[GrpoSpec],
        start: Start,
        planner: Planner,
        source: FrameSource,
        shape: RolloutShape,
        stop: StopRequest,
    ) -> None:
        spec, data, world = schedule.spec, schedule.data, schedule.world
        folder, self.policy, self.planner = Path(spec.policy.model_name_or_path), spec.train.train_policy, planner
        sizes, learning = tables_of(folder).sizes_of(folder).vision, training_planner(spec, folder)
        pack_tokens = schedule.policy.pack_tokens or pack_budget(spec)

        # The model and its objective.
        objective = PolicyGradient(
            self.policy,
            temperature=spec.temperature,
            banned=torch.tensor(banned_ids(folder, planner), dtype=torch.int64, device=world.device),
            compile=spec.train.compile and world.device.type == "cuda",
        )
        learner = build_learner(schedule, start, stop, objective)
        self.model, self.reference = learner.model, None
        self.rollout_model = RolloutModel(spec, folder, planner, learner.model, shape, world)
        if self.policy.kl_beta > 0 and spec.policy.lora is None:
            self.reference = load_reference(folder, spec.policy, spec.train, world, schedule.policy.recompute)
        proof_set, mode = (data.validation, validation_mode(spec)) if data.validation else (data.train, None)
        proof_samples, _ = learning.plan([sample.record for sample in proof_set[:20]], mode)
        facts = {"predicted_gib": schedule.policy.peak_gib, "pack_tokens": pack_tokens}
        collator = Collator(learning, sizes, world.device.type)
        super().__init__(run, schedule, start, learner, collator, source, proof_samples, **facts)
        self.consumed, self.updates = start.trainer.get("questions", 0), start.trainer.get("updates", 0)

        # Questions and rewards.
        self.batch = effective_batch(spec)  # questions of a step
        self.longest_prompt = max_tokens([*data.train, *data.validation])  # tokens
        labels = [label_of(sample.record) for sample in data.train] if spec.engine.balance == "label" else []
        self.stream = QuestionStream(len(data.train), labels, self.policy)
        self.rollouts = Rollouts(self.rollout_model, planner, source)
        longest, timeout_s = spec.rollout.max_response_length, spec.engine.reward_timeout_s
        self.rewards = Rewards(self.policy.reward_function, self.policy, longest, timeout_s)
        held = spec.validation.reward_function or self.policy.reward_function
        self.held_rewards = Rewards(held, self.policy, spec.validation.max_response_length or longest, timeout_s)
        self.update_planner = UpdatePlanner(spec, planner, sizes, objective, world, pack_tokens)

        # Measurements.
        self.measures = spec.validation.enable and bool(data.validation)
        self.early_stopping = EarlyStopping(spec.engine.stop, start.trainer)
        self.record = RolloutRecord(run.path, world.rank, start.step, world.size)
        self.meter = StepMeter(schedule, learner.model)

    def run_steps(self, progress: Progress) -> bool:
        spec, schedule = self.spec, self.schedule
        self.meter.timed("sync", self.rollout_model.sync)
        if self.measures and spec.validation.val_before_train and self.first == 0:
            measured = self._validate()
            self.early_stopping.update(measured)  # the baseline of later validations
            progress.log(0, measured, line="before training")
        if self.saver.pending_eval and self._conclude(self.first - 1, {}, progress, resumed=True):
            return False
        self._prefetch(self.first)
        for step in range(self.first, schedule.total):
            values = self._step(step)
            # Asked of all ranks, also after a step without an update because all groups were dropped.
            stop_requested = any(self.world.gather(self.learner.stop.signal_name is not None))
            hurried = stop_requested and step + 1 < schedule.total
            if self._conclude(step, values, progress, hurried=hurried):
                return False
        return True

    def free(self) -> None:
        super().free()
        self.rollout_model.session.close()
        del self.model, self.rollout_model, self.reference, self.rollouts

    def _step(self, step: int) -> dict[str, float]:
        """Take one step; returns its metrics."""
        groups, dropped = self._rollout(step)
        facts = self.meter.rollout_values(groups, dropped, self._accuracy, self.rollouts)
        if step == 0:
            self._require_spread([*groups, *dropped])
        self._prefetch(step + 1)
        values = self.learn(step, groups)
        self.meter.timed("sync", self.rollout_model.sync)
        self.record.write(step + 1, groups, dropped, divided=not self.policy.unbiased_advantage)
        return {**facts, **values}

    def learn(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Take all updates of a step with this rank's groups; returns metrics, of several updates those of the last."""
        values, packing = {"train/lr": self.schedule_rate(step)}, self.update_planner
        packed = self.meter.timed("plan", lambda: [packing.plan(part) for part in self._parts(groups)])
        if len(packed) * self.policy.mu_iterations > 1:
            packed = self.meter.timed("old", lambda: [packing.with_values(p, "old", self.model) for p in packed])
        if self.policy.kl_beta > 0:
            with nullcontext(self.reference) if self.reference else without_adapters(self.model) as model:
                packed = self.meter.timed(
                    "reference", lambda: [packing.with_values(p, "reference", model) for p in packed]
                )
        if peak_gib := self.schedule.policy.peak_gib:  # capturing a graph, in a rollout, unmaps free memory
            map_memory(peak_gib, self.world.device)
        for part in packed * self.policy.mu_iterations:
            if not part.tokens:  # no group was left, or all of it is masked
                continue
            update = packing.step(self.updates, part)
            outcome = self.meter.timed("update", lambda: self.learner.train_step(update))  # noqa: B023  called at once
            if not outcome.is_finite:
                raise ENGINE_NOT_FINITE.error(f"step {step + 1}", f"loss {outcome.loss}, norm {outcome.grad_norm}")
            if "train/loss" not in values:  # the first update: until here the model is that of the rollout
                self._require_same(step, {**outcome.metrics, **outcome.maxima})
            self.updates += 1
            values |= self.meter.update_values(outcome, part)
        return values

    # --- rollout

    def _prefetch(self, step: int) -> None:
        """Start decoding the videos of a step's questions."""
        if step < self.schedule.total:
            self.prefetched = self.ask(self.consumed, self.batch)

    def ask(self, position: int, count: int) -> Decoding:
        """This rank's part of `count` questions of the stream from `position` on, balanced over ranks by cost. Their
        videos are decoded ahead from now on."""
        samples = [self.schedule.data.train[number] for number in self.stream.take(position, count)]
        mine = split_indices(samples, self.world.size)[self.world.rank]
        return self.rollouts.decoding([self.question(position + place) for place in mine])

    def question(self, slot: int) -> Question:
        """The question at a position of the stream. Its options are permuted if the spec says so and the prompt does
        not get longer than the longest prompt, for which memory is allocated."""
        sample = self.schedule.data.train[self.stream.at(slot)]
        if self.spec.engine.shuffle_options:
            record = shuffled_options(sample.record, f"{self.policy.dataloader_seed} {slot}")
            planned, problems = self.planner.plan([record]) if record is not sample.record else ([sample], [])
            if not problems and planned[0].length <= self.longest_prompt:
                sample = planned[0]
        return self.rollouts.question(slot, sample)

    def _rollout(self, step: int) -> tuple[list[Group], list[Group]]:
        """Draw this rank's groups of a step. Returns them, and those that DAPO drops and replaces by others."""
        sampling = Sampling(
            self.spec.rollout.max_response_length, temperature=self.spec.temperature, seed=self.spec.rollout.seed
        )
        is_dapo, retries = self.policy.variant == "dapo", self.policy.max_retry_for_on_policy
        groups, dropped = list[Group](), list[Group]()
        questions, count = self.prefetched, self.batch
        for retry in range(1 + (MOST_RETRIES if retries < 0 else retries)):
            questions = self.ask(self.consumed, count) if retry else questions
            self.consumed += count
            drawn = self._draw("rollout", questions, self.rewards, sampling, self.spec.rollout.n_generation, str(step))
            for group in drawn:
                (dropped if is_dapo and not self._is_mixed(group) else groups).append(group)
            count = self.batch - sum(self.world.gather(len(groups))) if is_dapo else 0
            if count <= 0:
                break
        return groups, dropped

    def _draw(self, phase: str, questions: Decoding, *how: Any, keeps_frames: bool = True) -> list[Group]:
        """The groups of questions whose media could be decoded; the arguments are those of `Rollouts.draw`."""
        groups = self.meter.timed(phase, lambda: self.rollouts.draw(questions, *how, keeps_frames=keeps_frames))
        self.bad_samples.report([problem for group in groups for problem in group.question.problems])
        return [group for group in groups if group.drawn]

    def _is_mixed(self, group: Group) -> bool:
        """Whether the filter metric varies: the spec's, by default accuracy, else the reward."""
        metrics = self.policy.filter_reward_metric
        metrics = [metrics] if isinstance(metrics, str) else metrics or [self._accuracy]
        spreads = [group.part(reward_part(name)) if name else group.rewards for name in metrics]
        return any(values.max() > values.min() for values in spreads)

    @property
    def _accuracy(self) -> str:
        """The part of the reward for correctness of a completion; empty if there is none."""
        names = [REWARDS.get(name, "") for name in reward_weights(self.policy.reward_function)]
        return "accuracy" if "accuracy" in names else ""

    def _parts(self, groups: Sequence[Group]) -> list[list[Group]]:
        """This rank's groups of each update of a step. Updates have equally many, in the order of their questions, on
        any number of ranks."""
        batch = self.spec.train.train_batch_per_replica
        parts = batch // (self.policy.batch_size_per_optimize or batch)
        if parts == 1:
            return [list(groups)]  # without a collective operation
        slots = sorted(chain(*self.world.gather([group.question.slot for group in groups])))
        update_of = {slot: place * parts // len(slots) for place, slot in enumerate(slots)}
        return [[group for group in groups if update_of[group.question.slot] == part] for part in range(parts)]

    def _require_spread(self, groups: Sequence[Group]) -> None:
        """Raise REWARD_CONSTANT, with three samples, if all completions of the first step have the same reward."""
        own = {drawn.reward.total for group in groups for drawn in group.drawn}
        rewards = set().union(*self.world.gather(own))
        if len(rewards) != 1:
            return
        shown = [group.drawn[0] for group in groups[:3]]
        samples = "; ".join(f"{drawn.completion.record.id}: {drawn.completion.text[:120]!r}" for drawn in shown)
        raise REWARD_CONSTANT.error("step 1", f"every reward is {rewards.pop():g}; {samples}")

    def _require_same(self, step: int, values: dict[str, float]) -> None:
        """Raise ENGINE_ROLLOUT_DIFFERS if the trainer is not the model that drew the completions."""
        name, bound = MOST_APART[self.spec.train.param_dtype]
        if values[name] > bound:
            message = f"{name} is {values[name]:.3g} in {self.spec.train.param_dtype}; {bound:g} allowed"
            raise ENGINE_ROLLOUT_DIFFERS.error(f"step {step + 1}", message)

    # --- after a step

    def _validate(self) -> dict[str, float]:
        """Metrics of the rollout model on the validation set; the same on every rank."""
        valid, held = self.spec.validation, self.schedule.data.validation
        longest = valid.max_response_length or self.spec.rollout.max_response_length
        sampling = Sampling(longest, temperature=valid.temperature, seed=self.spec.rollout.seed)
        mine = split_indices(held, self.world.size)[self.world.rank]
        questions = self.rollouts.decoding([self.rollouts.question(place, held[place]) for place in mine])
        how = (self.held_rewards, sampling, valid.n_generation, "validation")
        drawn = self._draw("validation", questions, *how, keeps_frames=False)  # the set may be large
        return self.meter.validation_values(drawn, self.rollouts)

    def _conclude(
        self,
        step: int,
        values: dict[str, float],
        progress: Progress,
        *,
        hurried: bool = False,
        resumed: bool = False,
    ) -> bool:
        """Measure, warn and save what is due after `step`. Returns whether the run ends here. After a signal
        (`hurried`) a due validation is left to the run that continues (`resumed`), where the step's other values are
        logged already."""
        saver = self.saver
        if self.measures and not hurried and (self.schedule.validates_after(step) or saver.exports(step)):
            measured = self._validate()
            saver.record_validation(step, measured)
            values = {**values, **measured}
        if values:
            values |= {} if resumed else self.meter.step_values()
            for warning in self.early_stopping.update(values):
                progress.say(f"warning: step {step + 1}: {warning}")
            progress.log(step + 1, values, line=self.meter.line(values))
        rule = self.early_stopping.stopping_rule
        stopping = hurried or (bool(rule) and step + 1 < self.schedule.total)
        saver.trainer |= {"questions": self.consumed, "updates": self.updates, **self.early_stopping.facts()}
        self.save(step, progress, stopping=stopping, hurried=hurried, resumed=resumed)
        if stopping:
            saver.background.finish()
            why = f"the stop rule {rule}" if rule else "a signal"
            progress.say(f"{why} ended it after step {step + 1}; resume with train.resume = true")
        return stopping
