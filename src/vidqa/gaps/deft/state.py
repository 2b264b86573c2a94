"""The content of deft_state.json: the settings of a loop (sets, platform, stop rules), and its state, which follows
from the events of its log."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from vidqa.core.files import content_hash
from vidqa.core.journal import Event
from vidqa.jobs.resources import Resources

SCHEMA = "vidqa.deft_state.v1"
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Fact = str | bool | int | float | None | list[str]
RULES = {  # by which a loop ends, or waits
    "target": "the agreed accuracy is reached on the selection set",
    "no gaps": "the model answers every question of the selection set correctly",
    "no new samples": "the pool has no untried samples similar to the gaps",
    "rounds": "all agreed rounds are done",
    "no progress": "the agreed number of consecutive rounds was rolled back without a proven gain",
    "regression": "the last of these rounds made the model, or a kind of question, worse",
    "budget": "the agreed hours of jobs are spent",
    "hard gate": "a stage found an error; the loop waits, and continues when it is run again",
    "audit needed": "labels are suspected to be wrong; the loop waits for a person's answers",
    "labels needed": "mined samples have no answers; the loop waits for a person's",
}


class Strict(BaseModel):
    """A table without unknown keys; its numbers are finite, as JSON's are."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Sets(Strict):
    """Folders with annotations.json and media. Rounds are accepted by `selection`; the KPI set is evaluated `kpi_looks`
    times, the test set once, after the last round. New samples are mined from `pool`."""

    selection: str = Field(description="set on which rounds are accepted or rejected")
    pool: str = Field(description="source of mined samples: a set, or a folder of media")
    kpi: str | None = Field(default=None, description="set for reporting, without influence on decisions")
    kpi_looks: int = Field(
        default=2, ge=0, description="evaluations of the KPI set: before the loop, after rounds, and at the end"
    )
    test: str | None = Field(default=None, description="set that is evaluated once, after the loop")


class Where(Resources):
    """Platform and resources of jobs: the options of launch.py."""

    platform: Literal["local", "docker", "slurm", "kubernetes"] = "local"


class Stop(Strict):
    """The rules that end the loop, and the limits for accepting a round."""

    target: Share | None = Field(default=None, description="accuracy on the selection set at which the loop ends")
    target_kind: str | None = Field(default=None, description="kind of question that the target applies to")
    rounds: int = Field(default=3, ge=1, description="maximum number of rounds")
    patience: int = Field(default=1, ge=1, description="consecutive rolled-back rounds after which the loop ends")
    slice_points: float = Field(default=2.0, ge=0, description="maximum significant fall of a kind, in points")
    budget_hours: float | None = Field(default=None, gt=0, description="maximum hours of jobs (GPU hours with GPUs)")


class Settings(Strict):
    """All settings. `train` are KEY=VALUE for trainings of rounds; `study` and `words` are more options of scripts."""

    model: str | None = Field(
        default=None, description="initial model of the loop: the run folder of a training, or a model"
    )
    sets: Sets
    continue_from: Literal["base", "last"] = Field(default="base", description="initial model of each round's training")
    train: list[str] = Field(default_factory=list, description="KEY=VALUE for the rounds' trainings")
    study: list[str] = Field(
        default_factory=list,
        description="options of scripts/run_automl.py plan, for a study in each round instead of one training",
    )
    words: dict[Literal["gaps", "mine", "augment", "assemble"], list[str]] = Field(default_factory=dict)
    augment: bool = Field(default=False, description="also augment mined samples")
    audit: Literal["ask", "report"] = Field(
        default="ask", description="ask: suspected label errors are reviewed before mining"
    )
    audit_from: Share = Field(default=0.5, description="minimum error probability of a label for review")
    control: bool = Field(
        default=False, description="also train on as many random pool samples as were mined, without altered copies"
    )
    where: Where = Where()
    stop: Stop = Stop()

    def text(self, name: str) -> str:
        """The value of an input settings.KEY as text, the same for equal values."""
        return json.dumps(self.model_dump(mode="json").get(name.removeprefix("settings.")), sort_keys=True)


def _rule(name: str) -> str:
    if name not in RULES:
        raise ValueError(f"{name!r} is not one of {', '.join(RULES)}")
    return name


class Output(Strict):
    """An output file of a stage."""

    path: str
    fingerprint: str


class Cost(Strict):
    """Cost of a stage's job: its run time, and that times its number of GPUs."""

    seconds: float = 0.0
    gpu_seconds: float = 0.0


class StageState(Strict):
    """A finished stage: fingerprints of its inputs, its outputs and facts."""

    inputs: dict[str, str]
    outputs: dict[str, Output]
    facts: dict[str, Fact] = Field(default_factory=dict)
    cost: Cost = Field(default_factory=Cost)
    sentence: str = ""
    stop: str = Field(default="", description="the rule that ends the loop here")

    @property
    def has_outputs(self) -> bool:
        return all(Path(output.path).exists() for output in self.outputs.values())


class RoundState(Strict):
    """One round. Round 0 evaluates the starting model; `accepted` is None until the decision."""

    number: int
    stages: dict[str, StageState] = Field(default_factory=dict)
    accepted: bool | None = None
    why: str = ""

    def output(self, name: str) -> Path | None:
        """An output file of a stage, by its name; None without it."""
        paths = (Path(stage.outputs[name].path) for stage in self.stages.values() if name in stage.outputs)
        return next(paths, None)


class Accepted(Strict):
    """The best model so far, and its evaluation on the selection set."""

    round: int
    model: str
    evaluation: str
    accuracy: float


class Ending(Strict):
    """The reason why the loop does not continue. With `waits`, it continues when it is rerun with the missing input."""

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
        """The decided rounds, without round 0."""
        return [current for current in self.rounds if current.number and current.accepted is not None]

    def stages(self) -> list[StageState]:
        """Every stage that is finished."""
        return [stage for current in self.rounds for stage in current.stages.values()] + list(self.closed.values())

    @property
    def hours(self) -> float:
        """Cost of its jobs: GPU hours for those on GPUs, else hours."""
        costs = [stage.cost for stage in self.stages()]
        return sum(cost.gpu_seconds or cost.seconds for cost in costs) / 3600


def fold(events: list[Event]) -> LoopState:
    """The state after all events; the first one contains the settings."""
    state = LoopState.model_validate({"schema": SCHEMA, "settings": events[0]["settings"]})
    for event in events[1:]:
        take(state, event)
    return state


def take(state: LoopState, event: Event) -> None:
    """Apply an event to the state."""
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
    # From the settings at that time: an earlier version may have written fingerprints of another text.
    settings = [name for name in done.inputs if name.startswith("settings.")]
    done.inputs |= {name: fingerprint(state.settings.text(name)) for name in settings}
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


def fingerprint(source: Path | str | None) -> str:
    """A fingerprint of 32 hexadecimal digits: of a file's content, of names, sizes and times of the files in a folder,
    or of a text; "" for a missing source."""
    if source is None:
        return ""
    if isinstance(source, str):
        return hashlib.sha256(source.encode()).hexdigest()[:32]
    if source.is_file():
        return content_hash(source)[:32]
    if not source.is_dir():
        return ""
    files = [(path, path.stat()) for path in source.rglob("*") if path.is_file()]
    listing = sorted((str(path.relative_to(source)), status.st_size, status.st_mtime_ns) for path, status in files)
    return hashlib.sha256(repr(listing).encode()).hexdigest()[:32]
