"""What the allocator maps and unmaps within steps, and what that costs: the engine as it is beside itself without.

    python benchmarks/mapping.py --out DIR [--case 2b] [--ways now before now before]

`now` is the engine as it is; `unmapped` maps no memory ahead; `copied` lets FSDP copy the gradients of one rank into
memory of its own stream; `before` does both, as the engine did until 9dffa58. One training after the other, each a case
of policies.py with everything chosen by the engine, all of them the same steps. GiB and retries are sums over the
counted steps: with a retry the GPU stands still until what is not in use is unmapped.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from ledger import Ledger, arguments, table
from policies import CASES
from processes import SKILL_ROOT, finish
from training import Place, Training, as_tiny, figures, launch
from watched_engine import WAYS

STEPS, DROP = 14, 3
SHOWN = ("run", "tokens/s/gpu", "mfu", "step_s", "mapped_gib", "unmapped_gib", "retries", "reserved_gib", "memory_gib")


def measured(training: Training, way: str, place: Place, options: Any) -> dict[str, Any]:
    watched = place.run_dir(training).with_suffix(".watched.json")
    watched.unlink(missing_ok=True)
    engine = [str(SKILL_ROOT / "benchmarks" / "watched_engine.py"), str(watched), way]
    started = launch(training, place, options.set, options.timeout, engine=engine)
    finish([started])
    row = {**figures(training, place, started), "run": way, "way": WAYS[way]}
    return row if "failed" in row else {**row, **sums(json.loads(watched.read_text()), training.drop)}


def sums(steps: list[dict[str, float]], drop: int) -> dict[str, Any]:
    """What the allocator did behind the first `drop` steps, and seconds of every step."""
    first, last = steps[drop - 1], steps[-1]
    found = {key: last[key] - first[key] for key in ("mapped_gib", "unmapped_gib", "retries")}
    seconds = [after["at"] - before["at"] for before, after in pairwise(steps)]
    return {**found, "reserved_gib": last["reserved_gib"], "late_step_s": median(seconds[drop - 1 :]), "each": seconds}


def main() -> None:
    parser = arguments(__doc__, gpus=1, timeout=150)
    parser.add_argument("--case", choices=CASES, default="2b")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["now", "before", "now", "before"])
    options = parser.parse_args()
    place, ledger = Place(options.out.resolve()), Ledger("mapping", options)
    training = replace(CASES[options.case], steps=STEPS).training(f"mapping-{options.case}", "auto", None)
    training = as_tiny(training, 4) if options.tiny else replace(training, drop=DROP)
    place.make([training])
    for way in options.ways:
        ledger.add({"case": options.case, **measured(training, way, place, options)})
        print({key: ledger.rows[-1].get(key) for key in (*SHOWN, "failed")}, flush=True)
    print(table([{key: row.get(key) for key in SHOWN} for row in ledger.rows]))


if __name__ == "__main__":
    main()
