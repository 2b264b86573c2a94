"""Peak memory and speed of the real trainer over model shapes, training methods and numbers of GPUs.

    python benchmarks/memory.py --gpus 4 --out DIR

Every run is the engine itself under torchrun on real mp4 files, for a few optimizer steps. Runs that together need no
more than the available GPUs run in parallel. A row has all inputs of the memory estimate, so that
predictions.py can predict it again from the row alone: after a change of the engine, measure, keep DIR/rows.json as
results/memory-NAME.json, and change the counts in planning.budget.memory until every error is small. The MFU of typical
rows belongs into planning/budget/speed.py, with which preflight estimates hours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import predictions
import torch
from ledger import Ledger, arguments, table
from training import Place, Training, as_tiny, side_by_side, train
from video_set import SetShape

from vidqa.core.files import write_json
from vidqa.families import family_of
from vidqa.planning.budget.autotune import heaviest_micro_steps
from vidqa.planning.budget.memory import peak_memory, read_memory_policy, training_setup
from vidqa.planning.budget.params import count_params, parameters
from vidqa.planning.packing import Steps
from vidqa.planning.plan import load_sets
from vidqa.planning.samples import training_planner
from vidqa.spec import load

CLIP_TOKENS = 5600  # tokens of a clip of 28.6 s, without its timestamps, question and answer
LORA = {"policy.lora.r": 16, "policy.lora.lora_alpha": 32.0}  # with the default dropout
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "frozen": {"policy.freeze_pattern": ["visual"]},
    "lora": LORA,
    "lora-whole": LORA,  # on several GPUs, each of which holds the whole base
}
RECOMPUTES = {"none": "-kept", "vision": "-vision", "all": ""}
RESHARD = {"all": "never", "none": "always"}


def run(
    shape: str, gpus: int, kind: str, pack_tokens: int, recompute: str = "all", stay: str = "none", packs: int = 1
) -> Training:
    """An optimizer step is `packs` packs of as many clips as they hold; the first two of six steps warm up."""
    clips = packs * (pack_tokens // (CLIP_TOKENS + 100))
    name = f"{shape}-{gpus}gpu-{kind}{RECOMPUTES[recompute]}{'-gathered' * (stay == 'all')}-{pack_tokens // 1024}k"
    over = {**WAYS[kind], "engine.recompute": recompute, "train.fsdp_reshard_after_forward": RESHARD[stay]}
    data = SetShape(2 * clips, (28.6, 28.6))
    return Training(name, "ours", shape, gpus, data, 6, 2, per_rank=clips, pack_tokens=pack_tokens, over=over)


RUNS = [
    run("8b", 4, "full", 16384, "none", "all", packs=2),
    run("8b", 4, "full", 16384, "none"),
    run("8b", 4, "lora-whole", 16384, "none"),
    run("8b", 2, "full", 8192),
    run("8b", 1, "lora", 16384, "none"),
    run("2b", 1, "full", 8192, "none"),
    run("8b", 2, "frozen", 8192),
    run("8b", 1, "lora", 8192),
    run("2b", 1, "full", 16384),
    run("8b", 4, "full", 16384, "vision"),
    run("8b", 4, "frozen", 8192, "none"),
    run("2b", 4, "full", 16384, "none"),
    run("2b", 4, "full", 8192, "none", "all", packs=2),
]


def trained(run_dir: Path, steps: int, device: str) -> dict[str, Any]:
    """The model, the keys that matter, the memory policy and the heaviest pack of a run by the estimate. It may not be
    the largest: packs after a step's first find gradients in memory."""
    spec = load(run_dir / "spec.toml", "train")
    facts, planned = (json.loads((run_dir / "run" / name).read_text()) for name in ("run.json", "plan.json"))
    folder, mesh = Path(spec.policy.model_name_or_path), spec.policy.parallelism
    family, ranks = family_of(folder), mesh.dp_shard_size * mesh.dp_replicate_size
    samples, _ = training_planner(spec, folder).plan(load_sets(spec)["train"])
    plan = Steps(spec, samples, ranks, device, planned["pack_tokens"])
    sizes = family.sizes_of(folder)
    model = count_params(sizes, parameters(family.tensors(sizes), spec.policy))
    policy = read_memory_policy(facts, sizes)
    setup = training_setup(spec, policy)
    heaviest = max(heaviest_micro_steps(plan, steps), key=lambda one: peak_memory(model, setup, one).peak_gib)
    return predictions.description(spec, policy, family, model, heaviest)


def main() -> None:
    options = arguments(__doc__, gpus=4).parse_args()
    runs = [one for one in RUNS if one.gpus <= options.gpus]
    runs = [as_tiny(one, 4) for one in runs[:2]] if options.tiny else runs
    place, ledger = Place(options.out.resolve()), Ledger("memory", options)
    device, gpu = ("cuda", torch.cuda.get_device_name()) if place.cuda else ("cpu", "cpu")
    place.make(runs)
    for group in side_by_side(runs, options.gpus):
        for training, row in zip(group, train(group, place, options.set, options.timeout), strict=True):
            if "failed" not in row:
                described = trained(place.run_dir(training), training.steps, device)
                row = {"run": row.pop("run"), "gpu": gpu, "ranks": row.pop("gpus"), **described, **row}
            ledger.add(row)
    write_json(place.out / "rows.json", ledger.rows)
    print(table(ledger.rows, without=["failed", "sizes", "spec", "parameters", "pack", "recompute"]), "", sep="\n")
    print(*predictions.table(predictions.compare(ledger.rows)), sep="\n")
    if failures := [row["failed"] for row in ledger.rows if "failed" in row]:
        sys.exit(failures[0])


if __name__ == "__main__":
    main()
