"""The engine's choice of memory policy against a grid of fixed ones and, on one GPU, two recipes of other libraries.

    python benchmarks/policies.py --case lora lora-40 --out DIR
    python benchmarks/policies.py --case lora --only chosen careful --out DIR --go-on     # missing runs
    python benchmarks/policies.py --case long-cp2 longest-cp2 full-2 --timeout 560 --out DIR     # on two GPUs

A case is a training bounded by GPU memory. `chosen` leaves packs and recomputation to the engine, the grid fixes
both (engine.recompute, engine.pack_tokens); policies predicted not to fit are left out. Rows have all inputs of the
memory estimate (see memory.py and predictions.py); the newest choices and the best of their grids are in
references/memory.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import predictions
import torch
from ledger import Ledger, arguments, table
from memory import trained
from training import ADAPT, SETS, Place, Training, as_tiny, train, write_spec
from video_set import SetShape

from vidqa.families import family_of
from vidqa.planning.budget.autotune import Packing, best_policy
from vidqa.planning.budget.memory import GIB
from vidqa.planning.budget.params import count_params, parameters
from vidqa.planning.packing import Steps
from vidqa.planning.plan import load_sets
from vidqa.planning.samples import training_planner
from vidqa.spec import load, total_steps

SPEED, MEMORY = "tokens/s/gpu", ("predicted_gib", "memory_gib", "share_of_memory")
SHOWN = ("run", SPEED, "mfu", *MEMORY, "step_s", "pack_tokens", "memory_policy")
CAREFUL = ("8192-kept", "16384")
LONG = {"custom.vision.total_pixels": 2**27, "policy.model_max_length": 2**17}  # a video may take 128k tokens
# GPUs that share every sample.
SHARED = {"policy.parallelism.dp_replicate_size": 1, "policy.parallelism.cp_size": 2}
SHARED_BY_4 = {"policy.parallelism.dp_replicate_size": 1, "policy.parallelism.cp_size": 4}
ALL_SHARED_BY_4 = {**SHARED_BY_4, "policy.parallelism.dp_shard_size": 1}
TWO_BY_TWO = {"policy.parallelism.dp_replicate_size": 2, "policy.parallelism.dp_shard_size": 2}
LONGER = SetShape(2, (200, 200))  # 40k tokens
LONGEST = SetShape(1, (630, 630), width=736)  # 128k tokens


@dataclass(frozen=True)
class Case:
    """A training, the packs of its fixed policies, and its limit of GPU memory in GiB (None: all). On several `gpus` no
    other recipe is measured."""

    shape: str
    data: SetShape
    packs: tuple[int, ...]
    over: Mapping[str, Any] = field(default_factory=dict)
    limit_gib: float | None = None
    per_rank: int = 8
    steps: int = 6  # the first half is not counted
    words: tuple[str, ...] = ()  # of the ordinary recipe
    careful: tuple[str, ...] = ()  # settings that a careful user tries
    gpus: int = 1

    def training(self, name: str, recompute: str, pack_tokens: int | None) -> Training:
        over = {**self.over, "engine.recompute": recompute, "engine.pack_tokens": pack_tokens}
        over |= {"engine.gpu_memory_gib": self.limit_gib}
        counts = self.steps, self.steps // 2, self.per_rank
        return Training(name, "ours", self.shape, self.gpus, self.data, *counts, over=over)

    def all_of_it(self, name: str) -> Iterator[Training]:
        yield self.training(f"{name} chosen", "auto", None)
        if self.limit_gib is None and self.gpus == 1:
            theirs = Training(f"{name} ordinary", "ordinary", self.shape, 1, self.data, 3, 1, self.per_rank)
            yield replace(theirs, words=self.words)
            if self.careful:
                yield replace(theirs, name=f"{name} careful", words=[*self.words, "--careful", *self.careful])
        for recompute in ("none", "all") if "policy.lora.r" in self.over else ("none", "vision", "all"):
            for pack in self.packs:
                yield self.training(f"{name} {recompute} {pack}", recompute, pack)


CASES = {
    "lora": Case(
        "8b", SETS["1k-8k"], (8192, 12288, 16384, 24576), ADAPT, words=("--lora",), careful=(*CAREFUL, "12288-kept")
    ),
    "lora-40": Case("8b", SETS["1k-8k"], (8192, 16384), ADAPT, limit_gib=40),
    "2b": Case("2b", SETS["1k-8k"], (8192, 12288, 16384), per_rank=16, careful=CAREFUL),
    "short": Case("2b", SetShape(256, (1, 3)), (8192, 16384), per_rank=64, careful=CAREFUL),
    "long": Case("8b", LONGER, (40_960,), {**ADAPT, **LONG}, per_rank=1),
    "longest": Case("8b", LONGEST, (2**17,), {**ADAPT, **LONG}, per_rank=1, steps=2),
    "long-cp2": Case("8b", LONGER, (40_960,), {**ADAPT, **LONG, **SHARED}, per_rank=1, gpus=2),
    "longest-cp2": Case("8b", LONGEST, (2**17,), {**ADAPT, **LONG, **SHARED}, per_rank=1, steps=3, gpus=2),
    "long-cp4": Case("8b", LONGER, (40_960,), {**ADAPT, **LONG, **SHARED_BY_4}, per_rank=1, gpus=4),
    "longest-cp4": Case("8b", LONGEST, (2**17,), {**ADAPT, **LONG, **SHARED_BY_4}, per_rank=1, steps=3, gpus=4),
    "long-full-cp4": Case("8b", LONGER, (40_960,), {**LONG, **ALL_SHARED_BY_4}, per_rank=1, gpus=4),
    "longest-full-cp4": Case("8b", LONGEST, (2**17,), {**LONG, **ALL_SHARED_BY_4}, per_rank=1, steps=3, gpus=4),
    "third-4": Case("8b-third", SETS["4k-8k"], (16384,), per_rank=16, gpus=4),
    "third-2x2": Case("8b-third", SETS["4k-8k"], (16384,), TWO_BY_TWO, per_rank=16, gpus=4),
    "full-2": Case("8b", SETS["4k-8k"], (8192, 16384), per_rank=16, gpus=2),
    "full-4-80": Case("8b", SETS["4k-8k"], (16384,), limit_gib=80, per_rank=16, gpus=4),
}


def fits_here(training: Training, place: Place) -> bool:
    """Whether a training is predicted to fit; on a CPU always."""
    if not place.cuda or training.recipe != "ours":
        return True
    spec = load(write_spec(training, place, ()), "train")
    folder = place.model(training.shape)
    family, samples = family_of(folder), training_planner(spec, folder).plan(load_sets(spec)["train"])[0]
    sizes = family.sizes_of(folder)
    model = count_params(sizes, parameters(family.tensors(sizes), spec.policy))
    data_ranks = training.gpus // spec.policy.parallelism.cp_size
    packing = Packing(partial(Steps, spec, samples, data_ranks, "cuda"), total_steps(spec, len(samples)))
    limit_gib = spec.engine.gpu_memory_gib or gpu_gib()
    return best_policy(spec, model, packing, limit_gib).fits(limit_gib)


def gpu_gib() -> float:
    return torch.cuda.get_device_properties(0).total_memory / GIB


def summary(case: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The choice of a case beside the fastest fixed policy and both recipes; None if the choice was not measured."""
    chosen = rows.get(f"{case} chosen", {})
    if SPEED not in chosen:
        return None
    others = {name: row for name, row in rows.items() if name.startswith(f"{case} ") and SPEED in row}
    apart = {f"{case} {recipe}" for recipe in ("chosen", "ordinary", "careful")}
    grid = [row for name, row in others.items() if name not in apart]
    best = max(grid, key=lambda row: row[SPEED], default=None)
    line = {"case": case, "gpu": chosen["gpu"], "chosen": chosen["memory_policy"], "pack_tokens": chosen["pack_tokens"]}
    line |= {SPEED: chosen[SPEED], "mfu": chosen.get("mfu"), "fixed": len(grid)}
    if best:
        line |= {"best_fixed": best["run"].removeprefix(f"{case} "), "against_best_fixed": chosen[SPEED] / best[SPEED]}
    for recipe in ("ordinary", "careful"):
        if theirs := others.get(f"{case} {recipe}"):
            line[f"against_{recipe}"] = chosen[SPEED] / theirs[SPEED]
    return {**line, **{key: chosen.get(key) for key in MEMORY}}


def complete_row(training: Training, row: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """A row of our own training, with the inputs of its memory estimate, and the estimate."""
    device, gpu = ("cuda", torch.cuda.get_device_name()) if place.cuda else ("cpu", "cpu")
    described = trained(place.run_dir(training), training.steps, device)
    complete = {"run": row["run"], "gpu": gpu, "ranks": training.gpus, **described, **row}
    (compared,) = predictions.compare([{**complete, "memory_gib": row.get("memory_gib", 1.0)}])
    has_gib = training.over["engine.gpu_memory_gib"] or (gpu_gib() if place.cuda else 1.0)
    share = row.get("memory_gib", 0.0) / has_gib
    return {**complete, "predicted_gib": compared.predicted_gib, "share_of_memory": share}


def as_tiny_runs(cases: Sequence[str]) -> list[Training]:
    """The choice, both recipes and one fixed policy of each case, on a tiny model."""
    runs = []
    for case in cases:
        for one in list(CASES[case].all_of_it(case))[:4]:
            small = as_tiny(one, 3 if one.recipe == "ours" else 2)
            runs.append(replace(small, over={**one.over, "engine.pack_tokens": 2048}))
    return runs


def main() -> None:
    parser = arguments(__doc__, gpus=1, timeout=150)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of the runs to make; all by default")
    parser.add_argument("--go-on", action="store_true", help="make what is missing in the result file's last call")
    options = parser.parse_args()
    place, ledger = Place(options.out.resolve()), Ledger("policies", options, go_on=options.go_on)
    there = {row["run"] for row in ledger.rows if "failed" not in row}
    runs = [one for name in options.case for one in CASES[name].all_of_it(name)]
    runs = as_tiny_runs(options.case) if options.tiny else runs
    runs = [one for one in runs if not options.only or any(part in one.name for part in options.only)]
    runs = [one for one in runs if one.name not in there]
    place.make(runs)
    for training in runs:
        if not fits_here(training, place):
            print(f"{training.name}: predicted not to fit", flush=True)
            continue
        (row,) = train([training], place, options.set, options.timeout)
        ours = training.recipe == "ours" and "failed" not in row
        ledger.add(complete_row(training, row, place) if ours else row)
        print({key: ledger.rows[-1].get(key) for key in (*SHOWN, "failed")}, flush=True)
        rows = {row["run"]: row for row in ledger.rows}
        ledger.conclude([line for case in CASES if (line := summary(case, rows))])
    print(table([{key: row.get(key) for key in SHOWN} for row in ledger.rows]), "", sep="\n")
    print(table(ledger.call.get("told", [])), "", sep="\n")
    print(*predictions.table(predictions.compare(ledger.rows)), sep="\n")
    if failures := [row["failed"] for row in ledger.rows if "failed" in row]:
        sys.exit(failures[0])


if __name__ == "__main__":
    main()
