"""The state of a study: its trials, their jobs, and requests, from the events of its journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vidqa.automl.decisions import Goal, Measured, Start, Trial
from vidqa.core.journal import Event

BASELINE = "baseline"
TEMPLATE = "template"  # proposer of the template's values


@dataclass
class Work:
    """One work unit and its job. `gpus` are its assigned GPUs of this machine, each shared by up to `places` jobs;
    `ended` is its end event; `retries` counts how often its platform ended it."""

    job_id: str = ""
    gpus: tuple[str, ...] = ()
    places: int = 1
    retries: int = 0
    ended: Event | None = None


class History:
    """Fold events into state; `take` adds one. An unknown event, or one that refers to a missing trial or rung, raises
    LookupError or ValueError, and leaves the state unusable."""

    def __init__(self) -> None:
        self.created: Event | None = None
        self.trials: list[Trial] = []
        self.work: dict[str, Work] = {}
        self.scores: dict[str, dict[str, Any]] = {}  # metrics of baseline, re-runs and tests, by work
        self.data: dict[str, str] = {}  # SHA-256 of the annotations by path, at the last start of a controller
        self.queue: list[Start] = []  # enqueued by hand
        self.requests: set[str] = set()
        self.removed: set[str] = set()
        self.skipped: dict[str, str] = {}
        self.searched: str | None = None  # reason for the end of the search
        self.stopped: str | None = None  # reason of the interruption, until a controller reopens it
        self.rungs: list[list[int]] = []  # optimizer steps at the end of each rung, by bracket
        self.max_trials = 0
        self.winner: int | None = None
        self.finished = False
        self.failures: list[str] = []  # in a row, since the last result or the last start of a controller
        self.completed: list[Trial] = []  # that reached their last rung, in the order of completion
        self.elapsed_s, self.seconds, self.gpu_seconds = 0.0, 0.0, 0.0

    def take(self, event: Event) -> None:
        self.elapsed_s = max(self.elapsed_s, float(event["elapsed_s"]))
        match event:
            case {"event": "created"}:
                self._create(event)
            case {"event": "opened"}:
                self.stopped, self.failures, self.data = None, [], event.get("data", {})
            case {"event": "taken", "request": request, "verb": verb, "said": content}:
                self.requests.add(request)
                if verb == "enqueue":
                    self.queue.append(Start(content["values"], content["proposer"], extra={"request": request}))
            case {"event": "trial"}:
                self._begin(event)
            case {"event": "promoted", "number": number, "rung": rung}:
                trial = self._trial_of(number)
                self._check_rung(trial.bracket, rung)
                trial.rung, trial.state = rung, "running"
            case {"event": "pruned", "number": number, "why": why}:
                trial = self._trial_of(number)
                trial.state, trial.why = "pruned", why
            case {"event": "submitted", "work": name, "job_id": job_id, "gpus": gpus}:
                self.work[name] = Work(job_id, tuple(gpus), event.get("places", 1))
            case {"event": "retried", "work": name, "job_id": job_id, "why": why}:
                work = self.work.setdefault(name, Work())
                work.job_id, work.retries = job_id, work.retries + bool(why)
            case {"event": "ended", "work": name, "seconds": seconds, "gpu_seconds": gpu_seconds}:
                self.work.setdefault(name, Work()).ended = event
                self.seconds, self.gpu_seconds = self.seconds + seconds, self.gpu_seconds + gpu_seconds
            case {"event": "measured"}:
                self._measure(event)
            case {"event": "failed", "number": number, "why": why}:
                trial = self._trial_of(number)
                trial.state, trial.why = "failed", why
                self.failures.append(why)
            case {"event": "scored", "work": name, "metrics": metrics}:
                self.scores[name] = metrics
            case {"event": "removed", "paths": paths}:
                self.removed |= set(paths)
            case {"event": "searched", "why": why}:
                self.searched = why
            case {"event": "skipped", "what": what, "why": why}:
                self.skipped[what] = why
            case {"event": "reopened", "max_trials": max_trials}:  # and the brackets for them
                self.max_trials, self.rungs = max_trials, event.get("rungs") or self.rungs
                self.searched, self.winner, self.finished = None, None, False
            case {"event": "stopped", "why": why}:
                self.stopped = why
            case {"event": "finished", "winner": winner}:
                if winner is not None:
                    self._trial_of(winner)
                self.winner, self.finished = winner, True
            case _:
                raise ValueError("it is not a known event: a newer version may have written it")

    @property
    def template(self) -> Trial | None:
        """The trial with the template's values, which comes first."""
        return next((trial for trial in self.trials if trial.proposer == TEMPLATE), None)

    @property
    def running(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "running"]

    def ranked(self, goal: Goal) -> list[Trial]:
        """Measured trials that did not fail, the best first; those of a higher rung first, since values at different
        rungs are not comparable."""

        def rank(trial: Trial) -> tuple[float, float, int]:
            last = trial.measured[-1]
            return -self.rungs[trial.bracket][last.rung], goal.loss(last.objectives[0]), trial.number

        return sorted((trial for trial in self.trials if trial.measured and trial.state != "failed"), key=rank)

    def _create(self, event: Event) -> None:
        if self.created:
            raise ValueError("the study was created before")
        self.created, self.rungs = event, event["rungs"]
        self.max_trials = event["settings"].get("max_trials", 0)

    def _begin(self, event: Event) -> None:
        if event["number"] != len(self.trials):
            raise ValueError(f"trial {event['number']} comes after {len(self.trials)} trials")
        self._check_rung(event["bracket"], event["rung"])
        if event["parent"] is not None:
            self._trial_of(event["parent"])
        self.queue = [start for start in self.queue if start.extra["request"] != event["extra"].get("request")]
        names = ("number", "values", "proposer", "rung", "bracket", "parent", "extra", "repairs")
        self.trials.append(Trial(state="running", **{name: event[name] for name in names}))

    def _measure(self, event: Event) -> None:
        trial = self._trial_of(event["number"])
        self._check_rung(trial.bracket, event["rung"])
        trial.measured = (*trial.measured, Measured(event["rung"], event["steps"], tuple(event["objectives"])))
        trial.metrics, trial.state = event["metrics"], event["state"]
        self.failures = []
        if trial.state == "complete":
            self.completed.append(trial)

    def _trial_of(self, number: int) -> Trial:
        if number >= len(self.trials):
            raise LookupError(f"there is no trial {number} before it")
        return self.trials[number]

    def _check_rung(self, bracket: int, rung: int) -> None:
        if bracket >= len(self.rungs) or rung >= len(self.rungs[bracket]):
            raise LookupError(f"there is no rung {rung} of bracket {bracket}")
