"""Search algorithms by name; each is a function of the trials so far."""

from __future__ import annotations

from collections.abc import Callable

from vidqa.automl.algorithms._base import Fidelity, Searcher, Task
from vidqa.automl.algorithms.rungs import Asha, Bohb, Hyperband, HyperbandEvolution, Pbt
from vidqa.automl.algorithms.samplers import Agent, Bayesian, CmaEs, GridSearch, Nsga2, QuasiRandom, RandomSearch
from vidqa.automl.problems import STUDY_SETTINGS

MAKERS: dict[str, Callable[[Task], Searcher]] = {
    "bayesian": Bayesian,
    "random": RandomSearch,
    "grid": GridSearch,
    "qmc": QuasiRandom,
    "cma-es": CmaEs,
    "hyperband": Hyperband,
    "asha": Asha,
    "bohb": Bohb,
    "hyperband-de": HyperbandEvolution,
    "pbt": Pbt,
    "nsga2": Nsga2,
    "agent": Agent,
}
NAMES = tuple(MAKERS)
BY_STEPS = ("hyperband", "asha", "bohb", "hyperband-de", "pbt")  # those that divide a training into rungs
ONE_OR_MORE = range(1, 10)
SEVERAL_GOALS = dict.fromkeys(("bayesian", "random", "grid", "qmc", "agent"), ONE_OR_MORE) | {"nsga2": range(2, 10)}

__all__ = ["BY_STEPS", "NAMES", "Fidelity", "Searcher", "Task", "algorithm"]


def algorithm(name: str, task: Task) -> Searcher:
    """The search algorithm of this name. Raises STUDY_SETTINGS, and ENV_PACKAGE_MISSING for a missing library."""
    rungs = task.fidelity
    if name not in MAKERS:
        raise STUDY_SETTINGS.error("--algorithm", f"there is no algorithm {name!r}", f"use one of {', '.join(NAMES)}")
    if len(task.goals) not in SEVERAL_GOALS.get(name, (1,)):
        remedy = f"use one metric, or two or more for {', '.join(SEVERAL_GOALS)}"
        raise STUDY_SETTINGS.error("--metric", f"{name} cannot search for {len(task.goals)} metrics", remedy)
    if not 1 <= rungs.min_steps <= rungs.max_steps or rungs.reduction < 2:
        message = f"there are no rungs of {rungs.min_steps} to {rungs.max_steps} steps, divided by {rungs.reduction}"
        remedy = "set steps.shortest between 1 and steps.longest, and steps.reduction to at least 2"
        raise STUDY_SETTINGS.error("steps.shortest", message, remedy)
    return MAKERS[name](task)
