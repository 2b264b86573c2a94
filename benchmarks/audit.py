"""Planted label errors found by trained models: python benchmarks/audit.py --out DIR

The demo's clips. 5 % of all labels, in the training set and in the audited set, are replaced by another answer to the
same question. Two models of a million parameters train with different seeds and evaluate the audited
clips, which neither has seen; analyze_gaps.py --audit ranks their labels, by one model and by both. The result is
the share of planted errors in the first 10 % of the queue. Clips, errors and weights are drawn for each seed.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("src", "tests", "workflow")]

import forked
from commands import build, demo, python, tiny_model
from ledger import Ledger, arguments, table
from tiny_world import engine_command

from demo.recipe import EVALUATE, TRAIN
from vidqa.core.environment import adopt, python_path

OWN = {"batch_size": 16, "mini_batch": 16, "num_epochs": 8, "train.compile": "false"}
CLIPS, AUDITED, NUMBERS = 2_000, 600, (1, 2)
PLANTED, FIRST = 0.05, 0.1  # shares: of wrong labels; of the queue that is inspected
LIMIT_S = 1_800


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    adopt({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path()})
    ledger = Ledger("audit", options)
    for seed in options.seeds:
        for row in audited(options.out.absolute() / f"seed-{seed}", seed, options.tiny):
            ledger.add(row)
            print(table([row]), flush=True)


def audited(out: Path, seed: int, tiny: bool) -> list[dict[str, Any]]:
    """A row for the queue by one model, and one for that by all."""
    data = out / "data"
    clips, pool = (24, 24) if tiny else (CLIPS, AUDITED)
    if not (out / "planted.json").exists():
        demo(data, seed, clips=clips, pool=pool)
        for number in NUMBERS:
            tiny_model(out / f"model-{number}", data, number)
        draw = np.random.default_rng(seed)
        wrong = [planted(data / name / "annotations.json", draw) for name in ("train", "pool")]
        (out / "planted.json").write_text(json.dumps(wrong[1]))
    wrong = set(json.loads((out / "planted.json").read_text()))
    runs = [evaluated(out, data, number, tiny) for number in NUMBERS]
    labels = len(json.loads((data / "pool/annotations.json").read_text()))
    first = round(FIRST * labels)
    rows = []
    for count in NUMBERS:
        queue = queue_of(out, data, runs[:count])
        hits = len(wrong & {row["sample_id"] for row in queue[:first]})
        accuracy = [json.loads((run / "metrics.json").read_text())["accuracy"] for run in runs[:count]]
        share = {"planted": len(wrong), "found": hits, "share": hits / len(wrong)}
        rows.append({"seed": seed, "models": count, "labels": labels, "read": first, **share, "agreement": accuracy})
    return rows


def planted(place: Path, draw: np.random.Generator) -> list[str]:
    """Give PLANTED of the records another answer to the same question; returns the ids of these records."""
    records = json.loads(place.read_text())
    answers: dict[str, set[str]] = defaultdict(set)
    for record in records:
        question, answer = record["conversations"]
        answers[question["value"]].add(answer["value"])
    able = [at for at, record in enumerate(records) if len(answers[record["conversations"][0]["value"]]) > 1]
    chosen = draw.choice(able, round(PLANTED * len(records)), replace=False).tolist()
    for at in chosen:
        question, answer = records[at]["conversations"]
        answer["value"] = str(draw.choice(sorted(answers[question["value"]] - {answer["value"]})))
    place.write_text(json.dumps(records))
    return [records[at]["id"] for at in chosen]


def evaluated(out: Path, data: Path, number: int, tiny: bool) -> Path:
    """Train and evaluate a model with weights and order of seed `number`, unless done by an earlier call."""
    train, evaluation = out / f"train-{number}", out / f"evaluation-{number}"
    sets = TRAIN | OWN | {"train.seed": number, "train.train_policy.dataloader_seed": number}
    if not (train / "done").exists():
        spec, few = out / f"train-{number}.toml", {"train.max_num_steps": 3} if tiny else {}
        where = ("--train-root", data / "train", "--model", out / f"model-{number}", "--results-dir", out / "runs")
        build("train", spec, sets | few, *where)
        engine("train", spec, train)
    if not (evaluation / "done").exists():
        spec = out / f"evaluation-{number}.toml"
        where = ("--eval-root", data / "pool", "--model", train / "best", "--results-dir", out / "runs")
        build("evaluate", spec, EVALUATE, *where)
        engine("evaluate", spec, evaluation)
    return evaluation


def engine(action: str, spec: Path, run: Path) -> None:
    done = forked.run(engine_command(action, spec, run), timeout=LIMIT_S)
    if done.returncode:
        sys.exit(f"{spec}: {done.stderr[-3000:]}")
    (run / "done").touch()


def queue_of(out: Path, data: Path, runs: list[Path]) -> list[dict[str, Any]]:
    """Doubtful labels as analyze_gaps.py writes them, the most doubtful first."""
    others = [word for run in runs[1:] for word in ("--other-results", run)]
    place = ("--gaps-parquet", out / "gaps.parquet", "--kpi-ann-path", data / "pool/annotations.json")
    python("scripts/analyze_gaps.py", "--results-dir", runs[0], *place, "--audit", out / "audit.json", *others)
    return json.loads((out / "audit.json").read_text())["items"]


if __name__ == "__main__":
    main()
