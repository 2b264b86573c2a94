"""The head on supervised tokens: their negative log-likelihood, without keeping logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HEAD_ROWS = 1024  # supervised tokens whose logits exist at one time


def head_nll(head: nn.Module, hidden_ND: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32 over rows of HEAD_ROWS; logits of earlier rows are recomputed in backward, not kept."""

    def rows(hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(hidden).float(), target, reduction="none")

    if len(target_N) <= HEAD_ROWS:
        return rows(hidden_ND, target_N)
    pieces = zip(hidden_ND.split(HEAD_ROWS), target_N.split(HEAD_ROWS), strict=True)
    return torch.cat([checkpoint(rows, hidden, target, use_reentrant=False) for hidden, target in pieces])
