"""The trials of a search, and the decisions that an algorithm takes from them.

An algorithm is a pure function of the trials so far: it has no state of its own, so that a controller which was killed
goes on with the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Values = Mapping[str, Any]  # by dotted key of the spec
State = Literal["running", "paused", "complete", "pruned", "failed"]


def values_text(values: Values) -> str:
    """Values for a person: optm_lr=1e-05, r=16."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in shown.items())


class Goal(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    metric: str = Field(min_length=1, description="val/avg_loss and others of metrics.jsonl, else of metrics.json.")
    direction: Literal["maximize", "minimize"] = Field(description="Which way is better.")

    def loss(self, value: float) -> float:
        """The value, with its sign changed where more is better: less is better of a loss."""
        return -value if self.direction == "maximize" else value


@dataclass(frozen=True)
class Measured:
    """Result at the end of a rung: `steps` are all optimizer steps so far, `objectives` follow the study's goals."""

    rung: int
    steps: int
    objectives: tuple[float, ...]


@dataclass
class Trial:
    """A run whose spec a search chose. "paused": its rung is measured, and it may be promoted. A failed trial keeps its
    earlier results. `parent` is the trial whose weights it began with; None for the model's own."""

    number: int
    values: Values
    proposer: str
    state: State
    measured: tuple[Measured, ...] = ()
    rung: int = 0
    bracket: int = 0
    parent: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # notes of its algorithm, or its request
    repairs: Sequence[str] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of the last measured rung
    why: str = ""  # it failed or was pruned

    @property
    def objective(self) -> float | None:
        """The first goal's value at the end of the last measured rung."""
        return self.measured[-1].objectives[0] if self.measured else None


@dataclass(frozen=True)
class Start:
    """A new trial, trained until the end of `rung`."""

    values: Values
    proposer: str
    rung: int = 0
    bracket: int = 0
    parent: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Promote:
    """A paused trial goes on from its checkpoint until the end of a higher rung."""

    number: int
    rung: int


@dataclass(frozen=True)
class Prune:
    """A running or paused trial is given up."""

    number: int


@dataclass(frozen=True)
class Wait:
    """No decision is possible before another result."""


@dataclass(frozen=True)
class Done:
    """No further decision; running trials are waited for."""


Decision = Start | Promote | Prune | Wait | Done
