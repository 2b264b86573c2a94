"""The objective of GRPO and its variants: a clipped policy gradient with advantages relative to a group.

With lp the log-probability of a token under the model, A its completion's advantage and w its weight:

    rho  = exp(clamp(lp - lp_old, -20, 20)); gspo: of the completion's mean difference, the same for all its tokens
    loss = sum w [-min(rho A, clip(rho, 1 - epsilon_low, 1 + epsilon_high) A), where A < 0 at most -lower_bound A]
         + w kl_beta (exp(d) - d - 1),  d = clamp(lp_reference - lp, -20, 20)

times min(exp(lp_old - lp_rollout), cap) where there is a cap. Without `old` in a batch, the model is the one that the
completions are from: lp_old is lp without its gradient. Weights hold the aggregation over the whole step, on all ranks
and micro-steps, so that packs and ranks change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from vidqa.engine.model.chunked_head import policy_head
from vidqa.engine.objectives._base import Sums

MOST = 20.0  # bound of a difference of log-probabilities before it is exponentiated


@dataclass(frozen=True)
class PolicyGradient:
    """`policy` is the table train.train_policy of a GrpoSpec; `banned` are token ids, int64, that are never drawn;
    `compile` fuses what follows the head. A batch's `values` are "weight", "advantage" and "rollout" (log-probability
    when it was drawn), and "old" and "reference" where they count."""

    policy: Any
    temperature: float
    banned: torch.Tensor
    compile: bool = False

    metrics: tuple[str, ...] = ("entropy", "kl", "clip_low", "clip_high", "ratio", "rollout_difference")
    maxima: tuple[str, ...] = ("rollout_difference_max", "ratio_difference_max")

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
    """The mean of the values of each owner, at each of its places: float32 [N]."""
    total = value_N.new_zeros(owners).index_add(0, owner_N, value_N)
    count = value_N.new_zeros(owners).index_add(0, owner_N, torch.ones_like(value_N))
    return (total / count.clamp(min=1))[owner_N]
