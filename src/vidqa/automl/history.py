"""The state of a study: its trials, their jobs, and the requests of others, from the events of its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vidqa.automl.decisions import Goal, Measured, Trial

BASELINE = "baseline"
TEMPLATE = "template"  # proposer of the template's own values
Event = dict[str, Any]


@dataclass
class Work:
    """One piece of work and its job. `gpus` are those of this machine that it got, each shared by `places` jobs;
    `ended` is its last event; `retries` counts how often its platform ended it."""

    job_id: str = ""
    gpus: tuple[str, ...] = ()
    places: int = 1
    retries: int = 0
    ended: Event | None = None


@dataclass(frozen=True)
class Enqueued:
    """Values that somebody enqueued, and the proposer."""

    request: str
    values: dict[str, Any]
    proposer: str


class History:
    """Folds events into state; `take` adds one. An event that refers to a missing trial or rung is a LookupError or
    ValueError, and leaves the state unusable."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.created: Event | None = None
        self.trials: list[Trial] = []
        self.work: dict[str, Work] = {}
        self.scores: dict[str, dict[str, Any]] = {}  # metrics of baseline, re-runs and tests, by work
        self.queue: list[Enqueued] = []
        self.requests: set[str] = set()
        self.removed: set[str] = set()
        self.skipped: dict[str, str] = {}
        self.searched: str | None = None  # why the search ended
        self.stopped: str | None = None  # why it was interrupted, until a controller opens it again
        self.rungs: list[list[int]] = []  # optimizer steps at the end of each rung, by bracket
        self.max_trials = 0
        self.winner: int | None = None
        self.finished = False
        self.failures: list[str] = []  # in a row, since the last result or the last start of a controller
        self.completed: list[Trial] = []  # that reached their last rung, in the order of their ends
        self.elapsed_s, self.seconds, self.gpu_seconds = 0.0, 0.0, 0.0
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        self.elapsed_s = max(self.elapsed_s, float(event["elapsed_s"]))
        kind = {"taken": "request"}.get(event["event"], event["event"])
        getattr(self, f"_{kind}")(event)

    @property
    def template(self) -> Trial | None:
        """The trial of the template's own values, which comes first."""
        return next((trial for trial in self.trials if trial.proposer == TEMPLATE), None)

    @property
    def running(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "running"]

    def ranked(self, goal: Goal) -> list[Trial]:
        """Measured trials that did not fail, the best first; those of a higher rung first, since values of different
        rungs do not compare."""
        sign = -1 if goal.direction == "maximize" else 1

        def rank(trial: Trial) -> tuple[float, float, int]:
            last = trial.measured[-1]
            return -self.rungs[trial.bracket][last.rung], sign * last.objectives[0], trial.number

        return sorted((trial for trial in self.trials if trial.measured and trial.state != "failed"), key=rank)

    def _created(self, event: Event) -> None:
        if self.created:
            raise ValueError("the study was created before")
        self.created, self.rungs = event, event["rungs"]
        self.max_trials = event["settings"].get("max_trials", 0)

    def _opened(self, event: Event) -> None:
        self.stopped, self.failures = None, []

    def _request(self, event: Event) -> None:
        self.requests.add(event["request"])
        content = event["said"]
        if event["verb"] == "enqueue":
            self.queue.append(Enqueued(event["request"], content["values"], content["proposer"]))

    def _trial(self, event: Event) -> None:
        if event["number"] != len(self.trials):
            raise ValueError(f"trial {event['number']} comes after {len(self.trials)} trials")
        self._check_rung(event["bracket"], event["rung"])
        if event["parent"] is not None:
            self._trial_of(event["parent"])
        request = event["extra"].get("request")
        self.queue = [entry for entry in self.queue if entry.request != request]
        names = ("number", "values", "proposer", "rung", "bracket", "parent", "extra", "repairs")
        self.trials.append(Trial(state="running", **{name: event[name] for name in names}))

    def _trial_of(self, number: int) -> Trial:
        if number >= len(self.trials):
            raise LookupError(f"there is no trial {number} before it")
        return self.trials[number]

    def _check_rung(self, bracket: int, rung: int) -> None:
        if bracket >= len(self.rungs) or rung >= len(self.rungs[bracket]):
            raise LookupError(f"there is no rung {rung} of bracket {bracket}")

    def _promoted(self, event: Event) -> None:
        trial = self._trial_of(event["number"])
        self._check_rung(trial.bracket, event["rung"])
        trial.rung, trial.state = event["rung"], "running"

    def _pruned(self, event: Event) -> None:
        trial = self._trial_of(event["number"])
        trial.state, trial.why = "pruned", event["why"]

    def _submitted(self, event: Event) -> None:
        self.work[event["work"]] = Work(event["job_id"], tuple(event["gpus"]), event.get("places", 1))

    def _retried(self, event: Event) -> None:
        work = self.work.setdefault(event["work"], Work())
        work.job_id, work.retries = event["job_id"], work.retries + bool(event["why"])

    def _ended(self, event: Event) -> None:
        self.work.setdefault(event["work"], Work()).ended = event
        self.seconds += event["seconds"]
        self.gpu_seconds += event["gpu_seconds"]

    def _measured(self, event: Event) -> None:
        trial = self._trial_of(event["number"])
        self._check_rung(trial.bracket, event["rung"])
        trial.measured = (*trial.measured, Measured(event["rung"], event["steps"], tuple(event["objectives"])))
        trial.metrics, trial.state = event["metrics"], event["state"]
        self.failures = []
        if trial.state == "complete":
            self.completed.append(trial)

    def _failed(self, event: Event) -> None:
        trial = self._trial_of(event["number"])
        trial.state, trial.why = "failed", event["why"]
        self.failures.append(event["why"])

    def _scored(self, event: Event) -> None:
        self.scores[event["work"]] = event["metrics"]

    def _removed(self, event: Event) -> None:
        self.removed |= set(event["paths"])

    def _searched(self, event: Event) -> None:
        self.searched = event["why"]

    def _skipped(self, event: Event) -> None:
        self.skipped[event["what"]] = event["why"]

    def _reopened(self, event: Event) -> None:
        """More trials, also for a finished study, and the brackets that they need."""
        self.max_trials, self.rungs = event["max_trials"], event.get("rungs") or self.rungs
        self.searched, self.winner, self.finished = None, None, False

    def _stopped(self, event: Event) -> None:
        self.stopped = event["why"]

    def _finished(self, event: Event) -> None:
        if event["winner"] is not None:
            self._trial_of(event["winner"])
        self.winner, self.finished = event["winner"], True
