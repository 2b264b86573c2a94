"""The events of a study's journal, a model each: whoever reads a journal meets no value of another kind."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vidqa.automl.moves import State

Number = Annotated[int, Field(ge=0, le=1 << 53)]
Seconds = Annotated[float, Field(ge=0)]


class Written(BaseModel):
    """Seq, time and elapsed_s (seconds that controllers had worked by then) are of every event."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    seq: Number
    time: str
    elapsed_s: Seconds
    event: str


class GoalOf(BaseModel):
    model_config = ConfigDict(strict=True)

    metric: str
    direction: Literal["maximize", "minimize"]


class SettingsOf(BaseModel):
    """Of the settings what a status shows; those of earlier versions have other keys."""

    model_config = ConfigDict(strict=True, extra="allow")

    algorithm: str
    goals: Annotated[list[GoalOf], Field(min_length=1)]
    max_trials: Number


class Created(Written):
    schema_version: int
    fingerprint: str
    settings: SettingsOf
    space: Any
    rungs: Annotated[list[Annotated[list[Number], Field(min_length=1)]], Field(min_length=1)]
    version: str


class Opened(Written):
    controller: dict[str, Any]


class Asking(BaseModel):
    """What an enqueued or told trial says."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    values: dict[str, Any]
    proposer: str


class Telling(Asking):
    objectives: Annotated[list[float], Field(min_length=1)]


class Stopping(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


SAID: dict[str, type[BaseModel]] = {"enqueue": Asking, "tell": Telling, "stop": Stopping}


class Taken(Written):
    request: str
    verb: Literal["enqueue", "tell", "stop"]
    said: dict[str, Any]

    @model_validator(mode="after")
    def _said(self) -> Self:
        SAID[self.verb].model_validate(self.said)
        return self


class TrialOf(Written):
    number: Number
    values: dict[str, Any]
    proposer: str
    rung: Number
    bracket: Number
    parent: Number | None
    extra: dict[str, Any]
    repairs: list[str]


class Promoted(Written):
    number: Number
    rung: Number


class Pruned(Written):
    number: Number
    why: str


class Submitted(Written):
    work: str
    job_id: str
    how: str
    gpus: list[str]
    places: Annotated[int, Field(ge=1)] = 1  # events of earlier versions lack it: a job has its GPUs to itself


class Retried(Written):
    work: str
    job_id: str
    why: str


class Ended(Written):
    work: str
    state: str
    job_id: str
    run_dir: str
    seconds: Seconds
    gpu_seconds: Seconds
    failure: dict[str, str] | None


class MeasuredOf(Written):
    number: Number
    rung: Number
    steps: Number
    objectives: Annotated[list[float], Field(min_length=1)]
    metrics: dict[str, Any]
    state: State


class Failed(Written):
    number: Number
    rung: Number
    why: str


class Scored(Written):
    work: str
    metrics: dict[str, Any]


class Removed(Written):
    paths: list[str]


class Why(Written):
    why: str


class Skipped(Written):
    what: str
    why: str


class Reopened(Written):
    max_trials: Number


class Finished(Written):
    winner: Number | None


EVENTS: dict[str, type[Written]] = {
    "created": Created,
    "opened": Opened,
    "taken": Taken,
    "trial": TrialOf,
    "promoted": Promoted,
    "pruned": Pruned,
    "submitted": Submitted,
    "retried": Retried,
    "ended": Ended,
    "measured": MeasuredOf,
    "failed": Failed,
    "scored": Scored,
    "removed": Removed,
    "searched": Why,
    "skipped": Skipped,
    "reopened": Reopened,
    "stopped": Why,
    "finished": Finished,
}


def fields_of(event: str) -> set[str]:
    """The fields that an event has of its own."""
    return set(EVENTS[event].model_fields) - set(Written.model_fields)
