"""Validation while training: the exact token-weighted mean loss, and on request generated accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from vidqa.engine.batch.collate import Collator
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.batch.loader import Loader
from vidqa.engine.distributed import World
from vidqa.engine.generate.answers import Decoding, generate_answers
from vidqa.engine.model.gathering import Gathering
from vidqa.engine.model.qwen3_vl import stock_forward
from vidqa.engine.quarantine import Quarantine, end_if_bad
from vidqa.packing.packs import cost, padded, plan_micro_batches, plan_packs
from vidqa.packing.sharing import work_of
from vidqa.problem import Problem
from vidqa.samples import Sample
from vidqa.scoring import make_item

ANSWER_TOKENS = 64  # generated answers in validation are short; a full evaluation has its own limit


class Validator:
    """Measures the model on `samples`. Every rank runs as many micro-steps, so that sharded layers meet."""

    def __init__(
        self,
        spec: Any,
        samples: Sequence[Sample],
        collator: Collator,
        source: FrameSource,
        world: World,
        quarantine: Quarantine,
        gathering: Gathering,
    ) -> None:
        self.samples, self.collator, self.source, self.world = samples, collator, source, world
        self.quarantine, self.gathering = quarantine, gathering
        everyone = range(len(samples))
        if spec.validation.batch_size or not spec.engine.packing:
            size = spec.validation.batch_size or spec.train.train_policy.mini_batch
            packs = plan_micro_batches(everyone, world.size, size)
        else:
            lengths = [padded(sample.length, world.device.type) for sample in samples]
            costs = [cost(work_of((number,), samples)) for number in everyone]
            budget = spec.engine.pack_tokens or spec.policy.model_max_length
            packs = plan_packs(everyone, lengths, costs, world.size, budget)
        self.packs = packs[world.rank]
        self.asked = samples[: spec.engine.validation_generate][world.rank :: world.size]
        self.answers = spec.engine.validation_generate > 0

    def measure(self, model: Any) -> dict[str, float]:
        """val/avg_loss, and val/accuracy where samples are answered; the same on every rank."""
        model.eval()
        try:
            values = {"val/avg_loss": self._loss(model)}
            if self.answers:
                values["val/accuracy"] = self._accuracy(model)
        finally:
            model.train()
        return values

    @torch.no_grad()
    def _loss(self, model: Any) -> float:
        total = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        bad: list[Problem] = []
        with Loader(self.packs, self.samples, self.source, self.collator, self.world.device) as batches:
            for loaded in batches:
                bad += loaded.problems
                nll = model(loaded.batch)
                total += torch.stack([nll.sum().double(), total.new_tensor(len(nll))])
        dist.all_reduce(total)
        self.quarantine.take(bad)
        return (total[0] / total[1]).item()

    def _accuracy(self, model: Any) -> float:
        """The share of the asked samples that are answered rightly; a sample that cannot be decoded is a wrong one."""
        planner = self.collator.planner.for_generation()
        right = 0
        with self.gathering.everything(), stock_forward(model):
            for sample in self.asked:
                frames, problems = self.source.collect(self.source.request([sample]))
                end_if_bad(problems, fails=False)
                if problems:
                    continue
                answer = generate_answers(model, planner, [sample], frames, Decoding(ANSWER_TOKENS))[0]
                right += bool(make_item(sample.record, answer.text, answer.finish_reason)["correct"])
        counts = torch.tensor([right, len(self.asked)], dtype=torch.float64, device=self.world.device)
        dist.all_reduce(counts)
        return (counts[0] / counts[1].clamp(min=1)).item()
