"""Launches jobs, and cancels them or kills their launcher at random moments; then nothing is left and records are true.

    PYTHONPATH=tests python -m tests.platforms.random_cancels local --count 100
    PYTHONPATH=tests python -m tests.platforms.random_cancels docker --count 100

The engine is the stand-in. Exits with 1 and says what was wrong where anything was.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.platforms.conformance import Rig
from tests.platforms.daemons import docker_address, engine_image
from tests.platforms.specs import write_spec_in
from tests.platforms.test_docker_conformance import rig_of
from tests.platforms.test_local_conformance import RIG
from vidqa.core.problem import Exit
from vidqa.core.run_folder import RunFolder
from vidqa.jobs import records
from vidqa.jobs import watch as jobs
from vidqa.jobs.platforms._base import State
from vidqa.jobs.records import JobRecord

MANNERS = ("hang", "hang", "complete", "stubborn", "fail")
ENOUGH_S = 600.0


def rounds(
    rig: Rig, folder: Path, count: int, seed: int, at_once: int, within_s: float
) -> tuple[Counter[str], list[str]]:
    """What became of the jobs, and everything that was wrong."""
    chance = random.Random(seed)
    plans = [(number, chance.randrange(1 << 30)) for number in range(count)]
    with ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(lambda plan: one_round(rig, folder, *plan, within_s), plans))
    return Counter(outcome for outcome, _ in results), [wrong for _, wrongs in results for wrong in wrongs]


def one_round(rig: Rig, folder: Path, number: int, seed: int, within_s: float) -> tuple[str, list[str]]:
    chance = random.Random(seed)
    manner = chance.choice(MANNERS)
    spec = write_spec_in(folder, manner, name=f"{number}", more=f'[train.ckpt]\ns3_prefix = "{number}"')
    launcher = rig.launcher(spec)
    if chance.random() < 0.8:  # of the others, some are killed before they have written their record
        until_recorded(spec, launcher)
    time.sleep(chance.uniform(0, within_s))
    if killed := chance.random() < 0.4 and launcher.poll() is None:
        os.killpg(launcher.pid, signal.SIGKILL)
    record = record_of(spec)
    patience = 1.0 if manner == "stubborn" else ENOUGH_S  # it would only be waited for
    if record and chance.random() < 0.8:
        jobs.cancel(record.job_id, chance.choice((0.0, 0.5, patience)))
    said, _ = launcher.communicate()
    record = record_of(spec)
    if record is None:
        return "killed before its record", [] if killed else [
            f"it launched nothing and ended with {launcher.returncode}: {said}"
        ]
    state, killed_twice = settled(record, patience)
    return state.state + (" at the second try" if killed_twice else ""), untruths(rig, state)


def record_of(spec: Path) -> JobRecord | None:
    return next((record for record in records.scan()[0] if record.spec == str(spec)), None)


def until_recorded(spec: Path, launcher: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while record_of(spec) is None and launcher.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def settled(record: JobRecord, grace_s: float) -> tuple[JobRecord, bool]:
    """The job at its end; one that hangs because nobody has cancelled it, or its launcher died meanwhile, is ended."""
    record = jobs.wait(record, 1.0)
    again = not record.state.is_terminal
    if again:
        record = jobs.cancel(record.job_id, grace_s)
    return jobs.wait(record, ENOUGH_S), again


def untruths(rig: Rig, record: JobRecord) -> list[str]:
    said = RunFolder(Path(record.run_dir)).read_status()
    saved = (Path(record.run_dir) / "saved-by-rank-0").exists()  # before the engine says so: killed in between, it has
    said_so = said.get("state") == State.STOPPED
    wrong = ["its engine says that it saved, and has not"] if said_so and not saved else []
    if not record.state.is_terminal:
        wrong.append("it did not end")
    if left := rig.remains(record):
        wrong.append(f"it left {left}")
    if record.state == State.COMPLETE and said.get("state") != State.COMPLETE:
        wrong.append(f"its engine says {said}")
    if record.state == State.CANCELED and (record.exit_code == Exit.NOT_DONE) != said_so:
        wrong.append(f"it says exit code {record.exit_code}, and its engine {said}")
    if record.state in (State.CANCELED, State.STOPPED) and not record.cancel_requested:
        wrong.append("nobody had cancelled it")
    if record.state == State.ERROR and not record.failure:
        wrong.append("no failure class")
    return [f"{record.job_id} {record.state} ({record.message}): {each}" for each in wrong]


@contextmanager
def docker_rig(folder: Path) -> Iterator[Rig]:
    with docker_address() as address:
        os.environ["DOCKER_HOST"] = address
        yield rig_of(folder, address, engine_image(address))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("platform", choices=["local", "docker"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--within", type=float, default=4.0, metavar="S", help="latest moment after the launch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(VIDQA_STATE_DIR=str(folder / "state"), VIDQA_CACHE_DIR=str(folder / "cache"))
        how = {"count": options.count, "seed": options.seed, "at_once": options.at_once, "within_s": options.within}
        with docker_rig(folder) if options.platform == "docker" else nullcontext(RIG) as rig:
            outcomes, wrong = rounds(rig, folder, **how)
        print(*wrong, sep="\n", file=sys.stderr)
        print(f"{options.platform}: {dict(outcomes)}, {len(wrong)} wrong")
        return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
