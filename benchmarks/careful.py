"""The careful recipe: the packed recipe with fused parts, in plain torch, and recomputation only if needed.

Fused kernels for Qwen3-VL exist (Liger's are the best known). The same parts are implemented here: the head with cross
entropy in chunks, RMS norm, SwiGLU and rotary embedding, the last three compiled on a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F

ROWS_AT_ONCE = 1024  # of the head: logits of 1,024 tokens take 0.6 GB in float32


@dataclass(frozen=True)
class Try:
    """Settings to try: tokens of a pack, and whether backward recomputes layers. Written 16384 or 16384-kept."""

    pack_tokens: int
    recompute: bool

    @classmethod
    def parse(cls, text: str) -> Try:
        tokens, _, gathered = text.partition("-")
        return cls(int(tokens), gathered != "kept")


class LinearCrossEntropy(torch.autograd.Function):
    """Sum of the negative log-likelihoods of targets [N] under hidden [N, H] @ weight [V, H].T, in float32. Gradients
    are computed chunk by chunk in the forward, so that at most ROWS_AT_ONCE rows of logits exist at a time."""

    @staticmethod
    def forward(ctx: Any, hidden_NH: torch.Tensor, weight_VH: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
        total = hidden_NH.new_zeros((), dtype=torch.float32)
        wants_hidden, wants_weight, _ = ctx.needs_input_grad
        of_hidden = torch.empty_like(hidden_NH) if wants_hidden else None
        of_weight = torch.zeros_like(weight_VH, dtype=torch.float32) if wants_weight else None
        for start in range(0, len(target_N), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            hidden, target = hidden_NH[rows].to(weight_VH.dtype), target_N[rows, None]
            logits = (hidden @ weight_VH.T).float()
            log_total = logits.logsumexp(1, keepdim=True)
            total += (log_total - logits.gather(1, target)).sum()
            error = logits.sub_(log_total).exp_().scatter_add_(1, target, logits.new_full(target.shape, -1.0))
            error = error.to(weight_VH.dtype)
            if of_hidden is not None:
                of_hidden[rows] = error @ weight_VH
            if of_weight is not None:
                of_weight += error.T @ hidden
        ctx.save_for_backward(of_hidden, of_weight)
        ctx.weight_dtype = weight_VH.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *outside: torch.Tensor) -> Any:
        of_hidden, of_weight = ctx.saved_tensors
        (factor,) = outside
        hidden = None if of_hidden is None else of_hidden * factor.to(of_hidden.dtype)
        return hidden, None if of_weight is None else (of_weight * factor).to(ctx.weight_dtype), None


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = hidden.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(hidden.dtype)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def install_fused_parts(model: Any, *, compiled: bool) -> None:
    """Install the fused parts in transformers' Qwen3-VL. model(predict_at=, targets=, **inputs) then returns the summed
    loss instead of logits."""

    def fuse(function: Any) -> Any:
        return torch.compile(function, dynamic=True) if compiled else function

    norm, gated = fuse(rms_norm), fuse(swiglu)
    for module in model.modules():
        if type(module).__name__ == "Qwen3VLTextRMSNorm":
            module.forward = MethodType(lambda self, x: norm(x, self.weight, self.variance_epsilon), module)
        elif type(module).__name__ == "Qwen3VLTextMLP":
            module.forward = MethodType(
                lambda self, x: self.down_proj(gated(self.gate_proj(x), self.up_proj(x))), module
            )
    if compiled:
        written: Any = sys.modules[type(model).__module__]
        for name in ("apply_rotary_pos_emb", "apply_rotary_pos_emb_vision"):
            setattr(written, name, fuse(getattr(written, name)))
    model.forward = MethodType(_summed_loss, model)


def _summed_loss(self: Any, predict_at: torch.Tensor, targets: torch.Tensor, **inputs: Any) -> torch.Tensor:
    hidden = self.model(**inputs)[0][0, predict_at]
    return LinearCrossEntropy.apply(hidden, self.lm_head.weight, targets)


def keep_frozen_tower_plain(visual: Any) -> None:
    """Run a frozen tower in its own bf16: without gradients, and without autocast, which would compute norms in
    float32."""
    written = visual.forward

    def forward(*words: Any, **named: Any) -> Any:
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            return written(*words, **named)

    visual.forward = forward
