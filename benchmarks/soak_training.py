"""Looks for leaks in whole trainings: many samples through a tiny model; the memory of every process, sampled.

python benchmarks/soak_training.py --samples 50000 --out DIR

Counted is what processes have allocated (anonymous and shared memory), without the files and libraries that they map:
the frame cache's pages come and go as the machine likes. Once warm it has to stay flat: the last fifth is compared
with the middle one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

from ledger import Ledger, arguments, table
from processes import Started, family_of, kill_tree
from training import Place, Training, launch, our_steps
from video_set import SetShape

SET = SetShape(24, (1, 2), questions=4, width=96, height=64)
PER_RANK = 32
FLAT = 0.02
EVERY_S, EVERY_S_TINY = 5.0, 0.2  # between looks at the memory
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
    parser = arguments(__doc__, gpus=1, timeout=7200)
    parser.add_argument("--samples", type=int, default=50_000)
    options = parser.parse_args()
    place = Place(options.out.resolve())
    steps = 15 if options.tiny else -(-options.samples // (PER_RANK * options.gpus))
    training = Training("soak", "ours", "tiny", options.gpus, SET, steps, 0, per_rank=PER_RANK, pack_tokens=4096)
    place.make([training])
    started = launch(training, place, options.set, options.timeout)
    samples = watch(training, place, started, EVERY_S_TINY if options.tiny else EVERY_S)
    taken = len(our_steps(training, place, started.began))
    row = {"samples": taken * PER_RANK * options.gpus, "seconds": time.time() - started.began}
    row |= verdict(samples, steps)
    Ledger("soak_training", options).add(row)
    print(table([row], without=["curve"]), row.get("curve"), sep="\n")
    if taken < steps or (row["flat"] is False and not options.tiny):
        sys.exit(f"{taken} of {steps} steps were taken\n{started.log.read_text(errors='replace')[-3000:]}")


if __name__ == "__main__":
    main()
