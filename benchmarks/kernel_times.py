"""Time of an optimizer step by kind of kernel, from one step under torch.profiler.

In a trace without a GPU, operations of the CPU are used instead of kernels.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
REST = "elementwise, norms, other"
TOP_KERNELS = 30
# The first match in the name of a kernel or operation decides; the order matters.
KINDS = (
    (REST, ("triton_",)),  # fused kernels, whose names contain every operation in them
    ("communication", ("nccl", "c10d::", "gloo:", "all_gather", "reduce_scatter", "all_reduce")),
    ("copies", ("_foreach_copy_", "copyfunctor")),  # FSDP's copies of weights before gathering
    ("attention", ("attention", "flash", "fmha", "sdpa", "mha_")),
    ("optimizer", ("adam", "multi_tensor", "_foreach", "optimizer")),
    ("GEMM", ("gemm", "cutlass", "nvjet", "cublas", "xmma", "::mm", "addmm", "bmm", "convolution")),
    ("copies", ("memcpy", "memset", "copy_", "_copy", "::to", "catarray", "::cat")),
)


@dataclass(frozen=True)
class Work:
    """One kernel (or operation): its caller, its shapes, and its start and end in microseconds."""

    name: str
    caller: str
    sizes: tuple[int, ...]
    start: float
    end: float


def works_of(trace: Path) -> list[Work]:
    """The device's work in a Chrome trace; in a trace without a device, the own time of the CPU's operations."""
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("ph") == "X" and "dur" in e]
    operations = [e for e in events if e.get("cat") == "cpu_op"]
    by_id = {e["args"].get("External id"): e for e in operations if "args" in e}
    device = [e for e in events if e.get("cat") in ON_DEVICE]
    if not device:
        return list(_own_times(operations))
    works = []
    for event in device:
        operation = by_id.get(event.get("args", {}).get("External id"), {})
        works.append(_work(event, operation.get("name", ""), operation, event["ts"] + event["dur"]))
    return works


def _work(event: Any, caller: str, operation: Any, end: float) -> Work:
    shapes = operation.get("args", {}).get("Input Dims", [])
    sizes = tuple(size for shape in shapes if isinstance(shape, list) for size in shape if isinstance(size, int))
    return Work(event["name"], caller, sizes, event["ts"], end)


def _own_times(operations: Sequence[Any]) -> Iterator[Work]:
    """Every operation of a thread with its own time, without that of the operations inside it."""
    threads = defaultdict(list)
    for event in operations:
        threads[event["tid"]].append(event)
    for events in threads.values():
        inside: dict[int, float] = defaultdict(float)
        stack: list[Any] = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            if stack:
                inside[id(stack[-1])] += event["dur"]
            stack.append(event)
        for event in events:
            yield _work(event, event["name"], event, event["ts"] + max(0.0, event["dur"] - inside[id(event)]))


def kind_of(work: Work, vision: frozenset[int]) -> str:
    """The row of the table for some work. `vision` are sizes that only the vision tower has."""
    words = f"{work.name} {work.caller}".lower()
    kind = next((kind for kind, marks in KINDS if any(mark in words for mark in marks)), REST)
    if kind in ("GEMM", "attention"):
        return f"{kind} {'vision' if vision.intersection(work.sizes) else 'decoder'}"
    return kind


def vision_sizes(model: Path) -> frozenset[int]:
    """Widths of the vision tower's matrices and heads that the decoder does not have."""
    config = json.loads((model / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    width, merged = vision["hidden_size"], vision["hidden_size"] * vision["spatial_merge_size"] ** 2
    sizes = {width, 3 * width, vision["intermediate_size"], merged, width // vision["num_heads"]}
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    heads = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    return frozenset(sizes - {text["hidden_size"], text["intermediate_size"], head, *heads})


def covered(works: Iterable[Work]) -> float:
    """Seconds in which at least one of them ran."""
    total, until = 0.0, float("-inf")
    for work in sorted(works, key=lambda w: w.start):
        total += max(0.0, work.end - max(work.start, until))
        until = max(until, work.end)
    return total / 1e6


def rows_of(works: Sequence[Work], whole: float, model: Path, on_device: bool) -> list[dict[str, Any]]:
    """Seconds by kind of work in a step that took `whole`, and those when the device only waited or communicated."""
    vision = vision_sizes(model)
    kinds: dict[str, list[Work]] = defaultdict(list)
    for work in works:
        kinds[kind_of(work, vision)].append(work)
    seconds = {kind: sum(w.end - w.start for w in inner) / 1e6 for kind, inner in kinds.items()}
    if on_device:
        busy, computing = covered(works), covered(w for w in works if kind_of(w, vision) != "communication")
        seconds["communication"] = busy - computing  # the rest of it overlaps with computation
        seconds["nothing runs"] = whole - busy
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [{"what": kind, "s/step": value, "share": value / whole} for kind, value in ordered]


@contextmanager
def profiled(number: int, trace: Path) -> Iterator[None]:
    """Profile step `number`, counted from 0, of a training in this process inside the block. Writes the Chrome trace,
    and beside it, as .facts.json, the step's seconds and those without a batch."""
    from torch.profiler import ProfilerActivity, profile

    from vidqa.engine.data.dataloader import Step
    from vidqa.engine.training.learner import Learner, StepOutcome

    train_step, on_device = Learner.train_step, torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]

    def recorded(learner: Learner, step: Step) -> StepOutcome:
        if step.number != number:
            return train_step(learner, step)
        with profile(activities=activities, record_shapes=True) as profiler:
            torch.cuda.synchronize() if on_device else None
            began = time.perf_counter()
            outcome = train_step(learner, step)
            torch.cuda.synchronize() if on_device else None
            facts = {"seconds": time.perf_counter() - began, "waited_s": outcome.waited, "on_device": on_device}
        profiler.export_chrome_trace(str(trace))
        _facts_of(trace).write_text(json.dumps(facts))
        return outcome

    with patch.object(Learner, "train_step", recorded):
        yield


def summary(trace: Path, model: Path) -> dict[str, Any]:
    """Seconds by kind of work, and the longest kernels, from the files that `profiled` wrote."""
    facts, works = json.loads(_facts_of(trace).read_text()), works_of(trace)
    kernels: dict[str, list[float]] = {}
    for work in works:
        kernels.setdefault(work.name, []).append((work.end - work.start) / 1e3)
    longest = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:TOP_KERNELS]
    return {
        "profiled_s": facts["seconds"],
        "waited_s": facts["waited_s"],
        "kinds": rows_of(works, facts["seconds"], model, facts["on_device"]),
        "kernels": [{"kernel": name[:110], "calls": len(ms), "ms": sum(ms)} for name, ms in longest],
    }


def _facts_of(trace: Path) -> Path:
    return trace.with_suffix(".facts.json")
