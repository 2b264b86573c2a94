"""Looks for leaks in whole trainings: many samples through a tiny model; the memory of every process, sampled.

python benchmarks/soak_training.py --samples 50000 --gpus 1 --out soak

Counted is what processes have allocated (anonymous and shared memory), without the files and libraries that they map:
the frame cache's pages come and go as the machine likes. Once warm it has to stay flat: the last fifth is compared
with the middle one.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("src", "benchmarks")]

from ledger import RESULTS, Ledger, table
from processes import Started, family_of, kill_tree, start
from training import Place, Training, command_of, our_steps
from video_set import SetShape

SET = SetShape(24, (1, 2), questions=4, width=96, height=64)
PER_RANK = 32
FLAT = 0.02
FIELDS = ("VmRSS", "RssAnon", "RssShmem")


def memory_mib(pid: int) -> dict[str, float]:
    """What /proc says of a process; empty once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    words = (line.split() for line in lines)
    return {name[:-1]: int(size) / 1024 for name, size, *_ in (w for w in words if len(w) > 2) if name[:-1] in FIELDS}


def sample(started: Started, steps: int) -> dict[str, Any]:
    """All processes of the tree at this moment."""
    seen = {pid: memory_mib(pid) for pid in family_of(started.process.pid)}
    own = {pid: found["RssAnon"] + found["RssShmem"] for pid, found in seen.items() if "RssAnon" in found}
    resident = sum(found.get("VmRSS", 0.0) for found in seen.values())
    return {"steps": steps, "processes": len(own), "mib": sum(own.values()), "resident_mib": resident, "each": own}


def watch(training: Training, place: Place, started: Started, every_s: float) -> list[dict[str, Any]]:
    samples = []
    try:
        while started.process.poll() is None and time.time() - started.began < started.limit_s:
            time.sleep(every_s)
            steps = len(our_steps(training, place, started.began))
            if 0 < steps < training.steps:
                samples.append(sample(started, steps))
    finally:
        if started.process.poll() is None:
            kill_tree(started.process)
    return samples


def verdict(samples: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """The last fifth of the run against its middle fifth, all processes together and the one that grew most."""
    middle = [one for one in samples if 0.4 <= one["steps"] / steps < 0.6]
    last = [one for one in samples if one["steps"] / steps >= 0.8]
    if not middle or not last:
        return {"samples_of_memory": len(samples), "flat": None}
    before, after = (mean(one["mib"] for one in part) for part in (middle, last))
    lasting = set.intersection(*(set(one["each"]) for one in middle + last))
    grown = [mean(o["each"][pid] for o in last) / mean(o["each"][pid] for o in middle) - 1 for pid in lasting]
    return {
        "processes": last[-1]["processes"],
        "MiB in the middle fifth": before,
        "MiB in the last fifth": after,
        "growth": after / before - 1,
        "growth of one process": max(grown, default=0.0),
        "resident MiB": mean(one["resident_mib"] for one in last),
        "flat": after / before - 1 <= FLAT,
        "curve": tenths(samples, steps),
    }


def tenths(samples: list[dict[str, Any]], steps: int) -> list[float]:
    """Mean MiB of all processes in each tenth of the run: whether what grew has stopped growing."""
    parts = [[one["mib"] for one in samples if int(10 * one["steps"] / steps) == tenth] for tenth in range(10)]
    return [mean(part) for part in parts if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--gpus", type=int, default=1, help="processes, where there are no GPUs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of our own specs")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between looks at the memory")
    parser.add_argument("--timeout", type=float, default=7200)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: a few steps")
    options = parser.parse_args()
    place = Place(options.out.resolve(), {"soak": SET})
    steps = 30 if options.tiny else -(-options.samples // (PER_RANK * options.gpus))
    training = Training("soak", "ours", "tiny", options.gpus, "soak", steps, 0, per_rank=PER_RANK, pack_tokens=4096)
    place.make(["tiny"], ["soak"])
    log = place.out / "runs" / "soak.log"
    command = command_of(training, place, options.set)
    started = start(command, log, options.timeout, range(options.gpus) if place.cuda else ())
    samples = watch(training, place, started, 0.2 if options.tiny else options.every)
    taken = len(our_steps(training, place, started.began))
    row = {"samples": taken * PER_RANK * options.gpus, "seconds": time.time() - started.began}
    row |= verdict(samples, steps)
    ledger = Ledger("soak_training", options.results or (place.out / "results" if options.tiny else RESULTS))
    ledger.add(row)
    print(table([{key: value for key, value in row.items() if key != "curve"}]), row.get("curve"), sep="\n")
    if taken < steps or (row["flat"] is False and not options.tiny):
        sys.exit(f"{taken} of {steps} steps were taken\n{log.read_text(errors='replace')[-3000:]}")


if __name__ == "__main__":
    main()
