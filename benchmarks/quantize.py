"""FP8 and W4A16 against bf16 on one GPU: products, decode steps, prefill, memory; and quantization itself.

    python benchmarks/quantize.py --only products --out DIR
    python benchmarks/quantize.py --only decode prefill --out DIR

8B shapes with random weights drawn on the GPU, all precisions in one call. `products` are those of a decoder
layer, each over copies of its weight that exceed all caches: bf16, `torch._scaled_mm`, and our kernel for few rows in
several tilings. Each time is compared with that of reading its bytes once at the measured bandwidth of the card.
`rtn` and `gptq` are runs of the action quantize on a model folder.
"""

from __future__ import annotations

import gc
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import torch
import torch.nn.functional as F
from generation import Prompts, answered, decode_step, timed
from ledger import Ledger, arguments, rounded, table
from shapes import config_of, write_random_model
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from video_set import SetShape, corpus, write_set

from vidqa.engine.generators._base import Settings
from vidqa.engine.generators.native import NativeSession
from vidqa.engine.kernels import kernels_for
from vidqa.engine.loading.load import empty_model
from vidqa.engine.model.quantized import FLOAT8, InputQuantization, token_scales, with_zeros
from vidqa.planning.budget.answering import PAGE
from vidqa.spec import Layer, dump, resolve

PARTS = ("products", "decode", "prefill", "rtn", "gptq")
ROWS = (1, 4, 16, 32, 64, 128)
DECODES = ((1, 1024), (32, 4096))  # rows and the tokens of each
SCHEMES = {"rtn": "FP8_DYNAMIC", "gptq": "W4A16"}
TOGETHER = 3 * 1024**3  # bytes of the copies of a weight: many times the size of a cache
GROUP = 128  # elements of a 4-bit weight that share a scale
QUANTIZED = {"FP8": 1.0, "W4A16": 0.5 + 2 / GROUP}  # bytes of an element, with a bf16 scale for each group of W4A16
# Rows of the weight, elements of a row, warps, pipelined loads; below 16 rows: no tensor cores, one input row.
TILINGS = (
    *((16, 256, 4, 4), (16, 512, 4, 4), (16, 256, 4, 6), (32, 256, 4, 4), (32, 128, 4, 6), (32, 512, 8, 3)),
    *((64, 128, 4, 4), (64, 256, 4, 4), (64, 128, 4, 6), (128, 128, 4, 4), (128, 128, 8, 4)),
    *((4, 1024, 4, 2), (8, 512, 4, 2), (8, 1024, 8, 2), (8, 512, 4, 4), (8, 1024, 4, 1), (4, 2048, 4, 1)),
)


def bandwidth_of(device: torch.device, size: int) -> float:
    """Bytes per second at which memory is read and written."""
    block = torch.empty(size, dtype=torch.uint8, device=device)
    block.neg_()
    return 2 * block.nbytes / median(timed(block.neg_)[0] for _ in range(5))


def seconds_of(call: Callable[[int], Any], copies: int, device: torch.device) -> float:
    """Seconds of `call(i)`, run for all copies one after the other in one graph."""
    if device.type != "cuda":
        return median(timed(lambda: call(0))[0] for _ in range(3))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(copies):
            call(number)
    graph.replay()
    return median(timed(graph.replay)[0] for _ in range(5)) / copies


def tiling_times(call: Callable[..., Any], rows: int, copies: int, device: torch.device) -> dict[str, float]:
    """Microseconds of `call(tiling, copy)` by tiling, without tilings that exceed a multiprocessor's memory."""
    from triton.runtime.errors import OutOfResources

    from vidqa.engine.kernels.float8 import Tiling

    times = {}
    for tiling in (Tiling(*numbers) for numbers in TILINGS):
        if tiling.outputs < 16 and rows > 1:
            continue
        try:
            seconds = seconds_of(partial(call, tiling), copies, device)
        except OutOfResources:
            continue
        times["x".join(map(str, tiling))] = 1e6 * seconds
    return times


def products(options: Namespace, device: torch.device, bandwidth: float) -> Iterator[dict[str, Any]]:
    """Measure every product of a decoder layer at every number of rows."""
    text = config_of("tiny" if options.tiny else "8b", ["a"])[0].text_config
    width, heads = text.hidden_size, text.num_attention_heads * text.head_dim
    shapes = {
        "query, key, value": (heads + 2 * text.num_key_value_heads * text.head_dim, width),
        "output": (width, heads),
        "gate, up": (2 * text.intermediate_size, width),
        "down": (width, text.intermediate_size),
    }
    generator = torch.Generator(device).manual_seed(0)
    for name, shape in shapes.items():
        copies = max(1, (0 if options.tiny else TOGETHER) // (3 * shape[0] * shape[1]))
        weights = [
            torch.randn(shape, device=device, generator=generator, dtype=torch.bfloat16).mul_(0.02)
            for _ in range(copies)
        ]
        quantized = [float8_of(weight) for weight in weights]
        int4 = (random_int4(shape, device, torch.bfloat16) for _ in range(copies))
        packed = [(codes, with_zeros(scale)) for codes, scale in int4]
        for rows in ROWS[:2] if options.tiny else ROWS:
            hidden = torch.randn(rows, shape[1], device=device, generator=generator).bfloat16()
            row = product_times(hidden, weights, [(codes, scale.view(1, -1)) for codes, scale in quantized], packed)
            least_us = 1e6 * shape[0] * shape[1] / bandwidth
            yield {"run": f"{name}, {rows} rows", "least_us": least_us, **row}


def product_times(
    hidden: torch.Tensor,
    plain: Sequence[torch.Tensor],
    quantized: Sequence[tuple[torch.Tensor, torch.Tensor]],
    packed: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> dict[str, Any]:
    """Microseconds of a product by every kernel, the best tiling of ours, and the output's error against bf16."""
    device, kernels = hidden.device, kernels_for(hidden.device)
    codes, scale = kernels.quantize_rows(hidden, InputQuantization(None))
    calls: dict[str, Callable[[int], torch.Tensor]] = {
        "bf16_us": lambda number: F.linear(hidden, plain[number]),
        "engine_us": lambda number: kernels.float8_product(codes, scale, *quantized[number], torch.bfloat16),
        "int4_us": lambda number: kernels.int4_product(hidden, *packed[number]),
        "rounding_us": lambda number: kernels.quantize_rows(hidden, InputQuantization(None)).codes,
    }
    row: dict[str, Any] = {what: 1e6 * seconds_of(call, len(plain), device) for what, call in calls.items()}
    row["scaled_mm_us"] = scaled_mm_us(lambda number: scaled_mm(codes, scale, *quantized[number]), len(plain), device)
    if device.type == "cuda":
        from vidqa.engine.kernels.float8 import few_rows_product

        def float8(tiling: Any, number: int) -> torch.Tensor:
            return few_rows_product(codes, scale, *quantized[number], torch.bfloat16, tiling)

        times = tiling_times(float8, len(hidden), len(plain), device)
        best = min(times, key=lambda tiling: times[tiling])
        row |= {"few_rows_us": times[best], "tiling": best, "tilings_us": times}
    exact = calls["bf16_us"](0).float()
    off = float((calls["engine_us"](0).float() - exact).norm() / exact.norm())
    return {**row, "speed": row["bf16_us"] / row["engine_us"], "off": off}


def scaled_mm_us(call: Callable[[int], Any], copies: int, device: torch.device) -> float | None:
    """Microseconds of torch._scaled_mm; None if the library has no kernel for a shape."""
    try:
        return 1e6 * seconds_of(call, copies, device)
    except RuntimeError as none:
        print(f"torch._scaled_mm: {none}", file=sys.stderr)
        return None


def scaled_mm(codes: torch.Tensor, step: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(codes, weight.t(), scale_a=step, scale_b=scale, out_dtype=torch.bfloat16)


def float8_of(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [O, D] and scales float32 [O, 1], as FP8_DYNAMIC rounds a weight."""
    scale = token_scales(weight.float())
    return (weight.float() / scale).to(FLOAT8), scale


def to_float8(model: Any) -> None:
    """Round the decoder's linear layers, in place."""
    for module in model.model.language_model.layers.modules():
        if isinstance(module, nn.Linear):
            codes, scale = float8_of(module.weight.data)
            module.weight = nn.Parameter(codes, requires_grad=False)
            module.weight_scale = nn.Parameter(scale.bfloat16(), requires_grad=False)


def random_int4(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Random packed 4-bit codes in the layout of the kernels, and scales of groups."""
    outputs, width = shape
    group = GROUP if width % GROUP == 0 else 32
    packed = torch.randint(-(2**31), 2**31, (outputs, width // 8), device=device, dtype=torch.int32)
    scale = torch.full((outputs, width // group), 0.004, device=device, dtype=dtype)
    return kernels_for(device).pack_int4(packed), scale


def to_int4(model: Any) -> None:
    """Replace the weights of the decoder's linear layers by random 4-bit weights."""
    for module in model.model.language_model.layers.modules():
        if isinstance(module, nn.Linear):
            packed, scale = random_int4(module.weight.shape, module.weight.device, model.dtype)
            del module.weight, module.weight_scale
            module.weight_packed = nn.Parameter(packed, requires_grad=False)
            module.weight_scale = nn.Parameter(scale, requires_grad=False)


def kernels_of(work: Callable[[], Any], most: int = 10) -> dict[str, float]:
    """Milliseconds of the longest kernels of one call, by the beginning of their names."""
    sums: dict[str, float] = defaultdict(float)
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    ) as profiler:
        timed(work)
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            sums[event.name[:60]] += event.device_time / 1e3
    return dict(sorted(sums.items(), key=lambda pair: -pair[1])[:most])


def held(device: torch.device, model: Any) -> int:
    """Bytes that PyTorch has allocated on the GPU; without one, those of the model."""
    gc.collect()
    if device.type != "cuda":
        return sum(parameter.nbytes for parameter in model.parameters())
    return torch.cuda.memory_allocated(device)


def generator_rows(options: Namespace, device: torch.device, bandwidth: float) -> Iterator[dict[str, Any]]:
    """Decode steps and prefill of a model in bf16, then of the same one in FP8, then of one in W4A16."""
    shape, dtype = ("tiny", torch.float32) if options.tiny else ("8b", torch.bfloat16)
    folder = settings_of(shape, options.out / "settings" / shape)
    clips = SetShape(2, (2, 2), width=96, height=64) if options.tiny else SetShape(2, (40, 40))
    prompts = Prompts(folder, write_set(options.out / clips.name, clips), 1 if options.tiny else 12)
    others = held(device, nn.Module())
    model = empty_model(folder, dtype, device)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in model.named_parameters():
        is_norm = "norm" in name and name.endswith("weight")
        parameter.data.fill_(1) if is_norm else parameter.data.normal_(0, 0.02, generator=generator)
    settings = Settings(folder, None, dtype, device, prompts.planner, 0, 1)
    plain, linear, sizes, scales = {}, linear_numbers(model), {}, 0
    whole = sum(parameter.numel() for parameter in model.parameters())
    for precision in ("bf16", "FP8", "W4A16"):
        if precision == "FP8":
            to_float8(model)
            scales = scale_numbers(model)
        if precision == "W4A16":
            to_int4(model)
        sizes[precision] = held(device, model) - others
        row = {"run": f"weights, {precision}", "gpu_gb": sizes[precision] / 1e9}
        row["file_gb"] = sum(parameter.nbytes for parameter in model.parameters()) / 1e9
        yield {**row, "share": sizes[precision] / sizes["bf16"]}
        for rows, context in ((2, 64),) if options.tiny else DECODES:
            if "decode" not in options.only:
                break
            figures = decoded(model, settings, rows, context, bandwidth)
            name = f"decode, {rows} rows, {context} tokens"
            plain.setdefault(name, figures)
            yield {"run": f"{name}, {precision}", **figures, "speed": plain[name]["step_ms"] / figures["step_ms"]}
        if "prefill" in options.only:
            figures = prefilled(model, settings, prompts)
            plain.setdefault("prefill", figures)
            yield {"run": f"prefill, {precision}", **figures, "speed": plain["prefill"]["ms"] / figures["ms"]}
    for scheme, size in QUANTIZED.items():  # by arithmetic, from the format
        stored = (whole - linear) * 2 + linear * size + (2 * scales if scheme == "FP8" else 0)
        yield {"run": f"size, {scheme}", "file_gb": stored / 1e9, "share": stored / (2 * whole)}


def settings_of(shape: str, folder: Path) -> Path:
    """A model folder without weights."""
    if shape == "tiny":
        return folder if folder.exists() else write_random_model(shape, folder, corpus(), "cpu")
    config, processor = config_of(shape, corpus())
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    config.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def linear_numbers(model: Any) -> int:
    layers = model.model.language_model.layers.modules()
    return sum(module.weight.numel() for module in layers if isinstance(module, nn.Linear))


def scale_numbers(model: Any) -> int:
    return sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith("weight_scale"))


def decoded(model: Any, settings: Settings, rows: int, context: int, bandwidth: float) -> dict[str, Any]:
    """Time one step of `rows` rows with `context` tokens each, beside reading its bytes once."""
    pages = -(-(context + 1) // PAGE)
    settings = replace(settings, longest=context + PAGE, batch_size=rows)
    session = NativeSession(model, settings, pages=rows * pages + 1)
    figures = {"step_ms": decode_step(session, rows, context, 1)["step_ms"]}
    keys = session.cache.keys
    if session.device.type == "cuda":  # including weights that are stored in two orders
        figures["weights_gb"] = (held(session.device, model) - 2 * keys.nbytes) / 1e9
    size = 2 * rows * context * keys[:, 0].numel() * keys.element_size()
    weights = sum(parameter.nbytes for parameter in model.model.language_model.layers.parameters())
    weights += model.lm_head.weight.nbytes
    figures["least_ms"] = 1e3 * (weights + size) / bandwidth
    graphs = session.decoder.graphs
    figures["kernels_ms"] = kernels_of(graphs[rows][0].replay if graphs else lambda: session.decoder.run(rows))
    session.close()
    return {**figures, "times_the_least": figures["step_ms"] / figures["least_ms"]}


def prefilled(model: Any, settings: Settings, prompts: Prompts) -> dict[str, Any]:
    """Time the prefill of both clips in one pack: vision tower, decoder, the first token."""
    tokens = sum(sample.length for sample in prompts.samples)
    longest = max(sample.length for sample in prompts.samples) + 1
    settings = replace(settings, longest=longest, batch_size=len(prompts.samples))
    session = NativeSession(model, settings, pages=len(prompts.samples) * -(-longest // PAGE) + 1)
    session.pack_tokens = 2 * tokens
    requests = prompts.requests(1)

    def read() -> None:
        answered(session, requests)

    read()  # compiles kernels and initialises libraries
    seconds = median(timed(read)[0] for _ in range(5))
    kinds = kernels_of(read)
    session.close()
    return {"ms": 1e3 * seconds, "tokens": tokens, "tokens/s": tokens / seconds, "kernels_ms": kinds}


def quantize_run(options: Namespace, part: str) -> dict[str, Any]:
    """Run the action on a model folder, including reading and writing it: wall seconds and peak GPU memory."""
    from vidqa.core.run_folder import RunFolder
    from vidqa.engine.quantize.run import quantize

    shape = "tiny" if options.tiny else options.shape
    folder = options.out / "models" / shape
    if not (folder / "model.safetensors.index.json").exists():
        write_random_model(shape, folder, corpus(), "cuda" if torch.cuda.is_available() else "cpu")
    clips = SetShape(16, (1, 2), width=96, height=64) if options.tiny else SetShape(128, (20, 20))
    data = write_set(options.out / clips.name, clips)
    keys = {
        "model.model_path": str(folder),
        "dataset.annotation_path": str(data / "annotations.json"),
        "dataset.media_dir": str(data),
        "quantize.quantization_scheme": SCHEMES[part],
        "quantize.num_calibration_samples": clips.clips,
        "quantize.force": True,
        "results_dir": str(options.out / "runs"),
        **({"quantize.group_size": 32} if options.tiny else {}),
    }
    spec = resolve("quantize", [Layer("benchmark", keys)]).spec
    run = options.out / "runs" / f"{part}-{time.time_ns()}"
    run.mkdir(parents=True)
    (run / "spec.toml").write_text(dump(spec), encoding="utf-8")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    seconds, code = timed(lambda: quantize(spec, RunFolder(run)))
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {"run": f"{part}, {SCHEMES[part]}, {shape}", "wall_s": seconds, "exit_code": code, "peak_gib": peak}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:3])
    parser.add_argument("--shape", choices=["8b", "8b-third"], default="8b", help="of rtn and gptq; a third of layers")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    bandwidth = bandwidth_of(device, 1 << 20 if options.tiny else 1 << 31)
    ledger = Ledger("quantize", options)
    rows: list[dict[str, Any]] = []

    def tell(table_rows: Sequence[dict[str, Any]] | Iterator[dict[str, Any]]) -> None:
        for row in table_rows:
            ledger.add({**row, "bandwidth_tb_s": bandwidth / 1e12})
            rows.append({key: value for key, value in row.items() if not isinstance(value, dict)})
            print(rounded(row), flush=True)

    if "products" in options.only:
        tell(products(options, device, bandwidth))
    if {"decode", "prefill"} & set(options.only):
        tell(generator_rows(options, device, bandwidth))
    tell([quantize_run(options, part) for part in SCHEMES if part in options.only])
    print(table(rows))
    ledger.conclude([])


if __name__ == "__main__":
    with torch.no_grad():
        main()
