"""The memory policy that is chosen, beside fixed ones and the ordinary recipe, each case in one call, mostly on one GPU.

    python benchmarks/policies.py --case lora lora-40 --out DIR
    python benchmarks/policies.py --case 128k-cp2 --timeout 560 --out DIR      two GPUs, which share every sample

A case is a training that a GPU's memory bounds. `chosen` leaves packs and recomputation to the engine, the others fix
both (engine.recompute, engine.pack_tokens); those that are predicted not to fit are left out. OUT/rows.json can be kept
as results/memory-NAME.json (see memory.py): the predicted peak stands beside the measured one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from ledger import Ledger, arguments, table
from memory import trained
from training import ADAPT, SETS, Place, Training, as_tiny, train, write_spec
from video_set import SetShape

from vidqa.contract.files import write_json
from vidqa.families import family_of
from vidqa.planning.budget import measured
from vidqa.planning.budget.forecast import Packing, forecast
from vidqa.planning.budget.memory import GIB, fits, model_of
from vidqa.planning.budget.trained import parameters
from vidqa.planning.packing.steps import Steps
from vidqa.planning.samples import training_planner
from vidqa.planning.sets import load_sets
from vidqa.spec import load, total_steps

SHOWN = ("run", "tokens/s/gpu", "mfu", "memory_gib", "share_of_memory", "step_s", "pack_tokens", "memory_policy")


@dataclass(frozen=True)
class Case:
    """A training, the packs of its fixed choices, and GiB that it may take of a GPU (None: all). `gpus` share each
    pack; the first three of its steps, or all but two, are not counted."""

    shape: str
    data: SetShape
    packs: tuple[int, ...]
    over: Mapping[str, Any] = field(default_factory=dict)
    limit_gib: float | None = None
    per_rank: int = 8
    words: tuple[str, ...] = ()  # of the ordinary recipe
    gpus: int = 1
    steps: int = 6

    def training(self, name: str, recompute: str, pack_tokens: int | None) -> Training:
        over = {**self.over, "engine.recompute": recompute, "engine.pack_tokens": pack_tokens}
        over |= {"engine.gpu_memory_gib": self.limit_gib}
        if self.gpus > 1:
            over |= {"policy.parallelism.dp_replicate_size": 1, "policy.parallelism.cp_size": self.gpus}
        counts = self.steps, min(3, self.steps - 2)
        return Training(name, "ours", self.shape, self.gpus, self.data, *counts, per_rank=self.per_rank, over=over)

    def all_of_it(self, name: str) -> Iterator[Training]:
        yield self.training(f"{name} chosen", "auto", None)
        if self.data.seconds[0] >= LONG_S:
            return
        if self.limit_gib is None:
            yield Training(
                f"{name} ordinary", "ordinary", self.shape, 1, self.data, 3, 1, self.per_rank, words=self.words
            )
        for recompute in ("none", "all"):
            for pack in self.packs:
                yield self.training(f"{name} {recompute} {pack}", recompute, pack)


LONG_S = 100  # of clips whose samples the ordinary recipe cannot hold
LONG = {  # sizes of frames stay as they are, so that samples are as long as their clips
    **ADAPT,
    "custom.vision.total_pixels": 2**27,
    "custom.vision.max_frames": 1024,
    "policy.model_max_length": 2**17,
    "engine.decode_timeout_s": 300.0,
}
CASES = {
    "lora": Case("8b", SETS["1k-8k"], (8192, 12288, 16384, 24576), ADAPT, words=("--lora",)),
    "lora-40": Case("8b", SETS["1k-8k"], (8192, 16384), ADAPT, limit_gib=40),
    "2b": Case("2b", SETS["1k-8k"], (8192, 16384)),
    "short": Case("2b", SetShape(256, (1, 3)), (8192, 16384), per_rank=64),
    "long": Case("8b", SetShape(4, (200, 200)), (), LONG, per_rank=2, steps=5),  # 40k tokens
    "128k": Case("8b", SetShape(2, (630, 630)), (), LONG, per_rank=1, steps=4),
    "128k-cp2": Case("8b", SetShape(1, (630, 630)), (), LONG, per_rank=1, steps=4, gpus=2),
}


def fits_here(training: Training, place: Place) -> bool:
    """Whether it is predicted to fit; on a CPU everything does."""
    if not place.cuda or training.recipe != "ours":
        return True
    spec = load(write_spec(training, place, ()), "train")
    folder = place.model(training.shape)
    family, samples = family_of(folder), training_planner(spec, folder).plan(load_sets(spec)["train"])[0]
    sizes = family.sizes_of(folder)
    model = model_of(sizes, parameters(family.tensors(sizes), spec.policy))
    packing = Packing(partial(Steps, spec, samples, 1, "cuda"), total_steps(spec, len(samples)))
    limit_gib = spec.engine.gpu_memory_gib or gpu_gib()
    return fits(forecast(spec, model, packing, limit_gib).memory.peak_gib, limit_gib)


def gpu_gib() -> float:
    return torch.cuda.get_device_properties(0).total_memory / GIB


def main() -> None:
    parser = arguments(__doc__, gpus=1, timeout=150)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of the runs to make; all by default")
    options = parser.parse_args()
    place, ledger = Place(options.out.resolve()), Ledger("policies", options)
    device, gpu = ("cuda", torch.cuda.get_device_name()) if place.cuda else ("cpu", "cpu")
    runs = [one for name in options.case for one in CASES[name].all_of_it(name)]
    runs = [one for one in runs if not options.only or any(part in one.name for part in options.only)]
    if options.tiny:
        runs = [replace(as_tiny(one, 3), over={**one.over, "engine.pack_tokens": 2048}) for one in runs[:2]]
    place.make(runs)
    rows = []
    for training in runs:
        if not fits_here(training, place):
            print(f"{training.name}: predicted not to fit", flush=True)
            continue
        (row,) = train([training], place, options.set, options.timeout)
        if training.recipe == "ours" and "failed" not in row:
            has_gib = training.over["engine.gpu_memory_gib"] or (gpu_gib() if place.cuda else 1.0)
            row["share_of_memory"] = row.get("memory_gib", 0.0) / has_gib
            described = trained(place.run_dir(training), training.steps, device)
            rows.append({"run": row["run"], "gpu": gpu, "ranks": training.gpus, **described, **row})
        ledger.add(row)
        print({key: row.get(key) for key in (*SHOWN, "failed")}, flush=True)
    write_json(place.out / "rows.json", rows)
    print(table([{key: row.get(key) for key in SHOWN} for row in ledger.rows]), "", sep="\n")
    print(*measured.table(measured.compare(rows)), sep="\n")
    if failures := [row["failed"] for row in ledger.rows if "failed" in row]:
        sys.exit(failures[0])


if __name__ == "__main__":
    main()
