"""The trials of a search, and the decisions of an algorithm.

An algorithm is a pure function of the trials so far, without a state of its own, so that a restarted controller makes
the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Values = Mapping[str, Any]  # by dotted key of the spec
State = Literal["running", "paused", "complete", "pruned", "failed"]


def values_text(values: Values) -> str:
    """Format values for display: optm_lr=1e-05, r=16."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in shown.items())


class Goal(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    metric: str = Field(min_length=1, description="Name in metrics.jsonl, such as val/avg_loss, or in metrics.json.")
    direction: Literal["maximize", "minimize"] = Field(description="Direction of improvement.")

    def loss(self, value: float) -> float:
        """The value as a loss: negated if the goal is maximized."""
        return -value if self.direction == "maximize" else value


@dataclass(frozen=True)
class Measured:
    """The result at the end of a rung: `steps` are all optimizer steps so far, `objectives` as the study's goals."""

    rung: int
    steps: int
    objectives: tuple[float, ...]


@dataclass
class Trial:
    """A trial: a run with values from the search. "paused": its rung is measured, and it may be promoted. A failed
    trial keeps its earlier results. `parent` is the trial whose weights it started with; None for the base model's."""

    number: int
    values: Values
    proposer: str
    state: State
    measured: tuple[Measured, ...] = ()
    rung: int = 0
    bracket: int = 0
    parent: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # data of its algorithm, or its request
    repairs: Sequence[str] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)  # of the last measured rung
    why: str = ""  # reason of its failure or pruning

    @property
    def objective(self) -> float | None:
        """The first goal's value at the end of the last measured rung."""
        return self.measured[-1].objectives[0] if self.measured else None


@dataclass(frozen=True)
class Start:
    """Start a new trial, and train it until the end of `rung`."""

    values: Values
    proposer: str
    rung: int = 0
    bracket: int = 0
    parent: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Promote:
    """Resume a paused trial from its checkpoint until the end of a higher rung."""

    number: int
    rung: int


@dataclass(frozen=True)
class Prune:
    """Give up a running or paused trial."""

    number: int


@dataclass(frozen=True)
class Wait:
    """Wait: no decision is possible before another result."""


@dataclass(frozen=True)
class Done:
    """The search is done; running trials are waited for."""


Decision = Start | Promote | Prune | Wait | Done
