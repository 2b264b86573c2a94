"""Speed of answering, beside transformers' own `generate`: answers a second, prefill, and one decode step.

python benchmarks/generation.py --out /tmp/generation        # one GPU; 8B shapes, random weights
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import torch
from shapes import write_random_model
from video_set import SetShape, corpus, write_set

from vidqa.contract.files import write_json
from vidqa.dataset import load_records
from vidqa.engine.batch.frames import FrameSource
from vidqa.engine.checkpoint.export import load_export
from vidqa.engine.flops import flops_model, peak_flops
from vidqa.engine.generate.answers import Decoding, generate_answers
from vidqa.engine.generators.native import PAGE, Native
from vidqa.families.qwen3_vl_sizes import sizes
from vidqa.planning.packing.sharing import work_of
from vidqa.planning.samples import Planner, Prompting

FPS = 1.4
BANDWIDTH = 4.0e12  # bytes a second that weights and cache are read at, at best
SETS = {"1k-8k": SetShape(64, (5, 40)), "8-questions": SetShape(8, (20, 40), questions=8)}
TINY = {"1k-8k": SetShape(6, (1, 4), width=96, height=64), "8-questions": SetShape(2, (1, 3), 8, 96, 64)}


def planned(model: Path, folder: Path, workers: int) -> tuple[Planner, list[Any], list[Any]]:
    planner = Planner(model, SimpleNamespace(fps=FPS), Prompting("", for_generation=True))
    samples, problems = planner.plan(load_records(folder / "annotations.json", folder))
    assert not problems, problems[0]
    source = FrameSource(workers, 300.0, None)
    frames, problems = source.collect(source.request(samples))
    source.close()
    assert not problems, problems[0]
    return planner, samples, frames


def timed(work: Any) -> tuple[float, Any]:
    torch.cuda.synchronize() if torch.cuda.is_available() else None
    started = time.perf_counter()
    found = work()
    torch.cuda.synchronize() if torch.cuda.is_available() else None
    return time.perf_counter() - started, found


def stock(model: Any, planner: Planner, samples: list[Any], frames: list[Any], tokens: int) -> dict[str, str]:
    order = sorted(range(len(samples)), key=lambda i: -samples[i].length)
    found = {}
    for at in range(0, len(order), 8):
        batch = order[at : at + 8]
        chosen = [samples[i] for i in batch], [frames[i] for i in batch]
        answers = generate_answers(model, planner, *chosen, Decoding(tokens))
        found |= {samples[i].record.id: answer.text for i, answer in zip(batch, answers, strict=True)}
    return found


def native(generator: Native, planner: Planner, samples: list[Any], frames: list[Any]) -> dict[str, str]:
    order = sorted(range(len(samples)), key=lambda i: (-samples[i].prefix, samples[i].prefix_key, i))
    prompts = ((samples[i], frames[i]) for i in order)
    return {done.sample.record.id: planner.chat.decode(done.tokens).strip() for done in generator.generate(prompts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pack", type=int, nargs="+", default=[16384])
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    shape, sets = ("8b", SETS) if cuda else ("tiny", TINY)
    folder = options.out / shape
    if not (folder / "processor_config.json").exists():
        write_random_model(shape, folder, corpus(), device.type)
    data = {}
    for name, clips in sets.items():
        data[name] = planned(folder, write_set(options.out / name, clips), 12 if cuda else 1)
        print(name, "tokens", sum(s.length for s in data[name][1]), "longest", max(s.length for s in data[name][1]))
    model = load_export(folder, None, torch.bfloat16 if cuda else torch.float32, device)
    works = flops_model(model.config, vision_trains=True, decoder_trains=True)
    rows: list[dict[str, Any]] = []

    def tell(**row: Any) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    answers: dict[Any, dict[str, str]] = {}
    for name, (planner, samples, frames) in data.items():
        groups: dict[bytes, list[int]] = {}
        for i, sample in enumerate(samples):
            groups.setdefault(sample.prefix_key or bytes([i]), []).append(i)
        forward = works.of(work_of(tuple(unit), samples) for unit in groups.values()) / 3
        for tokens in (16, 1):
            if not options.no_stock:
                stock(model, planner, samples[:8], frames[:8], 2)
                seconds, answers[name, tokens] = timed(lambda: stock(model, planner, samples, frames, tokens))
                tell(set=name, tokens=tokens, generator="transformers", answers_s=len(samples) / seconds)
    for pack in options.pack:
        for name, (planner, samples, frames) in data.items():
            groups = {}
            for i, sample in enumerate(samples):
                groups.setdefault(sample.prefix_key or bytes([i]), []).append(i)
            forward = works.of(work_of(tuple(unit), samples) for unit in groups.values()) / 3
            for tokens in (16, 1):
                vision = sizes(model.config.to_dict(), Path("config.json")).vision
                longest = max(sample.length for sample in samples)
                cache = 200_000 if cuda else 5000
                generator = Native(
                    model, planner, vision, Decoding(tokens),
                    rows=64, cache_tokens=cache, longest=longest, pack_tokens=pack,
                )  # fmt: skip
                first, _ = timed(lambda: native(generator, planner, samples, frames))
                times = []
                for _ in range(3):
                    seconds, found = timed(lambda: native(generator, planner, samples, frames))
                    times.append(seconds)
                seconds = median(times)
                row = {"set": name, "tokens": tokens, "generator": "native", "pack": pack, "first_s": first}
                row["answers_s"] = len(samples) / seconds
                if tokens == 1 and cuda:
                    row["mfu"] = forward / seconds / peak_flops(device)
                if (name, tokens) in answers:
                    theirs = answers[name, tokens]
                    row["same"] = sum(found[key] == text for key, text in theirs.items()) / len(theirs)
                tell(**row)
                if options.profile and tokens == 1 and name == "1k-8k":
                    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as seen:
                        native(generator, planner, samples, frames)
                    print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=90))
                del generator
                torch.cuda.empty_cache() if cuda else None
    decode_step(model, data["1k-8k"][0], tell, cuda)
    write_json(options.out / "generation.json", rows)


def decode_step(model: Any, planner: Planner, tell: Any, cuda: bool) -> None:
    count, context = (32, 4096) if cuda else (4, 128)
    vision = sizes(model.config.to_dict(), Path("config.json")).vision
    generator = Native(
        model, planner, vision, Decoding(64), rows=count, cache_tokens=count * (context + 64), longest=context
    )
    per_row = context // PAGE + 1
    table = torch.arange(1, count * per_row + 1, dtype=torch.int32).view(count, per_row)
    generator.table[:, :per_row] = table.to(generator.table)
    generator.alive.fill_(1)
    weights = sum(p.numel() * p.element_size() for p in model.model.language_model.layers.parameters())
    weights += model.lm_head.weight.numel() * model.lm_head.weight.element_size()
    cache = 2 * count * context * len(generator.layers) * generator.key_heads * generator.size
    cache *= generator.keys.element_size()
    with torch.no_grad():
        if cuda:
            generator._capture(count)
        times = []
        for _ in range(20):
            generator.length.fill_(context - 1)
            run = generator.graphs[count][0].replay if cuda else lambda: generator._step(count)
            times.append(timed(run)[0])
    least = (weights + cache) / BANDWIDTH
    tell(measure="decode step", rows=count, context=context, ms=1e3 * median(times), times_least=median(times) / least)
    if cuda:
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as seen:
            generator.length.fill_(context - 1)
            generator.graphs[count][0].replay()
            torch.cuda.synchronize()
        print(seen.key_averages().table(sort_by="cuda_time_total", row_limit=14, max_name_column_width=90))


if __name__ == "__main__":
    main()
