"""Algorithms of a search: each is a function of the trials so far, made by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vidqa.automl.algorithms._base import Fidelity, Task
from vidqa.automl.algorithms.asha import Asha
from vidqa.automl.algorithms.brackets import Bohb, Dehb, Hyperband
from vidqa.automl.algorithms.cma_es import CmaEs
from vidqa.automl.algorithms.model_based import Bayesian, Nsga2
from vidqa.automl.algorithms.pbt import Pbt
from vidqa.automl.algorithms.plain import Agent, GridSearch, QuasiRandom, RandomSearch
from vidqa.automl.moves import Algorithm, Goal
from vidqa.automl.space import Space
from vidqa.automl.space_problems import ALGORITHM, FIDELITY, GOALS

MAKERS: dict[str, Callable[[Task], Algorithm]] = {
    "bayesian": Bayesian,
    "random": RandomSearch,
    "grid": GridSearch,
    "qmc": QuasiRandom,
    "cma-es": CmaEs,
    "hyperband": Hyperband,
    "asha": Asha,
    "bohb": Bohb,
    "dehb": Dehb,
    "pbt": Pbt,
    "nsga2": Nsga2,
    "agent": Agent,
}
NAMES = tuple(MAKERS)
BY_STEPS = ("hyperband", "asha", "bohb", "dehb", "pbt")  # that divide a training into rungs of steps
MANY = range(1, 10)
# How many metrics each takes; one, where nothing else is said.
GOALS_OF = {"bayesian": MANY, "random": MANY, "grid": MANY, "qmc": MANY, "agent": MANY, "nsga2": range(2, 10)}

__all__ = ["BY_STEPS", "NAMES", "Fidelity", "algorithm"]


def algorithm(
    name: str,
    space: Space,
    goals: Sequence[Goal],
    *,
    seed: int,
    max_trials: int,
    max_concurrent: int,
    rungs: Fidelity,
) -> Algorithm:
    """The algorithm of this name. Raises AUTOML_ALGORITHM, AUTOML_GOALS, AUTOML_FIDELITY, and ENV_PACKAGE_MISSING where
    it needs a library that is not installed."""
    if name not in MAKERS:
        raise ALGORITHM.error("--algorithm", f"there is no algorithm {name!r}", f"use one of {', '.join(NAMES)}")
    if len(goals) not in GOALS_OF.get(name, (1,)):
        message = f"{name} is asked to search for {len(goals)} metrics"
        raise GOALS.error("--metric", message)
    if not 1 <= rungs.min_steps <= rungs.max_steps or rungs.reduction < 2:
        message = f"trainings of {rungs.min_steps} to {rungs.max_steps} steps, divided by {rungs.reduction}"
        raise FIDELITY.error("--min-steps", message)
    return MAKERS[name](Task(name, space, tuple(goals), seed, max_trials, max_concurrent, rungs))
