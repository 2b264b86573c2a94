"""The head on supervised tokens: what a loss needs of each token, without keeping logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HEAD_ROWS = 1024  # supervised tokens whose logits exist at one time


def head_nll(head: nn.Module, hidden_ND: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32, [N]."""

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
) -> torch.Tensor:
    """Of the distribution softmax(logits / temperature) without the token ids `banned` (int64), float32 [2, N]: the
    log-probability of each target, and the entropy in nats, which has no gradient."""

    def rows(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        # In place: each of these tensors has a number for every token of the vocabulary.
        logprobs = head(hidden).float().index_fill_(-1, banned, -math.inf).div_(temperature).log_softmax(-1)
        with torch.no_grad():
            entropy = -logprobs.exp().mul_(logprobs).nan_to_num_(nan=0.0).sum(-1)
        return torch.stack([logprobs.gather(-1, target[:, None])[:, 0], entropy])

    return _in_rows(rows, hidden_ND, target_N)


def _in_rows(rows: Callable[[Any, Any], torch.Tensor], hidden_ND: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """`rows` over HEAD_ROWS tokens at a time; logits of earlier rows are recomputed in backward, not kept. The last
    dimension of what `rows` gives is that of the tokens."""
    if len(target_N) <= HEAD_ROWS:
        return rows(hidden_ND, target_N)
    pieces = zip(hidden_ND.split(HEAD_ROWS), target_N.split(HEAD_ROWS), strict=True)
    return torch.cat([checkpoint(rows, hidden, target, use_reentrant=False) for hidden, target in pieces], dim=-1)
