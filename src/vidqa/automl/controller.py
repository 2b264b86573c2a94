"""The controller of a study: one process that asks the algorithm, starts jobs, and writes down what became of them.

    control(Path("study"))        returns when the study has ended or was stopped

Everything it knows stands in the journal before anything follows from it, so that it can be killed at any moment: the
next controller finds the jobs that run, loses no result and starts no trial twice.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from vidqa import __version__
from vidqa.contract.cli import note
from vidqa.contract.files import require_owned
from vidqa.contract.problem import ProblemError
from vidqa.jobs.launch import Ready
from vidqa.platforms import platform
from vidqa.automl import journal, limits, requests
from vidqa.automl.after import After
from vidqa.automl.history import TEMPLATE, Entry, History
from vidqa.automl.journal import SCHEMA_VERSION, Event, Journal, only_controller
from vidqa.automl.moves import Done, Move, Promote, Prune, Start, Wait
from vidqa.automl.places import Places
from vidqa.automl.repair import repaired
from vidqa.automl.retention import bytes_of, is_stranded, removable, remove_whole
from vidqa.automl.study import Study, open_study
from vidqa.automl.study_problems import STUDY_STUCK
from vidqa.automl.trials import Trials
from vidqa.automl.work import Jobs

BY_HAND = "agent"  # the algorithm that proposes nothing itself


def control(folder: Path, ready: Ready) -> History:
    """Carry a study on to its end, or until it is stopped; `ready` says whether a job may start. Raises STUDY_BUSY,
    STUDY_CHANGED, STUDY_JOURNAL, STUDY_FAILING, STUDY_INTERRUPTED, and what opening the study raises."""
    study = open_study(folder)
    with only_controller(folder):
        controller = Controller(study, ready)
        try:
            controller.run()
        finally:
            controller.journal.close()
    return controller.history


class Controller:
    """Whoever makes one holds the lock of the study."""

    def __init__(self, study: Study, ready: Ready) -> None:
        found = journal.read(study.folder)
        self.study, self.history = study, History(found.events)
        study.fits(self.history)
        self.worked_before, self.began = self.history.elapsed_s, time.monotonic()
        self.journal = Journal(study.folder, found)
        if found.note:
            note(f"journal: {found.note}")
        asked = study.settings.resources
        places = Places(study.settings.platform, asked.gpus, asked.trials_per_gpu)
        self.jobs = Jobs(self.history, self.append, study.settings.limits, ready, places)
        self.trials = Trials(study, self.jobs)
        self.after = After(study, self.trials)
        self.waits_since = -1  # events there were when the algorithm said that it waits

    def append(self, event: str, **fields: Any) -> Event:
        made = self.journal.append(event, self.elapsed_s, **fields)
        self.history.take(made)
        if line := _line(made):
            note(line)
        return made

    @property
    def elapsed_s(self) -> float:
        """Seconds that controllers have worked, whatever the clock says."""
        return self.worked_before + time.monotonic() - self.began

    def run(self) -> None:
        if self.history.created is None:
            self._create()
        self.append("opened", controller=journal.this_process().as_dict())
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
            rungs=[list(bracket) for bracket in self.study.algorithm.rungs],
            version=__version__,
        )

    def _reopen(self) -> None:
        """More trials than before: the search goes on, with what of it can."""
        for entry in self.history.trials:
            if is_stranded(self.history, entry):
                self.append("pruned", number=entry.number, why="its checkpoints were removed when the search had ended")
        self.append("reopened", max_trials=self.study.settings.max_trials)

    def step(self) -> bool:
        """Look once at everything, and do what follows. Whether something did."""
        before = self.journal.count
        self.take_requests()
        if self.history.stopped:
            return True
        for entry in list(self.history.running):
            self.trials.advance(entry)
        if self.trials.lacks_baseline:
            self.trials.baseline()
        if self.history.searched is None:
            limits.raise_failing(self.history, self.study.settings.limits)
            if why := limits.reached(self.study, self.history, self.elapsed_s, self.jobs):
                self._end_search(why)
            else:
                self._make_moves()
        self._tidy()
        if self.history.searched is not None and not self.history.running:
            self.after.advance(self.elapsed_s)
        return self.journal.count > before

    def take_requests(self) -> None:
        for request in requests.pending(self.study.folder):
            self._take(request)

    def _take(self, request: requests.Request) -> None:
        """Write down what somebody asks for, and let it be done; a request that was taken before is forgotten."""
        if request.name not in self.history.requests:
            self.append("taken", request=request.name, verb=request.verb, said=request.said)
            if request.verb == requests.STOP:
                requests.forget(self.study.folder, request)
                self._stop("it was asked to stop")
                return
        if request.verb == requests.TELL:
            self._told(request)
        requests.forget(self.study.folder, request)

    def _told(self, request: requests.Request) -> None:
        """A trial that somebody made elsewhere. A controller that was killed in between goes on where it was."""
        mark = {"request": request.name}
        entry = next((each for each in self.history.trials if each.extra == mark), None)
        last = len(self.study.algorithm.rungs[0]) - 1
        if entry is None:
            move = Start(request.said["values"], request.said["proposer"], rung=last, extra=mark)
            entry = self._begin(move)
        if entry.state == "running":
            self.append(
                "measured",
                number=entry.number,
                rung=last,
                steps=0,
                objectives=request.said["objectives"],
                metrics={},
                state="complete",
            )

    def _stop(self, why: str) -> None:
        self.append("stopped", why=why)
        self.jobs.stop()

    def _make_moves(self) -> None:
        """As many as there are free places; the model before training takes one. An algorithm that waits is asked again
        when something has changed."""
        most = self.study.settings.max_concurrent - self.trials.lacks_baseline
        while len(self.history.running) < most and self.waits_since != self.journal.count:
            move = self._next()
            if isinstance(move, Start):
                self._begin(move)
            elif isinstance(move, Promote):
                self.append("promoted", number=move.number, rung=move.rung)
            elif isinstance(move, Prune):
                self._prune(move.number, "the algorithm gave it up")
                continue
            elif isinstance(move, Done):
                if not self.history.running:
                    self._end_search("all trials are done")
                return
            else:
                self._wait()
                self.waits_since = self.journal.count
                return

    def _next(self) -> Move:
        """The template first, then what others enqueued, then what the algorithm says."""
        made, most = len(self.history.trials), self.study.settings.max_trials
        if self.history.template is None:
            return Start(self.study.space.default(self.study.base), TEMPLATE)
        if self.history.queue and made < most:
            asked = self.history.queue[0]
            return Start(asked.values, asked.proposer, extra={"request": asked.request})
        move = self.study.algorithm.next([entry.as_trial for entry in self.history.trials])
        return Done() if made >= most and isinstance(move, Start | Wait) and not self.history.running else move

    def _begin(self, move: Start) -> Entry:
        """Write down a new trial; its job follows. One that breaks a rule of the spec has failed."""
        number, values, wrong = len(self.history.trials), dict(move.values), ""
        repairs: tuple[str, ...] = ()
        try:
            values, repairs = repaired(self.study.space, self.study.base, move.values)
        except ProblemError as broken:
            wrong = str(broken.problems[0].message)
        self.append(
            "trial",
            number=number,
            values=values,
            proposer=move.proposer,
            rung=move.rung,
            bracket=move.bracket,
            parent=move.parent,
            extra=json.loads(json.dumps(dict(move.extra))),
            repairs=list(repairs),
        )
        if wrong:
            self.append("failed", number=number, rung=move.rung, why=f"spec: {wrong}")
        return self.history.trials[number]

    def _prune(self, number: int, why: str) -> None:
        self.jobs.give_up(f"trial-{number}/")
        self.append("pruned", number=number, why=why)

    def _wait(self) -> None:
        if not self.history.running and not self.history.queue and self.study.settings.algorithm != BY_HAND:
            raise STUDY_STUCK.error(self.study.folder, f"{self.study.settings.algorithm} waits, and nothing runs")

    def _end_search(self, why: str) -> None:
        for entry in list(self.history.running):
            self._prune(entry.number, why)
        self.append("searched", why=why)

    def _tidy(self) -> None:
        """Remove what nobody goes on from, after a list of it."""
        paths = removable(self.study, self.history)
        if not paths:
            return
        for path in paths:
            require_owned(path, self.study.folder)  # the journal names it, and anybody may have written there
            note(f"removes {path} ({bytes_of(path) / 1e6:.1f} MB)")
        self.append("removed", paths=[str(path) for path in paths])
        for path in paths:
            remove_whole(path, self.study)


def _line(event: Event) -> str:
    """An event as a line of the controller's log; empty for what nobody needs to follow."""
    kind = event["event"]
    if kind == "trial":
        values = ", ".join(
            f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
            for name, value in event["values"].items()
        )
        return f"trial {event['number']} ({event['proposer']}): {values}"
    if kind == "measured":
        shown = ", ".join(f"{value:.5g}" for value in event["objectives"])
        return f"trial {event['number']} reached {shown} after {event['steps']} steps: {event['state']}"
    if kind in ("failed", "pruned"):
        return f"trial {event['number']} {kind}: {event['why']}"
    if kind == "promoted":
        return f"trial {event['number']} goes on to rung {event['rung']}"
    if kind in ("searched", "stopped"):
        return f"{kind}: {event['why']}"
    return ""
