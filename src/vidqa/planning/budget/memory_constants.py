"""The constants of the memory estimate of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field


@dataclass(frozen=True)
class Widths:
    """Numbers per token of one layer, as multiples of its widths."""

    hidden: float = 0
    queries: float = 0
    keys: float = 0
    wide: float = 0  # the MLP's width

    def __add__(self, other: Widths) -> Widths:
        return Widths(*(ours + theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Widths) -> Widths:
        return Widths(*(ours - theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class MemoryConstants:
    """All constants of the memory arithmetic; change them if measured runs say so. Multiples count numbers in compute
    precision, so a float32 copy in a bf16 layer counts twice."""

    # Kept by one layer for backward, its input included: in eager mode, and with torch.compile.
    eager: Widths = Widths(9, 5, 5, 4)
    compiled: Widths = Widths(2, 3, 3, 2)
    eager_head_norms: Widths = Widths(queries=3, keys=3)  # the share of the heads' norms in `eager`
    eager_lora_head_norms: Widths = Widths(queries=2, keys=2)
    compiled_head_norms: Widths = Widths(queries=1, keys=1)
    eager_lora: Widths = Widths(7, 4, 4, 4)  # frozen weights need fewer inputs; compiled layers keep few anyway
    eager_dropout: Widths = Widths(5.5, 1.5, 0, 0.5)  # inputs of adapters after dropout, and masks of a byte each
    compiled_dropout: Widths = Widths(queries=1)
    eager_vision: Widths = Widths(hidden=8, wide=2)
    compiled_vision: Widths = Widths(hidden=6, wide=1)
    eager_gated_vision: Widths = Widths(hidden=13, wide=4)
    compiled_gated_vision: Widths = Widths(hidden=6, wide=2)
    shared: Widths = Widths(queries=1)  # attention's output of suffixes, joined with that of their prefix
    # With context parallelism attention's output is kept twice: all rows of the GPU's heads, all heads of its rows.
    exchanged: Widths = Widths(queries=1)
    # Kept by a recomputed layer: its input; also attention's output (linear); also everything after it (projections).
    layer: Widths = Widths(hidden=1)
    linear: Widths = Widths(hidden=1, queries=1)
    compiled_projections: Widths = Widths(hidden=2, queries=1, wide=2)
    eager_projections: Widths = Widths(hidden=5, queries=1, wide=4)
    eager_projections_dropout: Widths = Widths(hidden=2, queries=1.5, wide=0.5)
    # Transient memory of one layer's backward: activation gradients and temporaries of compiled layers on a GPU. A
    # recomputed layer adds its missing activations; `linear_again` are those of the level "linear".
    in_flight: Widths = Widths(wide=4)
    in_flight_lora: Widths = Widths(wide=5)
    linear_again: Widths = Widths(hidden=2, wide=2)
    linear_again_lora: Widths = Widths(wide=5)
    merger: int = 4  # a merger's input, normed, widened and activated
    moments_bytes: int = 8  # Adam's two moments in float32, per trainable number
    moments_8bit_bytes: float = 2 + 8 / 256  # of AdamW8bit: two codes, and two scales per 256 numbers
    # Per number of a quantized base: its code and its part of scales (fp8 rows are thousands of numbers long).
    quantized_bytes: Mapping[str, float] = field(
        default_factory=lambda: {"nf4": 0.5 + 1 / 64 + 4 / (64 * 256), "fp8": 1 + 2 / 4096}
    )
    logit_bytes: int = 14  # one logit in bf16 and float32, its softmax, and the gradients of both
    logit_rows: int = 1024  # supervised tokens whose logits exist at one time
    whole_layers: int = 2  # layers that are gathered on a GPU: the current one and the next
    outside_gib: float = 2.0  # CUDA's context, NCCL's buffers, workspaces: everything outside PyTorch's tensors
    error: float = 0.05  # tolerance of a prediction


CONSTANTS = MemoryConstants()
