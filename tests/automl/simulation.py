"""A study without trainings: a known function answers for them, so that algorithms can be compared in seconds. The one
here is a formula: the loss falls towards a value and at a speed that depend on the point.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vidqa.automl.algorithms import Fidelity, Searcher, Task, algorithm
from vidqa.automl.decisions import Goal, Measured, Promote, Prune, Start, Trial, Values
from vidqa.automl.parameters import Condition, Parameter
from vidqa.automl.space import Space

State = Any  # what stands for the weights of a trial
# From the weights (None: the model's own) by some values and so many steps: the weights, and what is measured there.
Training = Callable[[State, Values, int, int], tuple[State, tuple[float, ...]]]


@dataclass
class Simulation:
    """The trials of a study in the order of their numbers, and the optimizer steps that all of them took."""

    trials: list[Trial]
    steps: int = 0


def simulated(
    algorithm: Searcher,
    training: Training,
    *,
    max_concurrent: int = 1,
    proposed: Values | None = None,
    max_steps: int | None = None,
) -> Simulation:
    """Carry out an algorithm's moves until it has no more. A step takes the same time in every trial.

    `proposed` are the values of a first trial that the algorithm did not choose; no trial begins, or goes on, once
    `max_steps` have been taken. A training that raises ArithmeticError fails.
    """
    study, kept = Simulation([]), dict[tuple[int, int], State]()
    running: list[tuple[int, int]] = []  # (when its rung ends, number)
    if proposed is not None:
        study.trials.append(Trial(0, dict(proposed), "template", "running"))
        heapq.heappush(running, (algorithm.rungs[0][0], 0))
        study.steps += algorithm.rungs[0][0]
    now = 0
    while True:
        while len(running) < max_concurrent and (max_steps is None or study.steps < max_steps):
            started = _moved(algorithm, study.trials)
            if started is None:
                break
            heapq.heappush(running, (now + _length(algorithm, study.trials, started), started))
            study.steps += _length(algorithm, study.trials, started)
        if not running:
            return study
        now, number = heapq.heappop(running)
        study.trials[number] = _ended(algorithm, training, study.trials[number], kept)


def _moved(algorithm: Searcher, trials: list[Trial]) -> int | None:
    """Carry out the next move, and those that start nothing; the number of the trial that starts, if one does."""
    while True:
        move = algorithm.next(trials)
        if isinstance(move, Start):
            number = len(trials)
            trials.append(
                Trial(
                    number, move.values, move.proposer, "running", (), move.rung, move.bracket, move.parent, move.extra
                )
            )
            return number
        if isinstance(move, Promote):
            trials[move.number] = replace(trials[move.number], state="running", rung=move.rung)
            return move.number
        if not isinstance(move, Prune):
            return None
        trials[move.number] = replace(trials[move.number], state="pruned")


def _begun(algorithm: Searcher, trial: Trial) -> int:
    """The steps that stand behind a trial before its present rung."""
    if trial.measured:
        return trial.measured[-1].steps
    return algorithm.rungs[trial.bracket][trial.rung - 1] if trial.parent is not None else 0


def _length(algorithm: Searcher, trials: list[Trial], number: int) -> int:
    trial = trials[number]
    return algorithm.rungs[trial.bracket][trial.rung] - _begun(algorithm, trial)


def _ended(algorithm: Searcher, training: Training, trial: Trial, kept: dict[tuple[int, int], State]) -> Trial:
    """The trial at the end of its rung; its weights are kept by its number and that rung."""
    rungs = algorithm.rungs[trial.bracket]
    source = (trial.number, trial.measured[-1].rung) if trial.measured else (trial.parent, trial.rung - 1)
    weights: Mapping[Any, State] = kept
    try:
        state, objectives = training(weights.get(source), trial.values, _begun(algorithm, trial), rungs[trial.rung])
    except ArithmeticError:
        return replace(trial, state="failed")
    kept[trial.number, trial.rung] = state
    measured = (*trial.measured, Measured(trial.rung, rungs[trial.rung], objectives))
    return replace(trial, state="complete" if trial.rung == len(rungs) - 1 else "paused", measured=measured)


# --- a known function ---

RUNGS = Fidelity(3, 81)
LOSS, ACCURACY = Goal(metric="loss", direction="minimize"), Goal(metric="accuracy", direction="maximize")
MIXED = Space(
    (
        Parameter("rate", "float", 1e-6, 1e-3, log=True),
        Parameter("rank", "int", 1, 64, log=True, options=(1, 2, 4, 8, 16, 32, 64), inherited=True),
        Parameter("epochs", "int", 1, 20),
        Parameter("decay", "categorical", options=("none", "cosine"), weights=(0.3, 0.7)),
        Parameter("floor", "float", 0.0, 0.5, condition=Condition("decay", ("cosine",))),
    )
)


def end(values: Values) -> float:
    """What the loss of a point falls to; 0 at rate 1e-4, rank 16, 8 epochs, cosine down to 0.1."""
    far = (math.log10(values["rate"]) + 4) ** 2 + (math.log2(values["rank"]) - 4) ** 2 / 9
    return (
        far + (values["epochs"] - 8) ** 2 / 100 + (1.0 if values["decay"] == "none" else (values["floor"] - 0.1) ** 2)
    )


def training(state: Any, values: Values, begun: int, steps: int) -> tuple[float, tuple[float, ...]]:
    before = 5.0 if state is None else state
    speed = 4 + math.sin(10 * math.log10(values["rate"]))
    loss = end(values) + (before - end(values)) * math.exp(-speed * (steps - begun) / RUNGS.max_steps)
    return loss, (loss,)


def made(name: str, *, seed: int = 0, max_trials: int = 20, goals: Any = (LOSS,)) -> Searcher:
    return algorithm(name, Task(MIXED, goals, seed, max_trials, RUNGS))
