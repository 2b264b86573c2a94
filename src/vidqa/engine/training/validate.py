"""Validation during training: the exact token-weighted mean loss, and on request the accuracy of generated answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from vidqa.core.metric_names import ACCURACY, LOSS
from vidqa.core.problem import Problem
from vidqa.data.problems import EMPTY
from vidqa.engine.answering.answers import answer_of
from vidqa.engine.answering.prompts import Prompts
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.planned_samples import BadSamples, end_if_bad
from vidqa.engine.data.prefetch import Prefetcher
from vidqa.engine.distributed import World
from vidqa.engine.generators.hf import TransformersSession
from vidqa.engine.loading.fsdp import Resharding
from vidqa.engine.problems import CHECK_LOG
from vidqa.engine.training.objectives import SUPERVISED, Objective
from vidqa.evaluation.results import make_item
from vidqa.planning.packing import pack_budget, padded_length, plan_micro_batches, plan_packs
from vidqa.planning.prefix_sharing import relative_cost, workload
from vidqa.planning.requests import Sampling
from vidqa.planning.samples import Sample
from vidqa.spec.models import TrainSpec

LARGEST_PACK = 16_384  # tokens; larger packs are no faster, and a large policy.model_max_length would cost memory


def plan_forward(spec: TrainSpec, samples: Sequence[Sample], world: World, chosen: Sequence[int]) -> list[list[int]]:
    """This rank's packs of the `chosen` samples for a forward pass, equally many on every rank."""
    if spec.validation.batch_size or not spec.engine.packing:
        size = spec.validation.batch_size or spec.train.train_policy.mini_batch
        return plan_micro_batches(chosen, world.data_ranks, size)[world.data_rank]
    lengths = [padded_length(sample.length, world.device.type) for sample in samples]
    costs = [relative_cost(workload((number,), samples)) for number in range(len(samples))]
    budget = min(pack_budget(spec), LARGEST_PACK)
    return plan_packs(chosen, lengths, costs, world.data_ranks, budget)[world.data_rank]


class Validator:
    """Evaluates the model on `samples`. Every rank runs equally many micro-steps, as sharded layers require."""

    def __init__(
        self,
        spec: TrainSpec,
        samples: Sequence[Sample],
        collator: Collator,
        source: FrameSource,
        world: World,
        bad_samples: BadSamples,
        resharding: Resharding,
        objective: Objective = SUPERVISED,
    ) -> None:
        self.objective = objective
        self.samples, self.collator, self.source, self.world = samples, collator, source, world
        self.bad_samples, self.resharding = bad_samples, resharding
        self.packs = plan_forward(spec, samples, world, range(len(samples)))
        self.answered = samples[: spec.engine.validation_generate][world.rank :: world.size]
        self.answers = spec.engine.validation_generate > 0
        self.sampling = Sampling(spec.engine.validation_max_tokens)
        self.longest = spec.policy.model_max_length + self.sampling.max_tokens

    def measure(self, model: Any) -> dict[str, float]:
        """Return val/avg_loss and the objective's metrics; val/accuracy and val/truncated if samples are answered. The
        values are the same on every rank."""
        model.eval()
        values = self._losses(model)
        if self.answers:
            values |= self._accuracy(model)
        model.train()
        return values

    @torch.no_grad()
    def _losses(self, model: Any) -> dict[str, float]:
        """The means of loss and metrics over the objective's count. Raises DATA_EMPTY if that is 0."""
        names = self.objective.metrics
        total = torch.zeros(2 + len(names), dtype=torch.float64, device=self.world.device)
        bad: list[Problem] = []
        with Prefetcher(self.packs, self.samples, self.source, self.collator, self.world.device) as batches:
            for loaded in batches:
                bad += loaded.problems
                sums = self.objective(model, loaded.batch)
                total[0] += sums.sum
                total[1] += sums.count
                for place, name in enumerate(names, 2):
                    total[place] += sums.metrics[name]
        dist.all_reduce(total)
        self.bad_samples.report(bad)
        if not total[1]:
            raise EMPTY.error("validation", "no token of any sample could be predicted", CHECK_LOG)
        loss, *means = (total[[0, *range(2, 2 + len(names))]] / total[1]).tolist()
        return {LOSS: loss, **{f"val/{name}": mean for name, mean in zip(names, means, strict=True)}}

    def _accuracy(self, model: Any) -> dict[str, float]:
        """The share of correct answers, and the share of truncated ones. Both are counted as in a full evaluation: a
        truncated answer, or a sample that cannot be decoded, is wrong, and a sample without an expected answer is not
        judged."""
        planner = self.collator.planner.for_generation()
        session = TransformersSession(model, planner, longest=self.longest, batch_size=1)
        prompts = Prompts(planner, self.source, self.sampling).requests(self.answered)
        right = judged = cut = 0
        with self.resharding.everything():
            by_id = {result.id: result for batch in session.generate(prompts) for result in batch}
        for sample in self.answered:
            result = by_id[sample.record.id]
            end_if_bad(result.problems, fails=False)
            answer = None if result.problems else answer_of(result, planner.chat)
            text, reason = (answer.text, answer.finish_reason) if answer else (None, "stop")
            item = make_item(sample.record, text, reason)
            right += item["correct"] is True
            judged += item["correct"] is not None
            cut += item["parse_status"] == "truncated"
        counts = torch.tensor([right, judged, cut, len(self.answered)], dtype=torch.float64, device=self.world.device)
        dist.all_reduce(counts)
        right, judged, cut, answered = counts.tolist()
        return {ACCURACY: right / max(judged, 1), "val/truncated": cut / max(answered, 1)}
