"""Training objectives. Each takes a model and a batch and returns sums that are added over ranks and micro-steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from vidqa.core.metric_names import POLICY, POLICY_MAXIMA, PREFERENCE
from vidqa.engine.model.chunked_head import policy_head
from vidqa.planning.samples import Sample

MOST = 20.0  # bound of a difference of log-probabilities before exponentiation


@dataclass(frozen=True)
class Sums:
    """The values of an objective on one batch. The loss of a step is `sum` (float32 scalar with a gradient) over all
    its batches and ranks, divided by the sum of `count`: tokens, samples or pairs. `metrics` are sums without gradient,
    reported as mean over the same count; for tensors of `maxima` the largest value is reported, at least 0. Ranks of a
    context have some tokens of a sample each: sums over tokens are correct there, functions of whole samples are not.
    """

    sum: torch.Tensor
    count: int | torch.Tensor
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    maxima: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """The interface of an objective. `model.packed(batch)` is the negative log-likelihood of every supervised token,
    float32 [N] in the order of `batch.owner_N`. An objective may run a second model under `torch.no_grad`.

    metrics, maxima      their names, the same for every batch: they are logged as train/<name>
    token_values(sample) values that batches carry in `batch.values`, each float32 [S] for the S tokens of a sample,
                         reduced to the N supervised ones, [N]: weights, advantages, log-probabilities
    """

    metrics: ClassVar[tuple[str, ...]] = ()
    maxima: ClassVar[tuple[str, ...]] = ()

    def token_values(self, sample: Sample) -> Mapping[str, np.ndarray]:
        return {}

    def __call__(self, model: Any, batch: Any) -> Sums: ...


class Supervised(Objective):
    """The cross entropy of the answers' tokens, all with the same weight."""

    def __call__(self, model: Any, batch: Any) -> Sums:
        nll = model.packed(batch)
        return Sums(nll.sum(), len(nll))


SUPERVISED = Supervised()


class Preference(Objective):
    """Direct preference optimisation (DPO) on pairs of a chosen answer c and a rejected answer r to one prompt.

    With lp(a) the sum of an answer's log-probabilities under the model, ref(a) the same under the initial model of the
    training, and n the number of tokens of the chosen answer:

        margin = beta ((lp(c) - ref(c)) - (lp(r) - ref(r)))
        loss   = -(1 - smoothing) log sigmoid(margin) - smoothing log sigmoid(-margin) - sft_weight lp(c) / n

    The loss of a step is the mean over its pairs, excluding pairs whose media could not be decoded, now or when
    the reference was computed. `engine` is the spec's table. `reference`, float32 [answers] indexed by the values of
    `Batch.samples`, NaN if unknown, is set before the first step (`training.reference`)."""

    metrics = PREFERENCE
    reference: torch.Tensor

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def answer_sums(self, model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probability and number of tokens of every answer of a batch, float32 [answers], in the order of
        `batch.samples`."""
        nll_N = model.packed(batch)
        zeros = nll_N.new_zeros(len(batch.samples))
        tokens = zeros.index_add(0, batch.owner_N, torch.ones_like(nll_N))
        return zeros.index_add(0, batch.owner_N, -nll_N), tokens

    def __call__(self, model: Any, batch: Any) -> Sums:
        engine, (sums, tokens) = self.engine, self.answer_sums(model, batch)
        numbers = torch.tensor(batch.samples, dtype=torch.int64, device=sums.device)
        order = numbers.argsort()  # the answers of pair n are 2n (chosen) and 2n + 1 (rejected)
        numbers, sums, tokens = (values[order].view(-1, 2) for values in (numbers, sums, tokens))
        reference = self.reference[numbers]
        reward = engine.dpo_beta * (sums - reference.nan_to_num())
        margin, smoothing = reward[:, 0] - reward[:, 1], engine.dpo_label_smoothing
        loss = -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)
        loss = loss - engine.dpo_sft_weight * sums[:, 0] / tokens[:, 0].clamp(min=1)
        counts = ((tokens > 0) & reference.isfinite()).all(dim=1).float()
        with torch.no_grad():
            values = (margin, (margin > 0).float(), reward[:, 0], reward[:, 1])
            metrics = {name: (value * counts).sum() for name, value in zip(self.metrics, values, strict=True)}
        return Sums((loss * counts).sum(), counts.sum(), metrics)


@dataclass(frozen=True)
class PolicyGradient:
    """GRPO and its variants: a clipped policy gradient with advantages relative to a group.

    With lp the log-probability of a token under the model, A its completion's advantage and w its weight:

        rho  = exp(clamp(lp - lp_old, -20, 20)); gspo: the completion's mean difference replaces lp - lp_old
        loss = sum w [-min(rho A, clip(rho, 1 - epsilon_low, 1 + epsilon_high) A), if A < 0 at most -lower_bound A]
             + w kl_beta (exp(d) - d - 1),  d = clamp(lp_reference - lp, -20, 20)

    times min(exp(lp_old - lp_rollout), cap) if there is a cap. Without `old` in a batch, the completions were drawn
    from the current model: lp_old is lp without its gradient. Weights include the aggregation over the whole step, on
    all ranks and micro-steps, so that the loss does not depend on packs and ranks.

    `policy` is the table train.train_policy of a GrpoSpec; `banned` are token ids, int64, that are never drawn;
    `compile` fuses operations after the head. A batch's `values` are "weight", "advantage", "rollout" (log-probability
    at sampling time) and, if used, "old" and "reference"."""

    policy: Any
    temperature: float
    banned: torch.Tensor
    compile: bool = False

    metrics: ClassVar[tuple[str, ...]] = POLICY
    maxima: ClassVar[tuple[str, ...]] = POLICY_MAXIMA

    def token_values(self, sample: Any) -> Mapping[str, np.ndarray]:
        return sample.values

    def log_probabilities(self, model: Any, batch: Any) -> torch.Tensor:
        """Log-probability and entropy of every token of the completions, float32 [2, N]."""
        settings: dict[str, Any] = {"temperature": self.temperature, "banned": self.banned, "compile": self.compile}
        return model.packed(batch, head=partial(policy_head, **settings))

    def __call__(self, model: Any, batch: Any) -> Sums:
        logprob_N, entropy_N = self.log_probabilities(model, batch)
        values, policy = batch.values, self.policy
        old_N = values["old"] if "old" in values else logprob_N.detach()
        advantage_N, weight_N = values["advantage"], values["weight"]
        difference_N = logprob_N - old_N
        if policy.variant == "gspo":
            difference_N = mean_of_owner(difference_N, batch.owner_N, len(batch.samples))
        ratio_N = difference_N.clamp(-MOST, MOST).exp()
        clipped_N = ratio_N.clamp(1 - policy.epsilon_low, 1 + policy.epsilon_high)
        loss_N = -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
        bound_N = -policy.lower_bound_ratio * advantage_N
        loss_N = torch.where(advantage_N < 0, torch.minimum(loss_N, bound_N), loss_N)
        divergence_N = torch.zeros_like(logprob_N)
        if "reference" in values:
            gap_N = (values["reference"] - logprob_N).clamp(-MOST, MOST)
            divergence_N = gap_N.exp() - gap_N - 1
            loss_N = loss_N + policy.kl_beta * divergence_N
        if policy.behav_imp_weight_cap is not None:
            loss_N = loss_N * (old_N - values["rollout"]).exp().clamp(max=policy.behav_imp_weight_cap)
        with torch.no_grad():
            rollout_N = (logprob_N - values["rollout"]).abs()
            metrics = {
                "entropy": entropy_N.sum(),
                "kl": divergence_N.sum(),
                "clip_low": ((ratio_N < 1 - policy.epsilon_low) & (advantage_N < 0)).float().sum(),
                "clip_high": ((ratio_N > 1 + policy.epsilon_high) & (advantage_N > 0)).float().sum(),
                "ratio": ratio_N.sum(),
                "rollout_difference": rollout_N.sum(),
            }
            maxima = {"rollout_difference_max": rollout_N, "ratio_difference_max": (ratio_N - 1).abs()}
        return Sums((loss_N * weight_N).sum(), len(loss_N), metrics, maxima)


def mean_of_owner(value_N: torch.Tensor, owner_N: torch.Tensor, owners: int) -> torch.Tensor:
    """The mean of the values of each owner, repeated for each of its tokens: float32 [N]."""
    total = value_N.new_zeros(owners).index_add(0, owner_N, value_N)
    count = value_N.new_zeros(owners).index_add(0, owner_N, torch.ones_like(value_N))
    return (total / count.clamp(min=1))[owner_N]
