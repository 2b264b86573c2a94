"""Kills the controller of a study, trials, or both, at random moments; counts what was lost or done twice.

    python benchmarks/study_kills.py --out /tmp/study-kills

Studies of twelve trials, two at a time, one after another until there were so many kills: random search, and hyperband,
whose promoted trials go on from checkpoints. Jobs, processes and signals are real; the engine is the stand-in of the
tests, whose training takes a second and whose loss is a formula. A killed controller is started again; what a kill does
to a trial is the study's to repair. Every table is compared with that of the same study without kills.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACES = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/automl")]
sys.path[:0] = PLACES

from ledger import Ledger, arguments, table
from small_studies import history, outcome, write_study

from vidqa.contract.environment import adopt, child_environment
from vidqa.jobs import records
from vidqa.platforms.processes import Identity, job_processes, supervisors
from vidqa.automl.journal import controller_of

ALGORITHMS = ("random", "hyperband")
KINDS = ("controller", "trial", "both")
TRIALS, TINY_TRIALS = 12, 3
RUNGS = ("steps.shortest=2", "steps.longest=8", "steps.reduction=2")
ENDED = ("complete", "pruned")
MOST_S = 600.0  # for a study


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    out, chance = options.out.absolute(), random.Random(options.seed)
    kills, trials = (6, TINY_TRIALS) if options.tiny else (options.kills, TRIALS)
    adopt({"VIDQA_STATE_DIR": str(out / "state"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    ledger, left = Ledger("study_kills", options), kills
    whole = {}
    for name in ALGORITHMS:
        study = planned(out / f"whole-{name}", name, trials)
        ledger.add({"study": study.parent.name, **carried_out(study, 0, chance)})
        whole[name] = outcome(history(study))
    while left > 0:
        name = ALGORITHMS[len(ledger.rows) % len(ALGORITHMS)]
        study = planned(out / f"killed-{len(ledger.rows)}-{name}", name, trials)
        row = carried_out(study, left, chance)
        left -= row["kills"]
        ledger.add({"study": study.parent.name, **row, "same_table": outcome(history(study)) == whole[name]})
    print(table(ledger.rows))


def planned(folder: Path, name: str, trials: int) -> Path:
    rungs = RUNGS if name == "hyperband" else ()
    return write_study(folder, "limits.retries=100", *rungs, manner="slow", algorithm=name, max_trials=trials)


def carried_out(study: Path, most: int, chance: random.Random) -> dict[str, Any]:
    """Carry a study to its end under at most so many kills."""
    began, killed = time.monotonic(), Counter[str]()
    words = [sys.executable, str(ROOT / "tests/automl/small_studies.py"), str(study)]
    controller = None
    while not history(study).finished:
        assert time.monotonic() < began + MOST_S, f"the study does not end: {study}"
        if controller is None or controller.poll() is not None:
            controller = begun(words, study)
        if killed.total() >= most:
            controller.wait(MOST_S)
            continue
        moment = time.monotonic() + chance.uniform(0.2, 4.0)
        while controller.poll() is None and time.monotonic() < moment:
            time.sleep(0.02)
        if controller.poll() is None:
            killed[kill(chance.choice(KINDS), controller, study, chance)] += 1
    return {
        "kills": killed.total() - killed["none"],
        **{f"of_{kind}": killed[kind] for kind in KINDS},
        **counted(study),
        "s": time.monotonic() - began,
    }


def begun(words: list[str], study: Path) -> subprocess.Popen[bytes]:
    """A controller that works on the study: before, there is little to be lost."""
    with (study / "controller.log").open("ab") as log:
        process = subprocess.Popen(
            words, stderr=log, cwd=ROOT, env=child_environment(PYTHONPATH=os.pathsep.join(PLACES))
        )
    while process.poll() is None and not ((there := controller_of(study)) and there.pid == process.pid):
        time.sleep(0.02)
    return process


def kill(kind: str, controller: subprocess.Popen[bytes], study: Path, chance: random.Random) -> str:
    """Whom it hit: a trial can only be killed while one runs."""
    hit = kind != "controller" and kill_a_trial(study, chance)
    if kind == "trial":
        return "trial" if hit else "none"
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    return "both" if hit else "controller"


def kill_a_trial(study: Path, chance: random.Random) -> bool:
    """All processes of a job of the study that runs: of the training alone, or its supervisor's, too."""
    running = [each.job_id for each in of_study(study) if not each.state.is_terminal]
    chance.shuffle(running)
    for job_id in running:
        processes: list[Identity] = job_processes(job_id)
        if chance.random() < 0.5:
            processes = [*supervisors(job_id), *processes]
        for process in processes:
            process.send(signal.SIGKILL)
        if processes:
            return True
    return False


def of_study(study: Path) -> list[records.JobRecord]:
    return [each for each in records.scan()[0] if Path(each.output_dir).is_relative_to(study)]


def counted(study: Path) -> dict[str, Any]:
    """Trials without an end, jobs that the journal does not know, and specs that more than one job began with."""
    found, jobs = history(study), of_study(study)
    begun = Counter(each.spec for each in jobs if each.retry_of is None)
    known = {work.job_id for work in found.work.values()} | {each.retry_of for each in jobs}
    return {
        "trials": len(found.trials),
        "lost": sum(each.state not in ENDED for each in found.trials),
        "doubled": sum(count - 1 for count in begun.values()) + sum(each.job_id not in known for each in jobs),
        "jobs": len(jobs),
        "retried": sum(work.retries for work in found.work.values()),
    }


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
