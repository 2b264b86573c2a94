"""The settings of a study: study.toml in its folder, beside its specs.

    spec = "train.toml"            # copied by `plan`: the template, whose values are trial 0
    evaluation = "evaluate.toml"   # if the goal is a metric of an evaluation
    test = "test.toml"             # run once, for the winner

Each key has a description; references/automl.md shows them in use.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vidqa.automl.decisions import Goal
from vidqa.automl.problems import STUDY_MISSING, STUDY_SETTINGS
from vidqa.core import files
from vidqa.core.cli import refused_writes
from vidqa.core.problem import Problem, ProblemError
from vidqa.jobs.resources import Resources

FILE = "study.toml"
PLANNED = "plan/problems.json"  # the errors that the last plan found
TRAIN, EVALUATE, TEST = "train.toml", "evaluate.toml", "test.toml"
ON_THIS_MACHINE = ("local", "docker")  # platforms whose jobs use this machine's GPUs
FROM_TRAINING = ("val/", "train/", "perf/")  # prefixes of metrics that a training writes itself


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Limits(_Table):
    """Limits of a study: it ends when its trials are done, or at the first of these. An unset limit does not apply."""

    wall_hours: float | None = Field(default=None, gt=0, description="Run time of the study's controllers, in hours.")
    gpu_hours: float | None = Field(default=None, gt=0, description="GPU hours of all jobs.")
    target: float | None = Field(default=None, description="Value of the goal at which the study ends.")
    no_progress: int | None = Field(default=None, ge=1, description="Consecutive trials without a better value.")
    failures_in_a_row: int = Field(default=3, ge=1, description="Consecutive failed trials.")
    silent_hours: float = Field(default=1.0, gt=0, description="Hours without output after which a job counts as hung.")
    retries: int = Field(default=3, ge=0, description="Retries of a job after its machine failed.")


class Finals(_Table):
    """Re-runs after the search. An empty list of seeds disables them."""

    top: int = Field(default=3, ge=1, description="Number of best trials to retrain.")
    seeds: list[int] = Field(default=[1, 2, 3], description="Seeds of the re-runs.")

    @property
    def reruns(self) -> int:
        """The largest number of re-runs: of the best trials, and of the template."""
        return len(self.seeds) * (self.top + 1)


class Steps(_Table):
    """Optimizer steps of a trial; if unset, it trains as long as the template, or for its own epochs."""

    shortest: int | None = Field(default=None, ge=1, description="End of the first rung; unset: longest / reduction^2.")
    longest: int | None = Field(default=None, ge=1, description="Steps of the longest trial; unset: the template's.")
    reduction: int = Field(default=3, ge=2, description="Ratio of the lengths of consecutive rungs.")


class Place(Resources):
    """Platform resources of the study's jobs, and sharing of GPUs."""

    trials_per_gpu: int = Field(
        default=1, ge=1, le=8, description="Trials that share a GPU of this machine, each with a part of its memory."
    )


class Settings(_Table):
    """All settings of a search, beside the specs."""

    platform: str = Field(default="local", description="local, docker, slurm or kubernetes.")
    algorithm: str = Field(default="bayesian", description="Search algorithm.")
    goals: list[Goal] = Field(min_length=1, description="Metrics to improve; several for nsga2.")
    max_trials: int = Field(default=20, ge=1, description="Maximum trials, including the template's.")
    max_concurrent: int = Field(default=1, ge=1, description="Concurrent trials.")
    seed: int = Field(default=0, ge=0, description="Seed of the algorithm.")
    steps: Steps = Field(default=Steps(), description="Training length of trials, for algorithms with rungs.")
    data_share: float | None = Field(
        default=None, gt=0, lt=1, description="Share of the training videos that trials use; re-runs use all."
    )
    keep: Literal["best", "all"] = Field(default="best", description="Checkpoints and exports kept: needed or all.")
    spec: str = Field(default=TRAIN, description="Training spec: the template of trials.")
    evaluation: str | None = Field(default=None, description="Spec of the evaluation that measures the goal.")
    test: str | None = Field(default=None, description="Spec of the final evaluation, run once on the winner.")
    resources: Place = Field(default=Place(), description="Job resources.")
    limits: Limits = Field(default=Limits(), description="Stop conditions.")
    finals: Finals = Field(default=Finals(), description="Re-runs after the search.")
    ranges: dict[str, str] = Field(default={}, description="Keys and ranges: LOW..HIGH:log or A,B,C.")
    fixed: dict[str, Any] = Field(default={}, description="Keys with a fixed value.")
    only: list[str] = Field(default=[], description="Searched keys; empty: those of the schema and of ranges.")

    def of_training(self, metric: str) -> bool:
        """Whether a training writes this metric itself."""
        return metric.startswith(FROM_TRAINING)


def read_settings(folder: Path) -> Settings:
    """Read study.toml. Raises STUDY_MISSING, STUDY_SETTINGS with all errors."""
    path = folder / FILE
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise STUDY_MISSING.error(folder, f"there is no {FILE} in it") from None
    except (OSError, ValueError) as broken:
        raise STUDY_SETTINGS.error(path, f"it cannot be read as TOML: {broken}") from broken
    return checked(table, path)


def checked(table: dict[str, Any], where: Path) -> Settings:
    """Validate a table as settings. Raises STUDY_SETTINGS."""
    try:
        settings = Settings.model_validate(table)
    except ValidationError as wrong:
        raise ProblemError([_problem(error, where) for error in wrong.errors(include_url=False)]) from wrong
    if settings.limits.target is not None and len(settings.goals) > 1:
        raise STUDY_SETTINGS.error(f"{where} limits.target", "a target is of one goal; the study has several")
    return settings


def write_settings(folder: Path, settings: Settings) -> None:
    """Write study.toml. Raises ENV_FILE_REFUSED."""
    import tomli_w

    with refused_writes(folder / FILE):
        files.write_text(folder / FILE, tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True)))


def _problem(error: Any, where: Path) -> Problem:
    key = ".".join(map(str, error["loc"]))
    wrong_value = f"{error['msg']}; it is {str(error.get('input'))[:100]}"
    if error["type"] != "extra_forbidden":
        return STUDY_SETTINGS.at(f"{where} {key}", wrong_value)
    fields = {name: field.annotation for name, field in Settings.model_fields.items()}
    names = [f"{name}.{inner}" for name, table in fields.items() for inner in getattr(table, "model_fields", ())]
    close = difflib.get_close_matches(key, [*fields, *names], n=3)
    remedy = f"did you mean {', '.join(close)}?" if close else None
    return STUDY_SETTINGS.at(f"{where} {key}", f"there is no key {key!r}", remedy)
