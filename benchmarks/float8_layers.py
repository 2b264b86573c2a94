"""One decoder layer and one vision block forward and backward, in bf16 and by several ways in fp8: which is fastest.

    python benchmarks/float8_layers.py --out DIR
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from float8_ways import Way, both, columns, multiply, products, scale_of
from ledger import arguments
from shapes import SHAPES, config_of
from torch import nn
from torch.profiler import ProfilerActivity, profile

from vidqa.engine.families import family_of, qwen_vl, qwen_vl_layers
from vidqa.engine.families.qwen3_vl import PARTS, QWEN3_VL
from vidqa.engine.model import layers
from vidqa.engine.model.compiling import any_length
from vidqa.engine.model.context import WHOLE
from vidqa.engine.model.layers import FLOAT8

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
BEGAN = time.monotonic()
EAGER = False

own_project = layers.project


def project(hidden: torch.Tensor, *of: Any, plainly: bool = False) -> Any:
    if isinstance(of[0].float8, Way):
        return products(of[0].float8, hidden, [each.weight for each in of], [each.bias for each in of])
    return own_project(hidden, *of, plainly=plainly)


qwen_vl_layers.project = project


def dense() -> Any:
    """Compiled; a CPU, which has no kernels of its own here, traces the same graphs and carries them out one by one."""
    if CUDA:
        return qwen_vl_layers.compiled()
    if EAGER:
        return qwen_vl_layers.EAGER
    compiled = (torch.compile(each, fullgraph=True, backend="aot_eager") for each in qwen_vl_layers.EAGER)
    return qwen_vl_layers.Dense(*map(any_length, compiled))


def torchao_way(fast: bool) -> Any:
    from dataclasses import replace

    import torchao.float8.float8_linear as torchao
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.config import Float8GemmConfig

    recipe = replace(Float8LinearConfig.from_recipe_name("tensorwise"), emulate=not CUDA)
    if fast:
        quick = Float8GemmConfig(use_fast_accum=True)
        recipe = replace(recipe, gemm_config_grad_input=quick, gemm_config_grad_weight=quick)
    sample = torchao.Float8Linear.from_float(nn.Linear(16, 16, bias=False, device="meta"), recipe)
    return layers.Float8(torchao.matmul_with_hp_or_float8_args.apply, sample.linear_mm_config, sample.config)


SLOW = (True, False, False)
WAYS: dict[str, Callable[[], Any]] = {
    "bf16": lambda: None,
    "torchao": lambda: torchao_way(False),
    "triton": lambda: Way(),
    "triton, slow weight gradient": lambda: Way(fast=(True, True, False)),
    "torch": lambda: Way(turn="torch"),
    "torch, checked": lambda: Way(turn="torch", checked=True),
    "triton, apart": lambda: Way(together=False),
    "triton, kept": lambda: Way(keep=True),
    "torchao, fast": lambda: torchao_way(True),
    "triton, amax at once": lambda: Way(by_rows=False),
    "triton, e4m3 gradients": lambda: Way(gradient="e4m3"),
    "triton, slow": lambda: Way(fast=SLOW),
    "triton, bf16 weight gradient": lambda: Way(wgrad8=False),
    "bf16 again": lambda: None,
}
VISION_WAYS = ("bf16", "triton")


def timed(work: Callable[[], Any], times: int) -> float:
    """Seconds of one call."""
    for _ in range(3):
        work()
    if not CUDA:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / times / 1000


def kernels(work: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """Name, calls and milliseconds of every kernel of one call, longest first."""
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]) as found:
        work()
        if CUDA:
            torch.cuda.synchronize()
    total: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in found.events():
        ranges = event.name.startswith(("##", "Torch-Compiled", "CompiledFunction", "ProfilerStep"))
        if not CUDA or (event.device_type == torch.autograd.DeviceType.CUDA and not ranges):
            total[event.name][0] += 1
            total[event.name][1] += (event.device_time if CUDA else event.cpu_time) / 1000
    return sorted(((name, int(n), ms) for name, (n, ms) in total.items()), key=lambda item: -item[2])


def kind_of(name: str) -> str:
    name = name.lower()
    marks = {
        "cast": ("_cast_kernel",),
        "triton": ("triton_",),
        "attention": ("sdpa", "flash", "fmha", "attention"),
        "gemm": ("gemm", "nvjet", "cutlass", "xmma", "cublas"),
    }
    return next((kind for kind, words in marks.items() if any(word in name for word in words)), "other")


def report(name: str, forward: Callable[[], Any], whole: Callable[[], Any], base: Any) -> Any:
    began = time.perf_counter()
    found = whole()
    compiled = time.perf_counter() - began
    both_s, forward_s = timed(whole, 12), timed(forward, 6)
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        whole()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    else:
        peak = 0.0
    listed = kernels(whole)
    kinds: dict[str, float] = defaultdict(float)
    for kernel, _, ms in listed:
        kinds[kind_of(kernel)] += ms
    off = {}
    if base is not None:
        for part, (ours, theirs) in {key: (found[key], base[key]) for key in base}.items():
            off[part] = round(float((ours.float() - theirs.float()).norm() / theirs.float().norm()), 4)
    row = {
        "way": name, "ms": round(both_s * 1e3, 2), "forward_ms": round(forward_s * 1e3, 2), "peak_gib": round(peak, 2),
        "kinds_ms": {key: round(ms, 2) for key, ms in sorted(kinds.items(), key=lambda i: -i[1])},
        "off": off, "compile_s": round(compiled, 1), "at_s": round(time.monotonic() - BEGAN),
    }  # fmt: skip
    print(json.dumps(row), flush=True)
    for kernel, calls, ms in listed[:22]:
        if ms > 0.03 and CUDA:
            print(f"      {ms:7.3f} ms {calls:3d} x {kernel[:150]}", flush=True)
    return found


def decoder(config: Any, tokens: int) -> Any:
    """Forward, and forward with backward, of one layer."""
    text = config.text_config
    with torch.device("meta"):
        model = QWEN3_VL.model_class(config)
    layer = model.model.language_model.layers[0].to_empty(device=DEVICE).to(torch.bfloat16)
    fill(layer)
    generator = torch.Generator(DEVICE).manual_seed(1)
    hidden = torch.randn(tokens, text.hidden_size, device=DEVICE, generator=generator).bfloat16().requires_grad_()
    angle = torch.arange(tokens, device=DEVICE)[:, None] * 0.01 * torch.ones(text.head_dim, device=DEVICE)
    turns = angle.cos().bfloat16(), angle.sin().bfloat16()
    gradient = (torch.randn(tokens, text.hidden_size, device=DEVICE, generator=generator) * 1e-4).bfloat16()
    segments = ((0, 2, tokens // 2),)
    call = partial(qwen_vl.decoder_layer, WHOLE, dense(), layer, hidden, *turns, segments, None)
    return SimpleNamespace(module=layer, hidden=hidden, call=call, gradient=gradient)


def vision(config: Any, patches: int) -> Any:
    tower = config.vision_config
    with torch.device("meta"):
        model = QWEN3_VL.model_class(config)
    block = model.model.visual.blocks[0].to_empty(device=DEVICE).to(torch.bfloat16)
    fill(block)
    generator = torch.Generator(DEVICE).manual_seed(1)
    hidden = torch.randn(patches, tower.hidden_size, device=DEVICE, generator=generator).bfloat16().requires_grad_()
    width = tower.hidden_size // tower.num_heads
    angle = torch.arange(patches, device=DEVICE)[:, None] * 0.01 * torch.ones(width, device=DEVICE)
    gradient = (torch.randn(patches, tower.hidden_size, device=DEVICE, generator=generator) * 1e-4).bfloat16()
    frames = max(patches // 1120, 1)
    segments = ((0, frames, patches // frames),)
    call = partial(qwen_vl.vision_block, PARTS, dense(), block, hidden, angle.cos(), angle.sin(), segments)
    return SimpleNamespace(module=block, hidden=hidden, call=call, gradient=gradient)


def fill(module: Any) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1)
            else:
                parameter.normal_(0, 0.02, generator=generator)
    module.train()


def run(part: str, of: Any, names: list[str], limit: float) -> None:
    base = None
    for name in names:
        if time.monotonic() - BEGAN > limit:
            print(f"{part}: no time for {name}")
            continue
        torch._dynamo.reset()
        way = WAYS[name]()
        for linear in (m for m in of.module.modules() if isinstance(m, nn.Linear)):
            setattr(linear, FLOAT8, way)
        inputs = {"hidden": of.hidden, **{n: p for n, p in of.module.named_parameters() if p.dim() > 1}}

        def whole(of: Any = of, inputs: Any = inputs) -> dict[str, torch.Tensor]:
            output = of.call()
            found = torch.autograd.grad(output, list(inputs.values()), of.gradient)
            return {"output": output.detach(), **dict(zip(inputs, found, strict=True))}

        try:
            found = report(f"{part}: {name}", of.call, whole, base)
        except Exception as failed:  # a trial: the others shall run
            print(f"{part}: {name} FAILED: {type(failed).__name__}: {str(failed)[:1500]}", flush=True)
            continue
        base = base or found


def gemms(tokens: int, width: int, inner: int) -> None:
    """Plain products of the three directions, in TFLOP/s."""
    shapes = {"qkv": (width * 3 // 2, width), "q": (width, width), "k": (width // 4, width),
              "gate_up": (2 * inner, width), "gate": (inner, width), "down": (width, inner)}  # fmt: skip
    one = torch.ones((), device=DEVICE)
    for name, (n, k) in shapes.items():
        row: dict[str, Any] = {"gemm": name, "n": n, "k": k}
        for way, (a, b, c) in {"forward": (tokens, k, n), "dgrad": (tokens, n, k), "wgrad": (n, tokens, k)}.items():
            left = torch.randn(a, b, device=DEVICE).bfloat16()
            right = torch.randn(c, b, device=DEVICE).bfloat16()
            flops = 2 * a * b * c / 1e12
            row[way] = {"bf16": round(flops / timed(lambda: left @ right.t(), 6))}
            kinds = (torch.float8_e4m3fn if way == "forward" else torch.float8_e5m2, torch.float8_e4m3fn)
            l8, r8 = (part.to(kind) for part, kind in zip((left, right), kinds, strict=True))
            for fast in (True, False):
                product = partial(multiply, l8, r8, (one, one), torch.bfloat16, fast)
                row[way][f"fp8 {'fast' if fast else 'slow'}"] = round(flops / timed(product, 6))
        print(json.dumps(row), flush=True)


def casts(tokens: int, width: int, inner: int) -> None:
    for columns_of in (width, inner):
        part = torch.randn(tokens, columns_of, device=DEVICE).bfloat16()
        scale = scale_of([part], torch.float8_e4m3fn, True)
        kind = torch.float8_e4m3fn
        size = part.numel() / 1e9
        works = {
            "columns": (3, lambda part=part: columns([part], scale, kind, True)),
            "both": (4, lambda part=part: both([part], scale, kind, True)),
            "copy": (4, lambda part=part: part.clone()),
        }
        print(json.dumps({"cast": list(part.shape),
                          **{k: f"{b * size / timed(w, 6):.0f} GB/s" for k, (b, w) in works.items()}}), flush=True)  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--limit", type=float, default=225)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--vision", nargs="*", default=list(VISION_WAYS))
    options = parser.parse_args()
    global EAGER
    EAGER = options.eager
    config, _ = config_of("tiny" if options.tiny else "8b", ["a"])
    tokens = 128 if options.tiny else 16384
    print(torch.__version__, torch.cuda.get_device_name() if CUDA else "cpu", flush=True)
    text = config.text_config
    gemms(tokens, text.hidden_size, text.intermediate_size)
    casts(tokens, text.hidden_size, text.intermediate_size)
    run("decoder", decoder(config, tokens), options.ways[:3], options.limit)
    run("vision", vision(config, 4 * tokens), options.vision, options.limit)
    run("decoder", decoder(config, tokens), ["bf16", *options.ways[3:]], options.limit)


if __name__ == "__main__":
    main()
