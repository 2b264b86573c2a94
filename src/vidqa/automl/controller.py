"""The controller of a study: one process that asks the algorithm, starts jobs, and records their results.

    python -P -m vidqa.automl.controller --study FOLDER        ends when the study has ended or was stopped

Every event is in the journal before any action that depends on it, so that the controller can be killed at any moment:
the next one finds the running jobs, loses no result and starts no trial twice.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from vidqa import __version__
from vidqa.automl import journal
from vidqa.automl.decisions import Decision, Done, Promote, Prune, Start, Trial, Wait, values_text
from vidqa.automl.finals import FinalRuns, is_stranded, removable, remove_whole
from vidqa.automl.history import TEMPLATE, History
from vidqa.automl.journal import SCHEMA_VERSION, Request, only_controller
from vidqa.automl.problems import STUDY_FAILING
from vidqa.automl.specs import repaired
from vidqa.automl.study import Study, open_study
from vidqa.automl.trial_jobs import GpuAllocator, Jobs
from vidqa.automl.trials import Trials
from vidqa.core.cli import Parser, Result, note, run
from vidqa.core.files import require_owned
from vidqa.core.journal import Event
from vidqa.core.problem import INTERNAL, ProblemError
from vidqa.jobs.launch import Ready
from vidqa.jobs.platforms import platform
from vidqa.jobs.platforms.processes import this_process
from vidqa.preflight import launch_gate

BY_HAND = "agent"  # the algorithm without proposals


def control(folder: Path, ready: Ready) -> History:
    """Run a study to its end, or until it is stopped; `ready` decides whether a job may start. Raises BUSY,
    STUDY_CHANGED, JOURNAL_BROKEN, STUDY_FAILING, STUDY_INTERRUPTED, and the problems of opening the study."""
    with controlling(folder, ready) as controller:
        controller.run()
    return controller.history


@contextmanager
def controlling(folder: Path, ready: Ready) -> Iterator[Controller]:
    """The only controller of a study inside the block. Raises BUSY, and the problems of opening the study."""
    study = open_study(folder)
    with only_controller(folder):
        yield Controller(study, ready)


class Controller:
    """The control loop of a study; its creator holds the study's lock."""

    def __init__(self, study: Study, ready: Ready) -> None:
        content = journal.read(study.folder)
        self.study, self.journal, self.history = study, content.log, content.history
        study.fits(self.history)
        self.worked_before, self.began = self.history.elapsed_s, time.monotonic()
        if content.note:
            note(f"journal: {content.note}")
        settings, place = study.settings, study.settings.resources
        gpus = GpuAllocator(settings.platform, place.gpus, place.trials_per_gpu)
        self.jobs = Jobs(self.history, self.append, settings.limits, ready, gpus)
        self.trials = Trials(study, self.jobs)
        self.finals = FinalRuns(study, self.history)
        self.waits_since = -1  # number of events in the journal when the algorithm decided to wait

    def append(self, event: str, **fields: Any) -> Event:
        entry = self.journal.append({"elapsed_s": round(self.elapsed_s, 3), "event": event, **fields})
        self.history.take(entry)
        if line := _log_line(entry):
            note(line)
        return entry

    @property
    def elapsed_s(self) -> float:
        """Seconds of work by all controllers, independent of the system clock."""
        return self.worked_before + time.monotonic() - self.began

    def run(self) -> None:
        self.study.check_comparable(self.history)
        if self.history.created is None:
            self._create()
        self.append("opened", controller=this_process().as_dict(), data=self.study.data_hashes)
        if self.study.settings.max_trials > self.history.max_trials:
            self._reopen()
        poll_s = platform(self.study.settings.platform).poll_s
        try:
            while not (self.history.finished or self.history.stopped):
                if not self.step():
                    time.sleep(poll_s)
        except ProblemError as wrong:
            self._stop(f"{wrong.problems[0].code}: {wrong.problems[0].message}")
            raise

    def _create(self) -> None:
        self.append(
            "created",
            schema_version=SCHEMA_VERSION,
            fingerprint=self.study.fingerprint,
            settings=self.study.settings.model_dump(mode="json"),
            space=self.study.space_dict,
            rungs=self.study.rungs,
            version=__version__,
        )

    def _reopen(self) -> None:
        """Reopen an extended study: the search continues with the trials that still can."""
        for trial in self.history.trials:
            if is_stranded(self.history, trial):
                self.append("pruned", number=trial.number, why="its checkpoints were removed when the search had ended")
        self.append("reopened", max_trials=self.study.settings.max_trials, rungs=self.study.rungs)

    def step(self) -> bool:
        """Poll all jobs and requests once and act on them. Returns whether anything happened."""
        before = len(self.journal.events)
        self.take_requests()
        if self.history.stopped:
            return True
        for trial in list(self.history.running):
            self.trials.advance(trial)
        self.trials.advance_baseline()
        if self.history.searched is None:
            self._raise_failing()
            if why := self._limit_reached():
                self._end_search(why)
            else:
                self._decide()
        self._remove_unused()
        if self.history.searched is not None and not self.history.running:
            self.finals.advance(self.trials, self.elapsed_s)
        return len(self.journal.events) > before

    def take_requests(self) -> None:
        """Record the requests in the inbox, then act on them; an already recorded one is only removed."""
        folder = self.study.folder
        for request in journal.pending_requests(folder):
            if request.name not in self.history.requests:
                self.append("taken", request=request.name, verb=request.verb, said=request.content)
                if request.verb == journal.STOP:
                    journal.remove_request(folder, request)
                    self._stop("it was asked to stop")
                    continue
            if request.verb == journal.TELL:
                self._add_told_trial(request)
            journal.remove_request(folder, request)

    def _add_told_trial(self, request: Request) -> None:
        """Add a trial that was run elsewhere. After a kill in between, the next controller completes it."""
        mark = {"request": request.name}
        trial = next((trial for trial in self.history.trials if trial.extra == mark), None)
        last = len(self.study.algorithm.rungs[0]) - 1
        if trial is None:
            trial = self._begin(Start(request.content["values"], request.content["proposer"], rung=last, extra=mark))
        if trial.state == "running":
            result = {"rung": last, "steps": 0, "objectives": request.content["objectives"], "metrics": {}}
            self.append("measured", number=trial.number, state="complete", **result)

    def _stop(self, why: str) -> None:
        self.append("stopped", why=why)
        self.jobs.stop()

    def _raise_failing(self) -> None:
        """Raise STUDY_FAILING with the common reason of the last failures, or with all of them."""
        most = self.study.settings.limits.failures_in_a_row
        row = self.history.failures[-most:]
        if len(row) < most:
            return
        reasons = {_failure_class(why) for why in row}
        shared = f"all for one reason ({reasons.pop()}), the last: {row[-1]}" if len(reasons) == 1 else "; ".join(row)
        raise STUDY_FAILING.error("trials", f"{len(row)} trials in a row failed, {shared}")

    def _limit_reached(self) -> str:
        """The limit that ends the search now, in words; empty if none is reached."""
        limits, goal = self.study.settings.limits, self.study.goal
        if limits.wall_hours is not None and self.elapsed_s >= limits.wall_hours * 3600:
            return f"{limits.wall_hours:g} hours are over"
        if limits.gpu_hours is not None and self.jobs.gpu_seconds() >= limits.gpu_hours * 3600:
            return f"{limits.gpu_hours:g} GPU hours are used"
        losses = [goal.loss(trial.measured[-1].objectives[0]) for trial in self.history.completed]
        if limits.target is not None and losses and min(losses) <= goal.loss(limits.target):
            return f"a trial reached the target {limits.target:g}"
        no_better = len(losses) - 1 - losses.index(min(losses)) if losses else 0
        if limits.no_progress is not None and no_better >= limits.no_progress:
            return f"{limits.no_progress} trials in a row were no better"
        return ""

    def _decide(self) -> None:
        """Carry out decisions while slots are free; the baseline evaluation takes one. An algorithm that waits is asked
        again after the next event."""
        slots = self.study.settings.max_concurrent - self.trials.lacks_baseline
        while len(self.history.running) < slots and self.waits_since != len(self.journal.events):
            decision = self._next()
            if isinstance(decision, Start):
                self._begin(decision)
            elif isinstance(decision, Promote):
                self.append("promoted", number=decision.number, rung=decision.rung)
            elif isinstance(decision, Prune):
                self._prune(decision.number, "the algorithm stopped it")
            elif isinstance(decision, Done):
                if not self.history.running:
                    self._end_search("all trials are done")
                return
            else:
                self._check_wait()
                self.waits_since = len(self.journal.events)

    def _next(self) -> Decision:
        """The next decision: the template, then enqueued values, then the algorithm's."""
        count, most = len(self.history.trials), self.study.settings.max_trials
        if self.history.template is None:
            return Start(self.study.space.default(self.study.base), TEMPLATE)
        if self.history.queue and count < most:
            return self.history.queue[0]
        decision = self.study.algorithm.next(self.history.trials)
        is_full = count >= most and isinstance(decision, Start | Wait) and not self.history.running
        return Done() if is_full else decision

    def _begin(self, start: Start) -> Trial:
        """Record a new trial; its job follows. A trial that breaks a rule of the spec is recorded as failed."""
        number, values, broken_rule = len(self.history.trials), dict(start.values), ""
        repairs: tuple[str, ...] = ()
        try:
            values, repairs = repaired(self.study.space, self.study.base, start.values)
        except ProblemError as broken:
            broken_rule = str(broken.problems[0].message)
        self.append(
            "trial",
            number=number,
            values=values,
            proposer=start.proposer,
            rung=start.rung,
            bracket=start.bracket,
            parent=start.parent,
            extra=json.loads(json.dumps(dict(start.extra))),
            repairs=list(repairs),
        )
        if broken_rule:
            self.append("failed", number=number, rung=start.rung, why=f"spec: {broken_rule}")
        return self.history.trials[number]

    def _prune(self, number: int, why: str) -> None:
        self.jobs.cancel_work(f"trial-{number}/")
        self.append("pruned", number=number, why=why)

    def _check_wait(self) -> None:
        if not self.history.running and not self.history.queue and self.study.settings.algorithm != BY_HAND:
            message = f"{self.study.settings.algorithm} waits for results, and nothing runs"
            remedy = "enqueue values (python scripts/run_automl.py enqueue), or choose another algorithm, and report it"
            raise INTERNAL.error(self.study.folder, message, remedy)

    def _end_search(self, why: str) -> None:
        for trial in list(self.history.running):
            self._prune(trial.number, why)
        self.append("searched", why=why)

    def _remove_unused(self) -> None:
        """Remove checkpoints and exports that no trial resumes from, after recording them."""
        paths = removable(self.study, self.history)
        if not paths:
            return
        for path in paths:
            require_owned(path, self.study.folder)  # the path is from the journal, which others may have edited
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            note(f"removes {path} ({size / 1e6:.1f} MB)")
        self.append("removed", paths=[str(path) for path in paths])
        for path in paths:
            remove_whole(path, self.study)


def _failure_class(why: str) -> str:
    """The class of a failure, and the code of its problem if it has one."""
    match = re.match(r"\w+(: [A-Z]+(_[A-Z]+)+)?", why)
    return match[0] if match else why


def _log_line(event: Event) -> str:
    """An event as a line of the controller's log; empty for minor ones."""
    kind = event["event"]
    if kind == "trial":
        return f"trial {event['number']} ({event['proposer']}): {values_text(event['values'])}"
    if kind == "measured":
        objectives = ", ".join(f"{value:.5g}" for value in event["objectives"])
        return f"trial {event['number']} reached {objectives} after {event['steps']} steps: {event['state']}"
    if kind in ("failed", "pruned"):
        return f"trial {event['number']} {kind}: {event['why']}"
    if kind == "promoted":
        return f"trial {event['number']} continues to rung {event['rung']}"
    if kind in ("searched", "stopped"):
        return f"{kind}: {event['why']}"
    return ""


# --- the program ----------------------------------------------------------------------------------------------------


def main(options: argparse.Namespace) -> Result:
    signal.signal(signal.SIGTERM, _interrupt)
    history = control(options.study, launch_gate.ready)
    return Result({"finished": history.finished, "stopped": history.stopped, "winner": history.winner})


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Exit without stopping the jobs; the next controller finds them."""
    raise KeyboardInterrupt


parser = Parser(
    "Run the controller of a study to its end. scripts/run_automl.py start does this in the background.",
    ["python -P -m vidqa.automl.controller --study study"],
)
parser.add_argument("--study", type=Path, required=True, help="study folder of scripts/run_automl.py")

if __name__ == "__main__":
    sys.exit(run(parser, main))
