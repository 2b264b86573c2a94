"""Kills the controller of a study, and trials, at random moments; counts what was lost or done twice.

    python benchmarks/study_kills.py --out /tmp/study-kills

A study of real trainings of two steps each, on a CPU, two at a time. Its controller is killed with SIGKILL after a
random time and started again, and at every third kill the processes of a random job are killed, too. The table that is
left is compared with that of the same study without kills.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ledger import Ledger, arguments, table
from study_tiny import ROOT, TRAIN, automl, build, python

from vidqa.contract.environment import adopt, child_environment
from vidqa.jobs import records
from vidqa.platforms._base import State
from vidqa.platforms.processes import engine_processes
from vidqa.studies.history import History
from vidqa.studies.journal import read


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    out = options.out.absolute()
    kills, trials = (4, 3) if options.tiny else (options.kills, options.trials)
    adopt({"VIDQA_STATE_DIR": str(out / "state"), "VIDQA_CACHE_DIR": str(out / "cache"), "OMP_NUM_THREADS": "1"})
    data, model = out / "data", out / "model"
    if not model.exists():
        python("-m", "vidqa.demo", "--out", data, "--clips", 12, "--seed", 0)
        corpus = ("--corpus", data / "corpus.txt", "--seed", 0)
        python("-m", "vidqa.engine.families.tiny_qwen3_vl", "--out", model, *corpus)
    build("train", out / "train.toml", "--train-root", data / "train", model, {**TRAIN, "train.max_num_steps": 2})
    ledger, rows = Ledger("study_kills", options), []
    for name, count in (("killed", kills), ("whole", 0)):
        study = planned(out, name, trials)
        row = carried_out(study, count, random.Random(options.seed))
        rows.append({"study": name, **row})
        ledger.add({**rows[-1], "outcome": outcome(study)})
    same = outcome(out / "killed") == outcome(out / "whole")
    ledger.conclude([{"same_table": same, **rows[0]}])
    print(table(rows), f"\nthe same table: {same}")


def planned(out: Path, name: str, trials: int) -> Path:
    study = out / name
    shutil.rmtree(study, ignore_errors=True)
    kept = ("--fix", "train.train_batch_per_replica=16", "--range", "train.optm_lr=1e-6..1e-2:log")
    sets = ("--set", "finals.seeds=[]", "--set", "limits.retries=100")
    words = ("--algorithm", "random", "--trials", trials, "--concurrent", 2, *kept, *sets)
    automl("plan", study, "--spec", out / "train.toml", *words)
    return study


def carried_out(study: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Carry a study to its end under so many kills."""
    began, killed = time.monotonic(), Counter[str]()
    words = [sys.executable, "-P", "-m", "vidqa.studies", "--study", str(study)]
    while not History(read(study).events).finished:
        with (study / "controller.log").open("ab") as log:
            controller = subprocess.Popen(words, stderr=log, cwd=ROOT, env=child_environment(PYTHONPATH=f"{ROOT}/src"))
        moment = time.monotonic() + chance.uniform(1.0, 8.0)
        while controller.poll() is None and (time.monotonic() < moment or killed["controller"] >= kills):
            time.sleep(0.02)
        if controller.poll() is None:
            controller.send_signal(signal.SIGKILL)
            killed["controller"] += 1
            if killed["controller"] % 3 == 0:
                killed["jobs"] += kill_a_job(chance)
        controller.wait()
    return {
        "kills": killed["controller"],
        "killed_jobs": killed["jobs"],
        **counted(study),
        "s": time.monotonic() - began,
    }


def kill_a_job(chance: random.Random) -> int:
    running = [record.job_id for record in records.scan()[0] if not record.state.is_terminal]
    processes = engine_processes(chance.choice(running)) if running else []
    for process in processes:
        process.send(signal.SIGKILL)
    return bool(processes)


def counted(study: Path) -> dict[str, Any]:
    """Trials, and jobs that no work knows or that did the work of another again."""
    found = History(read(study).events)
    of_study = [each for each in records.scan()[0] if Path(each.output_dir).is_relative_to(study)]
    runs = Counter(str(Path(each.output_dir)) for each in of_study if each.retry_of is None)
    complete = [each for each in of_study if each.state == State.COMPLETE]
    return {
        "trials": len(found.trials),
        "complete": sum(each.state == "complete" for each in found.trials),
        "lost": len({Path(each.output_dir) for each in of_study}) - len(found.trials),
        "doubled": sum(count - 1 for count in runs.values()) + len(complete) - len({each.run_dir for each in complete}),
        "retried": sum(work.retries for work in found.work.values()),
        "events": len(read(study).events),
    }


def outcome(study: Path) -> list[dict[str, Any]]:
    """The table of a study, without what depends on the moment."""
    found = History(read(study).events)
    rows = [(each.number, each.values, each.state, [m.objectives for m in each.measured]) for each in found.trials]
    return [dict(zip(("trial", "values", "state", "reached"), row, strict=True)) for row in rows]


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
