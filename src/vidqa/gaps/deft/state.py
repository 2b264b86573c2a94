"""The state of a loop: a table that follows from its log, written to deft_state.json for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from vidqa.gaps.deft.log import Event
from vidqa.gaps.deft.settings import Settings, Strict

SCHEMA = "vidqa.deft_state.v1"
Fact = str | bool | int | float | None | list[str]
RULES = {  # by which a loop ends, or waits
    "target": "the accuracy that was agreed on is reached on the selection set",
    "no gaps": "the model answers every question of the selection set",
    "no new samples": "the pool holds nothing that is like the gaps and was not tried yet",
    "rounds": "all agreed rounds are done",
    "no progress": "the agreed number of rounds in a row was rolled back without a proven gain",
    "regression": "the last of these rounds made the model, or a kind of question, worse",
    "budget": "the agreed hours of jobs are spent",
    "hard gate": "a stage has found an error; it waits, and goes on when the loop is run again",
    "audit needed": "labels are suspected to be wrong; it waits for a person's answers",
    "labels needed": "what was mined from the pool has no answers; it waits for a person's",
}


def _rule(name: str) -> str:
    if name not in RULES:
        raise ValueError(f"{name!r} is none of {', '.join(RULES)}")
    return name


class Output(Strict):
    """A file that a stage has written."""

    path: str
    fingerprint: str


class Cost(Strict):
    """Of a stage's job: the time it ran, and the same times its GPUs."""

    seconds: float = 0.0
    gpu_seconds: float = 0.0


class StageState(Strict):
    """A finished stage: fingerprints of its inputs, its outputs and facts."""

    inputs: dict[str, str]
    outputs: dict[str, Output]
    facts: dict[str, Fact] = Field(default_factory=dict)
    cost: Cost = Field(default_factory=Cost)
    sentence: str = ""
    stop: str = Field(default="", description="the rule by which the loop ends here")


class RoundState(Strict):
    """One round. Round 0 evaluates the starting model; `accepted` is None until it is decided."""

    number: int
    stages: dict[str, StageState] = Field(default_factory=dict)
    accepted: bool | None = None
    why: str = ""

    def output(self, name: str) -> Path | None:
        """A file that a stage has written, by its name; None without it."""
        paths = (Path(stage.outputs[name].path) for stage in self.stages.values() if name in stage.outputs)
        return next(paths, None)


class Accepted(Strict):
    """The best model so far, and its evaluation on the selection set."""

    round: int
    model: str
    evaluation: str
    accuracy: float


class Ending(Strict):
    """Why the loop does not go on. What waits goes on when it is run again, after what it waits for is there."""

    rule: Annotated[str, AfterValidator(_rule), Field(json_schema_extra={"enum": list(RULES)})]
    sentence: str
    waits: bool = False


class LoopState(Strict):
    """The whole state."""

    schema_name: Literal["vidqa.deft_state.v1"] = Field("vidqa.deft_state.v1", alias="schema")
    settings: Settings
    accepted: Accepted | None = None
    rounds: list[RoundState] = Field(default_factory=list)
    ending: Ending | None = None
    closed: dict[str, StageState] = Field(default_factory=dict, description="evaluations after the last round")

    @property
    def newest(self) -> RoundState | None:
        return self.rounds[-1] if self.rounds else None

    @property
    def decided(self) -> list[RoundState]:
        """The rounds after the first measurement that are over."""
        return [current for current in self.rounds if current.number and current.accepted is not None]

    def stages(self) -> list[StageState]:
        """Every stage that is finished."""
        return [stage for current in self.rounds for stage in current.stages.values()] + list(self.closed.values())

    @property
    def hours(self) -> float:
        """What its jobs have cost: GPU hours where there were GPUs, else hours."""
        costs = [stage.cost for stage in self.stages()]
        return sum(cost.gpu_seconds or cost.seconds for cost in costs) / 3600


def fold(events: list[Event]) -> LoopState:
    """The state that follows from the events, the first of which holds the settings."""
    state = LoopState.model_validate({"schema": SCHEMA, "settings": events[0]["settings"]})
    for event in events[1:]:
        take(state, event)
    return state


def take(state: LoopState, event: Event) -> None:
    """What an event changes."""
    kind = event["event"]
    if kind == "settings":
        state.settings, state.ending = Settings.model_validate(event["settings"]), None
    elif kind == "began":
        state.ending = state.ending if state.ending and not state.ending.waits else None
    elif kind == "finished":
        _finished(state, event)
    elif kind == "ended":
        state.ending = Ending(rule=event["rule"], sentence=event["sentence"], waits=event["waits"])


def _finished(state: LoopState, event: Event) -> None:
    done = StageState.model_validate({name: event[name] for name in StageState.model_fields if name in event})
    if event["round"] is None:
        state.closed[event["stage"]] = done
        return
    if len(state.rounds) <= event["round"]:
        state.rounds.append(RoundState(number=event["round"]))
    current = state.rounds[event["round"]]
    current.stages[event["stage"]] = done
    if event["stage"] == "decide":
        current.accepted, current.why = bool(done.facts["accepted"]), done.sentence
    is_first = event["stage"] == "evaluate" and not current.number
    if is_first or (event["stage"] == "decide" and current.accepted):
        current.accepted = True
        measured = current.stages["evaluate"].facts
        state.accepted = Accepted(
            round=current.number,
            model=str(measured["model"]),
            evaluation=str(measured["run_dir"]),
            accuracy=float(str(measured["accuracy"])),
        )
