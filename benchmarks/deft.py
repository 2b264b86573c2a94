"""The DEFT loop on a planted weakness, by seed: accuracy with mined samples, and with as many random ones.

    python benchmarks/deft.py --out DIR --seeds 0 1 2

Each seed is a separate demo: other clips, another tiny model, trained from random weights, then the loop with its
control. The figures are accuracies by kind on the selection set, used by the loop's decisions, and on the KPI set.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from commands import build, demo, script, sets, tiny_model
from ledger import Ledger, arguments, table

SKILL_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SKILL_ROOT / "src"), str(SKILL_ROOT / "workflow")]

from demo.recipe import EVALUATE, GAIN, LOOP, POOL_CLIPS, TRAIN, TRAIN_CLIPS
from demo.summary import WEAK_KIND

EACH = 72  # evaluation clips of each event, three times those of the demo: one question is 1.4 points


def measured(folder: Path, seed: int, options: Namespace) -> dict[str, Any]:
    """Run the loop of one seed and return a summary of its report; --tiny uses a fiftieth of the demo's clips."""
    share = 0.02 if options.tiny else 1.0
    data, model, runs = folder / "data", folder / "model", folder / "runs"
    sizes = {"clips": int(share * TRAIN_CLIPS), "pool": int(share * POOL_CLIPS), "each": EACH}
    if not (data / "pool" / "annotations.json").is_file():  # written last; trainings of an earlier call are reused
        demo(data, seed, **sizes)
        tiny_model(model, data, seed, GAIN)
    train, evaluate = folder / "train.toml", folder / "evaluate.toml"
    build("train", train, TRAIN, "--train-root", data / "train", "--model", model, "--results-dir", runs)
    build("evaluate", evaluate, EVALUATE, "--eval-root", data / "eval", "--model", model, "--results-dir", runs)
    start = script("launch", "train", "--spec", train, "--platform", "local", "--wait")["run_dir"]
    rules = {**LOOP, "control": "true", "sets.kpi_looks": 2}
    places = ("--selection", data / "selection", "--pool", data / "pool", "--kpi", data / "eval")
    recipes = ("--train-spec", train, "--evaluate-spec", evaluate, "--model", start)
    loop = folder / "loop"
    script("run_deft", "init", loop, *recipes, *places, *sets(rules))
    script("run_deft", "run", loop)
    report = json.loads((loop / "report.json").read_text(encoding="utf-8"))
    rounds = [_round(loop, row) for row in report["rounds"]]
    return {"seed": seed, "ending": report["ending"], "rounds": rounds} | _kpi(report)


def _round(loop: Path, a_round: dict[str, Any]) -> dict[str, Any]:
    control = a_round["control"] or {}
    mined = loop / f"round_{a_round['round']}" / "mined" / "summary.json"
    return {
        "round": a_round["round"],
        "added": a_round["added"],
        "mined_by_kind": json.loads(mined.read_text(encoding="utf-8"))["by_kind"] if mined.is_file() else {},
        "trained_on": a_round["train_samples"],
        "accepted": a_round["accepted"],
        "mined": {kind: row["accuracy"] for kind, row in a_round["by_kind"].items()},
        "random": _kinds(control.get("run_dir")),
        "p_mined_over_random": control["comparison"]["whole"]["p_value"] if control else None,
    }


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """One line of the table: the accepted rounds of a seed, in percent of the missing kind's questions."""
    start, rounds = row["rounds"][0], row["rounds"][1:]
    accepted = [a_round for a_round in rounds if a_round["accepted"]]
    best = (accepted or [start])[-1]
    others = [kind for kind in best["mined"] if kind != WEAK_KIND]
    line = {
        "seed": row["seed"],
        "rounds": len(rounds),
        "mined": sum(sum(a_round["mined_by_kind"].values()) for a_round in rounds),
        "of the kind": sum(a_round["mined_by_kind"].get(WEAK_KIND, 0) for a_round in rounds),
        "selection before": _percent(start["mined"]),
        "after": _percent(best["mined"]),
        "random": _percent(rounds[0]["random"]) if rounds else None,
        "p": max((a_round["p_mined_over_random"] for a_round in accepted), default=None),
        "least change of others": min(100 * (best["mined"][kind] - start["mined"][kind]) for kind in others),
    }
    if row.get("kpi_after"):
        before, after = row["kpi_before"], row["kpi_after"]
        line |= {"KPI before": _percent(before), "KPI after": _percent(after)}
        line |= {"KPI, least change of others": min(100 * (after[kind] - before[kind]) for kind in others)}
    return line


def _percent(scores: dict[str, float] | None) -> float | None:
    return 100 * scores[WEAK_KIND] if scores else None


def _kpi(report: dict[str, Any]) -> dict[str, Any]:
    looks = [report["rounds"][0]["kpi"], report["final"].get("kpi")]
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
        ledger.add(measured((options.out / str(seed)).absolute(), seed, options))
        ledger.conclude([summary(row) for row in ledger.rows])
    print(table(ledger.call["told"]))


if __name__ == "__main__":
    main()
