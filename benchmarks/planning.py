"""Time what GPUs wait for before a first step can begin: reading, probing and planning, or reading a stored plan.

python benchmarks/planning.py --out DIR [--before CHECKOUT]

The set is that of preflight.py: 300,000 questions about 3,000 clips. Every row is a run of its own under torchrun, from
where the engine's imports are done to where it knows its first step and has the samples of it; CPU seconds are those of
all ranks, `peak` is that of the largest one, imports included. Medians of `--repeats` runs. With `--before` the same is
measured with another checkout of this project, in turns.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bulk import measured
from ledger import Ledger, arguments, table
from preflight import FILES, RECORDS, TINY_FILES, TINY_RECORDS, make_model, make_set, write_spec
from processes import SKILL_ROOT

from vidqa.contract.run_folder import PLAN

PREPARE = """
import inspect, json, resource, sys, time
from pathlib import Path
from vidqa.contract.run_folder import RunFolder
from vidqa.engine import distributed
from vidqa.engine.data.planned_samples import prepare_training, write_plan
from vidqa.engine.data.schedule import Schedule
from vidqa.planning.samples import training_planner
from vidqa.spec import load

spec, run, ranks = load(Path(sys.argv[1]), "train"), RunFolder(Path(sys.argv[2])), int(sys.argv[3])
world = distributed.start(1, ranks, 600)
world.barrier()
cpu, wall = time.process_time(), time.monotonic()
planner = training_planner(spec, Path(spec.policy.model_name_or_path))
data = prepare_training(spec, planner, world, run)
more = []
if "policy" in inspect.signature(Schedule).parameters:  # of an earlier checkout it has none
    from vidqa.engine.training.memory_policy import choose_memory_policy
    more = [choose_memory_policy(spec, Path(spec.policy.model_name_or_path), data, world)]
schedule = Schedule(spec, data, world, *more)
if world.is_main:
    write_plan(run, data, schedule.facts())
samples = [data.train[number] for pack in schedule.packs(0) for number in pack]
used = time.process_time() - cpu, time.monotonic() - wall
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
(run.path / f"rank{world.rank}.json").write_text(json.dumps([*used, peak, len(samples)]))
distributed.stop()
"""


def prepared(out: Path, spec: Path, checkout: Path, ranks: int, plan: Path | None) -> tuple[float, float, float]:
    """CPU s, wall s and peak GB of one run."""
    run, program = out / "prepared", out / "prepare.py"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    if plan:
        os.link(plan, run / PLAN)
    program.write_text(PREPARE)
    torchrun = [sys.executable, "-m", "vidqa.engine.torchrun", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    subprocess.run([*torchrun, str(program), str(spec), str(run), str(ranks)], env=environment, check=True)
    found = [json.loads((run / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return sum(cpu for cpu, *_ in found), max(wall for _, wall, *_ in found), max(peak for _, _, peak, _ in found)


def rows(out: Path, spec: Path, before: Path | None, repeats: int) -> Iterator[dict[str, Any]]:
    plan = out / PLAN
    plan.unlink(missing_ok=True)
    checkouts = {"after": SKILL_ROOT, **({"before": before} if before else {})}
    for ranks in (1, 2):
        timed: dict[str, list[tuple[float, float, float]]] = {}
        for _ in range(repeats):
            for name, checkout in checkouts.items():
                timed.setdefault(name, []).append(prepared(out, spec, checkout, ranks, None))
                if name == "after" and not plan.exists():
                    os.link(out / "prepared" / plan.name, plan)
            timed.setdefault("after, stored plan", []).append(prepared(out, spec, SKILL_ROOT, ranks, plan))
        for name, found in timed.items():
            yield {"what": "start to first step", "ranks": ranks, "way": name, **median(found)}
    timed = {}
    for number in range(repeats):
        for name, checkout in checkouts.items():
            os.environ["PYTHONPATH"] = str(checkout / "src")
            words = [str(checkout / "scripts" / "preflight.py"), "--spec", str(spec), "--json"]
            if number == 0 and name == "after":  # which decodes
                measured(words)
            wall, cpu, peak = measured(words)
            timed.setdefault(name, []).append((cpu, wall, peak))
    for name, found in timed.items():
        yield {"what": "preflight again", "ranks": None, "way": name, **median(found)}


def median(found: list[tuple[float, float, float]]) -> dict[str, float]:
    cpu, wall, peak = (statistics.median(values) for values in zip(*found, strict=True))
    return {"cpu_s": cpu, "wall_s": wall, "peak_gb": peak}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--before", type=Path, help="another checkout of this project, measured beside this one")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    records, files = (TINY_RECORDS, TINY_FILES) if options.tiny else (RECORDS, FILES)
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:
        root = maker.submit(make_set, out / f"set-{files}-{records}", records, files).result()
        model = maker.submit(make_model, out / "model").result()
    spec = write_spec(out / "spec.toml", root, model, {"policy.parallelism.dp_shard_size": 1})
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    os.environ.update(VIDQA_CACHE_DIR=str(out / "cache"), VIDQA_STATE_DIR=str(out / "state"))
    ledger = Ledger("planning", options)
    for row in rows(out, spec, options.before and options.before.resolve(), options.repeats):
        ledger.add({"records": records, "files": files, **row})
        print(row, flush=True)
    print(table(ledger.rows))


if __name__ == "__main__":
    main()
