"""Regression check of speed in five minutes on one GPU, against the last entry of the same card.

    python benchmarks/guard.py --out DIR

Each row is the engine's speed relative to a plain matrix product (its strict FLOP/s, over that of
products in the same process, in turn after every step), which power, heat and neighbours hardly change: LoRA on a third
of the 8B layers, all of the 2B model, and prefill. Stored in results/guard.json. If a row is more than 3 % below the
last entry of the same card that was not itself slower, the exit code is 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from generation import Prompts, answered, timed
from guarded_engine import Products
from ledger import Ledger, arguments, rounded, table
from processes import SKILL_ROOT, finish
from training import ADAPT, Place, Training, as_tiny, launch
from video_set import SetShape

from vidqa.engine.export import load_export
from vidqa.engine.families import family_of
from vidqa.engine.generators._base import Settings
from vidqa.engine.generators.native import NativeSession
from vidqa.families import family_of as tables_of
from vidqa.planning.budget.params import count_params, parameters
from vidqa.planning.budget.speed import flops_model
from vidqa.planning.plan import load_sets
from vidqa.planning.prefix_sharing import workload
from vidqa.planning.samples import training_planner
from vidqa.spec import load

SLOWER = 0.03
CLIPS = SetShape(8, (5, 40))  # 1k to 8k tokens; a step takes all of them, so that every step is the same work
FIXED = {"engine.recompute": "none"}  # policies.py measures the choice of a policy
TRAININGS = [
    Training("guard-lora", "ours", "8b-third", 1, CLIPS, 14, 5, pack_tokens=16384, over={**ADAPT, **FIXED}),
    Training("guard-2b", "ours", "2b", 1, CLIPS, 12, 4, pack_tokens=8192, over=FIXED),
]
PREFILLS = 7


def trained(training: Training, place: Place, sets: Sequence[str], limit_s: float) -> dict[str, Any]:
    times = place.run_dir(training).with_suffix(".times.json")
    times.unlink(missing_ok=True)
    engine = [str(SKILL_ROOT / "benchmarks" / "guarded_engine.py"), str(times)]
    started = launch(training, place, sets, limit_s, engine=engine)
    finish([started])
    row = {"run": training.name.removeprefix("guard-"), "whole_s": started.seconds}
    if started.failure or not times.exists():
        return {**row, "failed": started.failure or "no step was taken"}
    facts = json.loads(times.read_text())
    counted = facts["steps"][training.drop - 1 :]
    return {**row, **shares(work(training, place), facts["flops"], counted)}


def work(training: Training, place: Place) -> float:
    """Strict FLOPs of a step, which takes every clip once."""
    spec = load(place.run_dir(training) / "spec.toml", "train")
    folder = place.model(training.shape)
    family, (samples, _) = tables_of(folder), training_planner(spec, folder).plan(load_sets(spec)["train"])
    sizes = family.sizes_of(folder)
    model = count_params(sizes, parameters(family.tensors(sizes), spec.policy))
    trains = spec.policy.lora is None
    flops = flops_model(sizes, vision_trains=bool(model.vision.trained), decoder_trains=trains)
    return flops.training_flops([workload((number,), samples) for number in range(len(samples))])


def shares(flops: float, of_products: float, times: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The speed relative to products; `times` are the seconds of each piece of work, and of the products after it."""
    ratios = [flops / mine / (of_products / plain) for mine, plain in times]
    share = median(ratios)
    return {
        "share": share,
        "spread": (max(ratios) - min(ratios)) / share,
        "counted": len(ratios),
        "step_s": median(mine for mine, _ in times),
        "product_tflops": of_products / median(plain for _, plain in times) / 1e12,
    }


@torch.no_grad()
def prefill(place: Place, shape: str, clips: SetShape) -> dict[str, Any]:
    """Measure the native generator with one token for each prompt."""
    cuda = place.cuda
    device, dtype = torch.device("cuda" if cuda else "cpu"), torch.bfloat16 if cuda else torch.float32
    prompts = Prompts(place.model(shape), place.clips(clips), 12 if cuda else 1)
    model = load_export(place.model(shape), None, dtype, device)
    longest = max(sample.length for sample in prompts.samples) + 64
    settings = Settings(place.model(shape), None, dtype, device, prompts.planner, longest, len(prompts.samples))
    session, products = NativeSession(model, settings), Products()
    flops = (
        family_of(model).flops(model.config, vision_trains=True, decoder_trains=True).training_flops(prompts.works) / 3
    )
    answered(session, prompts.requests(1))  # compiles kernels and initialises libraries
    times = []
    for _ in range(PREFILLS):
        seconds, _ = timed(lambda: answered(session, prompts.requests(1)))
        times.append((seconds, products.seconds()))
    return {"run": "prefill", **shares(flops, products.flops, times[1:])}


def card(call: Mapping[str, Any]) -> str:
    """The machine of an entry without the driver."""
    return str(call["machine"]).split(",")[0]


def last_good(calls: Sequence[Mapping[str, Any]], like: Mapping[str, Any]) -> dict[str, float]:
    """Shares by run, each from the last entry of the same card that has one and was not slower itself."""
    shares: dict[str, float] = {}
    for call in calls:
        slow = {line["run"] for line in call.get("told", ()) if line["slower"]}
        if card(call) == card(like):
            shares |= {row["run"]: row["share"] for row in call["rows"] if "share" in row and row["run"] not in slow}
    return shares


def judged(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float]) -> list[dict[str, Any]]:
    lines = []
    for row in rows:
        if (was := before.get(row["run"])) and "share" in row:
            change = row["share"] / was - 1
            line = {"run": row["run"], "was": was, "share": row["share"], "change": change}
            lines.append({**line, "slower": change < -SLOWER})
    return lines


def main() -> None:
    options = arguments(__doc__, gpus=1, timeout=110).parse_args()
    place, ledger = Place(options.out.resolve()), Ledger("guard", options)
    runs = [as_tiny(one, 4) for one in TRAININGS] if options.tiny else TRAININGS
    runs = [replace(one, per_rank=one.clips.clips) for one in runs]
    place.make(runs)
    for training in runs:
        add(ledger, trained(training, place, options.set, options.timeout))
    add(ledger, prefill(place, runs[0].shape, runs[0].clips))
    lines = judged(ledger.rows, last_good(ledger.earlier, ledger.call))
    ledger.conclude(lines)
    print(table(ledger.rows), "", table(lines) if lines else "the first entry of this card", sep="\n", flush=True)
    bad = [f"{row['run']}: {row['failed']}" for row in ledger.rows if "failed" in row]
    bad += [f"{one['run']} is {-one['change']:.1%} slower than before" for one in lines if one["slower"]]
    if bad:
        sys.exit("\n".join(bad))


def add(ledger: Ledger, row: Mapping[str, Any]) -> None:
    ledger.add(row)
    print(rounded(row), flush=True)


if __name__ == "__main__":
    main()
