"""The engine's entry point, started by torchrun with one process per GPU.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --spec S.toml --run-dir RUN

Exit codes are those of every script; status.json in the run folder carries them too, because torchrun's own exit code
says only that a process failed.
"""

from __future__ import annotations

import argparse
import gc
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vidqa import actions
from vidqa.contract.environment import child_environment, rank, redacted
from vidqa.contract.problem import INTERNAL, Exit, Problem, ProblemError, exit_code_of
from vidqa.contract.run_folder import RunFolder
from vidqa.engine.ending import leave
from vidqa.engine.problems import ENGINE_OUT_OF_MEMORY, unwritable
from vidqa.engine.signals import STOP_SIGNALS
from vidqa.spec import load
from vidqa.spec.keys import with_values

REPORT_S = 60.0  # for the report of a training, which takes less than a second


def main() -> int:
    parser = argparse.ArgumentParser(description="Carry out one action of a spec in a run folder.")
    parser.add_argument("action", choices=actions.names())
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument(
        "--go-on", action="store_true", help="go on with what an earlier attempt left in the run folder"
    )
    parser.add_argument(
        "--prove", action="store_true", help="train nothing; compare losses with and without shared videos"
    )
    options = parser.parse_args()
    run = RunFolder(options.run_dir)
    try:
        action = actions.action(options.action)
    except ProblemError as unknown:
        return _fail(run, "", unknown.problems)
    if options.prove and not action.proof:
        parser.error(f"--prove is not for {action.name}")
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        if rank() == 0:
            run.write_status("RUNNING", message="starting")  # how an earlier attempt ended no longer counts
        spec = load(options.spec, options.action)
        program = _program(action.proof if options.prove else action.program)
        code = program(going_on(spec, run) if options.go_on else spec, run)
    except ProblemError as stopped:
        return _fail(run, action.page, stopped.problems)
    except OSError as failed:
        return _fail(run, action.page, [unwritable(failed)])
    except Exception as bug:  # noqa: BLE001  the last place before torchrun; the log keeps the traceback
        if run.read_status().get("state") == "ERROR":  # another rank failed first, and this one lost it
            print(f"rank {rank()} ends because another rank did: {type(bug).__name__}", file=sys.stderr)
            return int(Exit.JOB_FAILED)
        print(redacted(traceback.format_exc()), file=sys.stderr)
        return _fail(run, action.page, [_problem_of(bug, run)])
    if rank() == 0:
        last = run.read_status()
        state = "COMPLETE" if code == Exit.OK else "STOPPED"
        steps = {key: last.get(key, 0) for key in ("step", "total_steps")}
        run.write_status(state, **steps, message=state.lower(), exit_code=code)
        if not options.prove:
            report(run, action.page)
            if state == "COMPLETE" and action.uploads(spec):
                upload(run)
    return code


def going_on(spec: Any, run: RunFolder) -> Any:
    """The spec of another attempt: platforms start a job again in its run folder after a node failed or its time was
    up. It resumes from the run's own newest checkpoint, or keeps the answers there are; a first attempt has neither."""
    resuming = actions.action_for(spec).resuming
    return with_values(spec, {resuming.key: True}) if resuming and resuming.begun(run) else spec


def upload(run: RunFolder) -> None:
    """What the spec asks for, in a process of its own: whatever becomes of it, the run stays complete. Whoever asks
    the run to stop now stops the upload; scripts/upload.py goes on with it."""
    program = [sys.executable, "-P", "-m", "vidqa.storage.upload", str(run.path)]
    # Weights were fetched before the job, which is offline therefore; an upload cannot be.
    sending = subprocess.Popen(program, env=child_environment(HF_HUB_OFFLINE="0"))
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: sending.terminate())
    if sending.wait():
        print(f"the upload is not complete; again: python scripts/upload.py {run.path}", file=sys.stderr, flush=True)


def report(run: RunFolder, page: str) -> None:
    """Write the page of a run by the module `page`, if its action has one, in a process of its own: whatever becomes of
    it, the run ends as it has ended."""
    if not page:
        return
    program = [sys.executable, "-P", "-m", page, str(run.path)]
    try:
        subprocess.run(program, stdin=subprocess.DEVNULL, timeout=REPORT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as failed:
        print(f"the report was not written: {failed}", file=sys.stderr, flush=True)


def _program(named: str) -> Callable[[Any, RunFolder], int]:
    """Import what carries out an action, and keep Python's garbage collector from what the libraries made: looking
    through it takes a tenth of the import, and later a third of a second whenever it falls into a step."""
    gc.disable()
    program = actions.resolve(named)
    gc.freeze()
    gc.enable()
    return program


def _problem_of(bug: Exception, run: RunFolder) -> Problem:
    if type(bug).__name__ == "OutOfMemoryError":
        return ENGINE_OUT_OF_MEMORY.at(run.path, str(bug).splitlines()[0])
    return INTERNAL.at(run.path, f"{type(bug).__name__}: {bug}", f"report it with {run.path / 'log.txt'}")


def _fail(run: RunFolder, page: str, problems: list[Problem]) -> int:
    """Say what went wrong in the log, in problems.json and in status.json; the first rank to fail writes them."""
    code = exit_code_of(problems)
    run.sweep()  # on a full disk, what was being written makes room to tell of the end
    for problem in problems[:50]:
        print(problem, file=sys.stderr, flush=True)
    try:
        if run.read_status().get("state") not in ("ERROR", "COMPLETE"):
            run.write_problems(problems)
            state = "STOPPED" if code == Exit.NOT_DONE else "ERROR"
            run.write_status(state, message=f"{problems[0].code}: {problems[0].message}", exit_code=code)
            if (run.path / "plan.json").exists():  # it had begun
                report(run, page)
    except OSError as unwritable:
        print(f"the run folder cannot be written: {unwritable}", file=sys.stderr)
    return code


def _leave(code: int) -> None:
    """End this process. A rank that failed must not wait for the others in the farewell of a broken group."""
    if code not in (Exit.OK, Exit.NOT_DONE):
        leave(code, orderly=False)
    from vidqa.engine.distributed import stop

    # All is saved and said: a signal that comes now has nothing to stop.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    stop()
    leave(0)  # for torchrun, a run that saved and stopped did not fail; status.json says 6


if __name__ == "__main__":
    _leave(main())
