"""What the journal of a study tells, event after event: its trials, their jobs, what others asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vidqa.automl.journal import Event
from vidqa.automl.moves import Goal, Measured, State, Trial

BASELINE = "baseline"
TEMPLATE = "template"  # who proposes the template's own values


@dataclass
class Work:
    """One piece of work and its job. `gpus` are those of this machine that it was given, each of which `places` jobs
    share; `ended` is its last event, once it is over; `retries` count how often its platform had ended it before."""

    job_id: str = ""
    gpus: tuple[str, ...] = ()
    places: int = 1
    retries: int = 0
    ended: Event | None = None


@dataclass
class Entry:
    """A trial: what an algorithm sees of it, and what only reports show."""

    number: int
    values: dict[str, Any]
    proposer: str
    state: State
    rung: int
    bracket: int
    parent: int | None
    extra: dict[str, Any]
    repairs: list[str]
    measured: list[Measured] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last rung that was measured
    why: str = ""

    @property
    def as_trial(self) -> Trial:
        return Trial(
            self.number,
            self.values,
            self.proposer,
            self.state,
            tuple(self.measured),
            self.rung,
            self.bracket,
            self.parent,
            self.extra,
        )

    @property
    def objective(self) -> float | None:
        """The first goal's value at the end of the last rung that was measured."""
        return self.measured[-1].objectives[0] if self.measured else None


@dataclass(frozen=True)
class Asked:
    """Values that somebody enqueued, and who did."""

    request: str
    values: dict[str, Any]
    proposer: str


class History:
    """The state that the events of a journal lead to; `take` goes on with the next one."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.created: Event | None = None
        self.trials: list[Entry] = []
        self.work: dict[str, Work] = {}
        self.scores: dict[str, dict[str, Any]] = {}  # metrics of baseline, re-runs and tests, by their work
        self.queue: list[Asked] = []
        self.requests: set[str] = set()
        self.removed: set[str] = set()
        self.skipped: dict[str, str] = {}
        self.searched: str | None = None  # why the search ended
        self.stopped: str | None = None  # why it does not go on, until a controller opens it again
        self.max_trials = 0
        self.winner: int | None = None
        self.finished = False
        self.failures: list[str] = []  # in a row, since something was measured or a controller opened the study
        self.completed: list[Entry] = []  # trials that reached their last rung, in the order in which they did
        self.elapsed_s, self.seconds, self.gpu_seconds = 0.0, 0.0, 0.0
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        self.elapsed_s = max(self.elapsed_s, float(event["elapsed_s"]))
        getattr(self, f"_{event['event']}")(event)

    @property
    def rungs(self) -> list[list[int]]:
        """Optimizer steps at the end of each rung, by bracket."""
        return self.created["rungs"] if self.created else []

    @property
    def template(self) -> Entry | None:
        """The trial of the template's own values, which comes before what the algorithm proposes."""
        return next((each for each in self.trials if each.proposer == TEMPLATE), None)

    @property
    def running(self) -> list[Entry]:
        return [each for each in self.trials if each.state == "running"]

    def _created(self, event: Event) -> None:
        self.created, self.max_trials = event, event["settings"].get("max_trials", 0)

    def _opened(self, event: Event) -> None:
        self.stopped, self.failures = None, []

    def _taken(self, event: Event) -> None:
        self.requests.add(event["request"])
        said = event["said"]
        if event["verb"] == "enqueue":
            self.queue.append(Asked(event["request"], said["values"], said["proposer"]))

    def _trial(self, event: Event) -> None:
        asked = event["extra"].get("request")
        self.queue = [each for each in self.queue if each.request != asked]
        known = ("number", "values", "proposer", "rung", "bracket", "parent", "extra", "repairs")
        self.trials.append(Entry(state="running", **{name: event[name] for name in known}))

    def _promoted(self, event: Event) -> None:
        entry = self.trials[event["number"]]
        entry.rung, entry.state = event["rung"], "running"

    def _pruned(self, event: Event) -> None:
        entry = self.trials[event["number"]]
        entry.state, entry.why = "pruned", event["why"]

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
        entry = self.trials[event["number"]]
        entry.measured.append(Measured(event["rung"], event["steps"], tuple(event["objectives"])))
        entry.metrics, entry.state = event["metrics"], event["state"]
        self.failures = []
        if entry.state == "complete":
            self.completed.append(entry)

    def _failed(self, event: Event) -> None:
        entry = self.trials[event["number"]]
        entry.state, entry.why = "failed", event["why"]
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
        """More trials are asked for, also of a study that had ended."""
        self.max_trials = event["max_trials"]
        self.searched, self.winner, self.finished = None, None, False

    def _stopped(self, event: Event) -> None:
        self.stopped = event["why"]

    def _finished(self, event: Event) -> None:
        self.winner, self.finished = event["winner"], True


def better(goal: Goal, value: float, than: float) -> bool:
    return value > than if goal.direction == "maximize" else value < than


def ranked(history: History, goal: Goal) -> list[Entry]:
    """Measured trials that did not fail, the best first. One that reached a higher rung stands before others: values
    of different rungs do not compare."""
    sign = -1 if goal.direction == "maximize" else 1

    def rank(entry: Entry) -> tuple[float, float, int]:
        last = entry.measured[-1]
        return -history.rungs[entry.bracket][last.rung], sign * last.objectives[0], entry.number

    fit = [each for each in history.trials if each.measured and each.state != "failed"]
    return sorted(fit, key=rank)
