"""The planted weakness, by seed: what the DEFT loop reaches with mined samples, and with as many random ones.

    python benchmarks/deft.py --out DIR --seeds 0 1 2

Each seed is a demo of its own: other clips, another tiny model, trained from random weights, then the loop with its
control. The figures are accuracies on the selection set, which the loop decides by, and on the KPI set, by kind.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from ledger import Ledger, arguments

SKILL_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SKILL_ROOT / "src"))

from vidqa.demo.recipe import EVALUATE, LOOP, POOL_CLIPS, TRAIN, TRAIN_CLIPS


def python(*words: object, read: bool = True) -> dict[str, Any]:
    """Run a command in the repository's folder; what it says as JSON."""
    typed = [*map(str, words)]
    print(f"$ python {shlex.join(typed)}", flush=True)
    done = subprocess.run([sys.executable, *typed], cwd=SKILL_ROOT, text=True, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout) if read else {}


def script(name: str, *words: object) -> dict[str, Any]:
    return python(f"scripts/{name}.py", *words, "--json")["data"]


def build(action: str, out: Path, overrides: dict[str, Any], *words: object) -> None:
    sets = [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    script("build_spec", action, *words, *sets, "--out", out)


def measured(folder: Path, seed: int, share: float) -> dict[str, Any]:
    """The loop's report of one seed, in short; with a `share` of the demo's clips."""
    data, model, runs = folder / "data", folder / "model", folder / "runs"
    sizes = ("--clips", int(share * TRAIN_CLIPS), "--pool", int(share * POOL_CLIPS), "--seed", seed)
    if not (data / "pool" / "annotations.json").is_file():  # written last; an earlier call's trainings are found again
        python("-m", "vidqa.demo", "--out", data, *sizes, read=False)
        made = ("--out", model, "--corpus", data / "corpus.txt", "--seed", seed)
        python("-m", "vidqa.engine.families.tiny_qwen3_vl", *made, read=False)
    train, evaluate = folder / "train.toml", folder / "evaluate.toml"
    build("train", train, TRAIN, "--train-root", data / "train", "--model", model, "--results-dir", runs)
    build("evaluate", evaluate, EVALUATE, "--eval-root", data / "eval", "--model", model, "--results-dir", runs)
    trained = script("launch", "train", "--spec", train, "--platform", "local", "--wait")["run_dir"]
    rules = {**LOOP, "control": "true", "sets.kpi_looks": 2}
    sets = [word for key, value in rules.items() for word in ("--set", f"{key}={value}")]
    places = ("--selection", data / "selection", "--pool", data / "pool", "--kpi", data / "eval")
    recipes = ("--train-spec", train, "--evaluate-spec", evaluate, "--model", trained)
    script("run_deft", "init", folder / "loop", *recipes, *places, *sets)
    script("run_deft", "run", folder / "loop")
    table = json.loads((folder / "loop" / "report.json").read_text(encoding="utf-8"))
    return {"seed": seed, "ending": table["ending"], "rounds": [_round(each) for each in table["rounds"]]} | _kpi(table)


def _round(each: dict[str, Any]) -> dict[str, Any]:
    control = each["control"] or {}
    return {
        "round": each["round"],
        "added": each["added"],
        "accepted": each["accepted"],
        "mined": {kind: row["accuracy"] for kind, row in each["by_kind"].items()},
        "random": _kinds(control.get("run_dir")),
        "p_mined_over_random": control["comparison"]["whole"]["p_value"] if control else None,
    }


def _kpi(table: dict[str, Any]) -> dict[str, Any]:
    looks = [table["rounds"][0]["kpi"], table["final"].get("kpi")]
    return {
        name: _kinds(look["run_dir"]) for name, look in zip(("kpi_before", "kpi_after"), looks, strict=True) if look
    }


def _kinds(run: str | None) -> dict[str, float] | None:
    if run is None:
        return None
    scores = json.loads((Path(run) / "metrics.json").read_text(encoding="utf-8"))["by_kind"]
    return {kind: row["accuracy"] for kind, row in scores.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    ledger = Ledger("deft", options)
    for seed in options.seeds:
        ledger.add(measured((options.out / str(seed)).absolute(), seed, 0.02 if options.tiny else 1.0))


if __name__ == "__main__":
    main()
