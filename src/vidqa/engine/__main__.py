"""The engine's entry point, started by torchrun with one process per GPU.

    python -P -m vidqa.engine.torchrun --standalone --nproc-per-node 2 -m vidqa.engine train --spec S.toml --run-dir RUN

Exit codes are those of the scripts. status.json has them too: torchrun's exit code only says that a process failed.
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

from vidqa.core import actions
from vidqa.core.environment import child_environment, rank, redacted, take_parent
from vidqa.core.parent_death_signal import end_with
from vidqa.core.problem import INTERNAL, Exit, Problem, ProblemError, exit_code_of
from vidqa.core.run_folder import RunFolder
from vidqa.engine.problems import ENGINE_OUT_OF_MEMORY, ENGINE_RANK_LOST, unwritable
from vidqa.engine.signals import STOP_SIGNALS, hard_exit
from vidqa.spec import load
from vidqa.spec.keys import with_values
from vidqa.spec.models import Spec

REPORT_TIMEOUT_S = 60.0  # seconds; a report takes less than one


def main() -> int:
    """Run the action, write the outcome into status.json, and return the exit code."""
    if parent := take_parent():
        end_with(parent)
    parser = argparse.ArgumentParser(description="Run one action of a spec in a run folder.")
    parser.add_argument("action", choices=actions.names())
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--go-on", action="store_true", help="continue an earlier attempt in the run folder")
    parser.add_argument("--verify", action="store_true", help="do not train; run the check of the action")
    options = parser.parse_args()
    run = RunFolder(options.run_dir)
    try:
        action = actions.action(options.action)
    except ProblemError as unknown:
        return _end_with_problems(run, "", unknown.problems)
    if options.verify and not action.proof:
        parser.error(f"--verify is not for {action.name}")
    report_module = "" if options.verify else action.report_module
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        if rank() == 0:
            run.write_status("RUNNING", message="starting")  # replaces the status of an earlier attempt
        spec = load(options.spec, options.action)
        program = _program(action.proof if options.verify else action.program)
        code = program(with_resuming(spec, run) if options.go_on else spec, run)
    except ProblemError as stopped:
        return _end_with_problems(run, report_module, stopped.problems)
    except OSError as failed:
        return _end_with_problems(run, report_module, [unwritable(failed)])
    except Exception as bug:  # noqa: BLE001  the last handler before torchrun; the log keeps the traceback
        if run.read_status().get("state") == "ERROR":  # another rank failed first, and this one lost the connection
            print(f"rank {rank()} ends because another rank did: {type(bug).__name__}", file=sys.stderr)
            return int(Exit.JOB_FAILED)
        print(redacted(traceback.format_exc()), file=sys.stderr)
        return _end_with_problems(run, report_module, [_problem_of_exception(bug, run)])
    if rank() == 0:
        state = "COMPLETE" if code == Exit.OK else "STOPPED"
        run.write_status(state, exit_code=code, unless=("ERROR",))
        if not options.verify:
            write_report(run, report_module)
            if state == "COMPLETE" and action.uploads(spec):
                run_upload(run)
    return code


def with_resuming(spec: Spec, run: RunFolder) -> Any:
    """The spec with its resume key set if an earlier attempt left a checkpoint or answers in the run folder, else the
    spec unchanged: a platform restarts a job with the command of its first attempt."""
    resuming = actions.action_for(spec).resuming
    return with_values(spec, {resuming.key: True}) if resuming and resuming.can_resume(run) else spec


def run_upload(run: RunFolder) -> None:
    """Upload the run as its spec says, in a subprocess: the run stays complete if that fails. From now on SIGTERM and
    SIGUSR1 stop only the upload, which scripts/upload.py can continue."""
    program = [sys.executable, "-P", "-m", "vidqa.jobs.upload", str(run.path)]
    # The job runs offline, since weights are already downloaded; the upload must not.
    process = subprocess.Popen(program, env=child_environment(HF_HUB_OFFLINE="0"))
    for stop_signal in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(stop_signal, lambda *_: process.terminate())
    if process.wait():
        print(f"the upload is not complete; again: python scripts/upload.py {run.path}", file=sys.stderr, flush=True)


def write_report(run: RunFolder, report_module: str) -> None:
    """Write the HTML report of a run with `report_module`, if any, in a subprocess: its failure does not change the
    outcome of the run."""
    if not report_module:
        return
    program = [sys.executable, "-P", "-m", report_module, str(run.path)]
    try:
        subprocess.run(program, stdin=subprocess.DEVNULL, timeout=REPORT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as failed:
        print(f"the report was not written: {failed}", file=sys.stderr, flush=True)


def _program(program_name: str) -> Callable[[Any, RunFolder], int]:
    """Import the program "module:name" of an action, and exempt the imported objects from garbage collection: scanning
    them takes a tenth of the import time, and later a third of a second inside a step."""
    gc.disable()
    program = actions.resolve(program_name)
    gc.freeze()
    gc.enable()
    return program


def _problem_of_exception(bug: Exception, run: RunFolder) -> Problem:
    kind, first_line = type(bug).__name__, str(bug).partition("\n")[0]
    if kind == "OutOfMemoryError":
        return ENGINE_OUT_OF_MEMORY.at(run.path, first_line)
    if kind.startswith("Dist") or "/gloo/" in first_line:  # of torch.distributed
        return ENGINE_RANK_LOST.at(run.path, first_line)
    return INTERNAL.at(run.path, f"{kind}: {bug}", f"report it with {run.path / 'log.txt'}")


def _end_with_problems(run: RunFolder, report_module: str, problems: list[Problem]) -> int:
    """Print the problems, write them into problems.json and status.json unless another rank has failed first, and
    return the exit code."""
    code = exit_code_of(problems)
    run.sweep()  # on a full disk, removing partial files makes room for the status
    for problem in problems[:50]:
        print(problem, file=sys.stderr, flush=True)
    try:
        state, message = "STOPPED" if code == Exit.NOT_DONE else "ERROR", f"{problems[0].code}: {problems[0].message}"
        ended = ("ERROR", "COMPLETE")
        is_first = run.write_status(state, message=message, exit_code=code, unless=ended, problems=problems)
        if is_first and (run.path / "plan.json").exists():  # the run had begun
            write_report(run, report_module)
    except OSError as unwritable:
        print(f"the run folder cannot be written: {unwritable}", file=sys.stderr)
    return code


def _exit_process(code: int) -> None:
    """End this process. A failed rank must not wait for the others when the process group is destroyed."""
    if code not in (Exit.OK, Exit.NOT_DONE):
        hard_exit(code, orderly=False)
    from vidqa.engine.distributed import stop

    # Everything is saved: ignore signals from now on.
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)
    stop()
    hard_exit(0)  # 0 for torchrun: a run that saved and stopped did not fail; status.json has 6


if __name__ == "__main__":
    _exit_process(main())
