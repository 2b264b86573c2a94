"""CPU cost of the data path: with our frame cache, and decoding each time with transformers' processor.

python benchmarks/data.py --out DIR

It counts processor time of this process and of its decode workers, so that a busy machine measures the same. Both
paths end with a batch on the GPU through pinned memory, or in memory without a GPU.
"""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from ledger import Ledger, arguments, table
from processor_batches import PaddedCollator, decoder
from training import FPS, SETS, Place, Training, as_tiny

from vidqa.data import load_records
from vidqa.engine.data.collate import Collator
from vidqa.engine.data.frame_cache import FrameCache
from vidqa.engine.data.frames import FrameSource
from vidqa.engine.data.prefetch import Prefetcher
from vidqa.planning.samples import Planner, Prompting

PACK = 3  # samples of a micro-step
EPOCHS = 4  # from the cache


def processor_seconds() -> float:
    """Processor time of this process and of its finished children, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(name: str, samples: int, work: Callable[[], int]) -> dict[str, Any]:
    """Measure `work`, which processes all samples once and returns the bytes that went to the device."""
    busy, wall = processor_seconds(), time.perf_counter()
    moved = work()
    busy, wall = processor_seconds() - busy, time.perf_counter() - wall
    return {"run": name, "samples/s/core": samples / busy, "MB/sample": moved / samples / 1e6, "wall_s": wall}


def moved_bytes(value: Any) -> int:
    """The bytes of all tensors in a value, at any depth."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, tuple | list):
        return sum(map(moved_bytes, value))
    return sum(map(moved_bytes, (value if isinstance(value, dict) else getattr(value, "__dict__", {})).values()))


def by_processor(collator: PaddedCollator, records: Sequence[dict[str, Any]], device: torch.device) -> int:
    moved = 0
    for record in records:
        batch = {key: value for key, value in collator([record]).items() if isinstance(value, torch.Tensor)}
        if device.type == "cuda":
            batch = {key: value.pin_memory().to(device, non_blocking=True) for key, value in batch.items()}
        moved += moved_bytes(batch)
    return moved


def by_our_loader(planner: Planner, samples: Sequence[Any], model: Path, cache: Path, device: torch.device) -> int:
    """Run one epoch; the cache is shared with earlier ones."""
    source = FrameSource(1, 120.0, FrameCache(cache, 20 * 1024**3))
    collator = Collator(planner, planner.family.sizes_of(model).vision, device.type)
    packs = [list(range(first, min(first + PACK, len(samples)))) for first in range(0, len(samples), PACK)]
    moved = 0
    try:
        with Prefetcher(packs, samples, source, collator, device) as batches:
            for loaded in batches:
                assert not loaded.problems, loaded.problems[:1]
                moved += moved_bytes(loaded.batch)
    finally:
        source.close()  # waits for its workers, so that their time is counted
    if device.type == "cuda":
        torch.cuda.synchronize()
    return moved


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.zeros(1, device=device)
    place = Place(options.out.resolve())
    kind = Training("data", "ours", "tiny", 1, SETS["1k-8k"], 0, 0)  # only the processor of the model matters
    kind = as_tiny(kind, 1) if options.tiny else kind
    place.make([kind])
    root, model, cache = place.clips(kind.clips), place.model(kind.shape), place.out / "frames-data"
    shutil.rmtree(cache, ignore_errors=True)
    records = json.loads((root / "annotations.json").read_text())
    planner = Planner(model, SimpleNamespace(fps=FPS), Prompting())
    samples, problems = planner.plan(load_records(str(root / "annotations.json"), str(root)))
    assert not problems, problems[:1]
    collator = PaddedCollator(model, root, FPS)
    collator([records[0]])  # imports

    def ours(epochs: int) -> int:
        return sum(by_our_loader(planner, samples, model, cache, device) for _ in range(epochs))

    rows = [
        measured("processor each time", len(records), lambda: by_processor(collator, records, device)),
        measured("ours, first epoch", len(samples), lambda: ours(1)),
        measured("ours, from the cache", len(samples) * EPOCHS, lambda: ours(EPOCHS)),
    ]
    rows[0]["decoder"] = decoder()
    ledger = Ledger("data", options)
    for row in rows:
        row["against the processor"] = row["samples/s/core"] / rows[0]["samples/s/core"]
        ledger.add(row)
    print(table(rows), "must 10, aim 20, from the cache", sep="\n")


if __name__ == "__main__":
    main()
