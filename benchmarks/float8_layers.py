"""One decoder layer and one vision block, forward and backward, in bf16 and in 8-bit floats: time, kernels, rounding.

    python benchmarks/float8_layers.py --out DIR

Layers of the 8B shapes with random weights on one GPU, compiled as the engine compiles them; 16,384 tokens, and four
patches for each. A row tells how long both directions take, what its kernels do, and how far the output and the
gradients lie from those of bf16 (norm of the difference over the norm).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from ledger import Ledger, arguments, table
from shapes import config_of
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from vidqa.engine.context_parallel import WHOLE
from vidqa.engine.families import qwen_vl
from vidqa.engine.families.qwen3_vl import PARTS, QWEN3_VL
from vidqa.engine.families.qwen_vl_layers import EAGER, compiled
from vidqa.engine.model.float8 import use_float8

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
WAYS = (None, "tensorwise", "rowwise")
TIMES = 12
# The first words that a kernel's name holds decide.
KINDS = (
    ("casts and turns", ("_cast_kernel",)),
    ("elementwise, norms", ("triton_",)),
    ("attention", ("sdpa", "flash", "fmha", "attention")),
    ("GEMM", ("gemm", "nvjet", "cutlass", "xmma", "cublas")),
)
SHOWN = ("run", "ms", "forward_ms", "speed", "peak_gib", "output_off", "input_gradient_off", "weight_gradients_off")


class Layer(NamedTuple):
    module: nn.Module
    hidden: torch.Tensor
    call: Callable[[], torch.Tensor]
    gradient: torch.Tensor

    def both(self) -> list[torch.Tensor]:
        """The output and the gradients of the input and of every matrix."""
        matrices = [parameter for parameter in self.module.parameters() if parameter.dim() > 1]
        output = self.call()
        return [output.detach(), *torch.autograd.grad(output, [self.hidden, *matrices], self.gradient)]


def layer_of(part: str, config: Any, tokens: int, frame: int) -> Layer:
    """The first decoder layer, or the first vision block on four patches a token."""
    with torch.device("meta"):
        model = QWEN3_VL.model_class(config).model
    dense = compiled() if CUDA else EAGER
    if part == "decoder":
        width, rows, segments = config.text_config.head_dim, tokens, ((0, 2, tokens // 2),)
        module = model.language_model.layers[0]
        forward: Any = partial(qwen_vl.decoder_layer, WHOLE, dense)
        more: list[Any] = [None]
    else:
        tower = config.vision_config
        width, rows, segments = tower.hidden_size // tower.num_heads, 4 * tokens, ((0, 4 * tokens // frame, frame),)
        module, forward, more = model.visual.blocks[0], partial(qwen_vl.vision_block, PARTS, dense), []
    module = module.to_empty(device=DEVICE).to(torch.bfloat16).train()
    generator = torch.Generator(DEVICE).manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.02, generator=generator).add_(parameter.dim() == 1)  # norms and biases: about one
    size = config.text_config.hidden_size if part == "decoder" else config.vision_config.hidden_size
    hidden, gradient = (torch.randn(rows, size, device=DEVICE, generator=generator).bfloat16() for _ in range(2))
    angle = torch.outer(torch.arange(rows, device=DEVICE), torch.linspace(1, 0.001, width, device=DEVICE))
    turns = (angle.cos(), angle.sin()) if part == "vision" else (angle.cos().bfloat16(), angle.sin().bfloat16())
    hidden.requires_grad_()
    return Layer(module, hidden, partial(forward, module, hidden, *turns, segments, *more), gradient * 1e-4)


def milliseconds(work: Callable[[], Any]) -> float:
    for _ in range(3):
        work()
    _settle()
    began = time.perf_counter()
    for _ in range(TIMES):
        work()
    _settle()
    return (time.perf_counter() - began) / TIMES * 1e3


def _settle() -> None:
    if CUDA:
        torch.cuda.synchronize()


def kinds_of(work: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of all kernels of each kind, of one call."""
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]) as found:
        work()
        _settle()
    kinds: dict[str, float] = defaultdict(float)
    for event in found.events():
        name = event.name.lower()
        if event.device_type == DeviceType.CUDA and not name.startswith(("##", "torch-compiled", "compiledfunction")):
            kind = next((kind for kind, marks in KINDS if any(mark in name for mark in marks)), "other")
            kinds[kind] += event.device_time / 1e3
    return dict(kinds)


def off(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[float]:
    return [
        float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        for ours, theirs in zip(found, exact, strict=True)
    ]


def measured(layer: Layer) -> tuple[dict[str, Any], list[torch.Tensor]]:
    found = layer.both()
    row: dict[str, Any] = {"ms": milliseconds(layer.both), "forward_ms": milliseconds(layer.call)}
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer.both()
        row["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
    return {**row, "kernels_ms": kinds_of(layer.both)}, found


def main() -> None:
    options = arguments(__doc__).parse_args()
    ledger = Ledger("float8_layers", options)
    config, _ = config_of("tiny" if options.tiny else "8b", ["a"])
    tokens, frame = (128, 64) if options.tiny else (16384, 1024)
    for part in ("decoder", "vision"):
        layer = layer_of(part, config, tokens, frame)
        exact, plain_ms = [], 0.0
        for way in WAYS:
            torch._dynamo.reset()
            if way:
                use_float8([layer.module], way)
            row, found = measured(layer)
            exact, plain_ms = (exact, plain_ms) if way else (found, row["ms"])
            output, to_input, *to_weights = off(found, exact)
            named = {"output_off": output, "input_gradient_off": to_input, "weight_gradients_off": max(to_weights)}
            ledger.add({"run": f"{part}, {way or 'bf16'}", **row, "speed": plain_ms / row["ms"], **named})
            print(ledger.rows[-1], flush=True)
    print(table([{key: row.get(key) for key in SHOWN} for row in ledger.rows]))


if __name__ == "__main__":
    main()
