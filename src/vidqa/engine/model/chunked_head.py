"""The head on supervised tokens: loss values per token, computed in chunks without keeping logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HEAD_ROWS = 1024  # supervised tokens whose logits exist at one time


def head_nll(head: nn.Module, hidden_ND: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each supervised token in float32, [N]."""

    def rows(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(hidden).float(), target, reduction="none")

    return _in_rows(rows, hidden_ND, target_N)


def policy_head(
    head: nn.Module,
    hidden_ND: torch.Tensor,
    target_N: torch.Tensor,
    *,
    temperature: float,
    banned: torch.Tensor,
    compile: bool = False,
) -> torch.Tensor:
    """Log-probability of each target, and entropy in nats without gradient, float32 [2, N], of softmax(logits /
    temperature) without the token ids `banned` (int64). `compile` fuses all but the head."""
    policy = _compiled_policy() if compile else _policy

    def rows(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = head(hidden)
        banned_1V = logits.new_zeros(1, logits.shape[-1], dtype=torch.float32).index_fill_(1, banned, -math.inf)
        return policy(logits, target, banned_1V, temperature)

    return _in_rows(rows, hidden_ND, target_N)


def _policy(
    logits_NV: torch.Tensor, target_N: torch.Tensor, banned_1V: torch.Tensor, temperature: float
) -> torch.Tensor:
    """`banned_1V` is float32, 0 or -inf. A comparison selects the target, since the gradient of `gather` is a dense
    tensor of zeros; compiled, this reads the logits twice and writes their gradient once."""
    scaled_NV = (logits_NV.float() + banned_1V) / temperature
    total_N = scaled_NV.logsumexp(-1)
    is_target_NV = torch.arange(logits_NV.shape[1], device=logits_NV.device) == target_N[:, None]
    logprob_N = torch.where(is_target_NV, scaled_NV, 0.0).sum(-1) - total_N
    fixed_NV, fixed_N = scaled_NV.detach(), total_N.detach()
    probability_NV = (fixed_NV - fixed_N[:, None]).exp()
    mean_N = torch.where(probability_NV > 0, probability_NV * fixed_NV, 0.0).sum(-1)
    return torch.stack([logprob_N, fixed_N - mean_N])


@cache
def _compiled_policy() -> Callable[..., torch.Tensor]:
    from vidqa.engine.torch_private import any_length  # the compiler takes seconds to import

    return any_length(torch.compile(_policy, fullgraph=True))


def _in_rows(rows: Callable[[Any, Any], torch.Tensor], hidden_ND: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """Apply `rows` to HEAD_ROWS tokens at a time; in backward logits are recomputed chunk by chunk, not kept. The last
    dimension of the result of `rows` is that of tokens."""
    if len(target_N) <= HEAD_ROWS:
        return rows(hidden_ND, target_N)
    pieces = zip(hidden_ND.split(HEAD_ROWS), target_N.split(HEAD_ROWS), strict=True)
    return torch.cat([checkpoint(rows, hidden, target, use_reentrant=False) for hidden, target in pieces], dim=-1)
