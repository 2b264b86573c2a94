"""What a search knows, and what it may do next.

An algorithm is a function of the trials so far: it keeps nothing between two calls, so that a controller which was
killed goes on with the same moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Values = Mapping[str, Any]  # by dotted key of the spec
State = Literal["waiting", "running", "paused", "complete", "pruned", "failed"]


@dataclass(frozen=True)
class Goal:
    """A metric, and which way is better."""

    metric: str
    direction: Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Measured:
    """What a trial reached at the end of a rung: `steps` are all optimizer steps that it has taken, `objectives` stand
    in the order of the study's goals."""

    rung: int
    steps: int
    objectives: tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """A run whose spec a search chose. "paused": its rung is measured, and it may be promoted. A failed trial
    keeps what it measured before. `parent` is the trial whose weights it began with, if not the model's."""

    number: int
    values: Values
    proposer: str
    state: State
    measured: tuple[Measured, ...] = ()
    rung: int = 0
    bracket: int = 0
    parent: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # what its algorithm wants to find again


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
    """Nothing can be decided before another result is there."""


@dataclass(frozen=True)
class Done:
    """The algorithm has no further move; running trials are waited for."""


Move = Start | Promote | Prune | Wait | Done


class Algorithm(Protocol):
    """`rungs` are, for each bracket, the optimizer steps in all at the end of each rung, ascending; an algorithm
    without rungs has one bracket of one rung, the whole training."""

    name: str
    rungs: Sequence[Sequence[int]]

    def next(self, trials: Sequence[Trial]) -> Move:
        """The next move, from all trials in the order of their numbers. It is asked again after each of its moves was
        made, as long as a place for a trial is free, and whenever a result has come."""
