"""What a loop is asked to do: its sets, where its jobs run, when it stops. Kept in deft_state.json."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vidqa.gaps.problems import DEFT_SETTING

Share = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """A table without unknown keys."""

    model_config = ConfigDict(extra="forbid")


class Sets(Strict):
    """Folders with annotations.json and media. Rounds are chosen by `selection`; the KPI set is looked at `kpi_looks`
    times, the test set once, when the loop has ended. `pool` is what new samples are taken from."""

    selection: str = Field(description="set by which rounds are accepted")
    pool: str | None = Field(
        default=None, description="collection that samples are mined from: a set, or a folder of media"
    )
    kpi: str | None = Field(default=None, description="set that is reported, and decides nothing")
    kpi_looks: int = Field(
        default=2, ge=0, description="evaluations of the KPI set: before, after rounds, the last one after"
    )
    test: str | None = Field(default=None, description="set that is evaluated once, when the loop has ended")


class Where(Strict):
    """Where jobs run: the options of launch.py."""

    platform: Literal["local", "docker", "slurm", "kubernetes"] = "local"
    nodes: int = Field(default=1, ge=1)
    gpus: int | None = Field(default=None, ge=0)
    image: str | None = None
    site: str | None = None
    agreed: bool = Field(default=False, description="--yes of launch.py")


class Stop(Strict):
    """When the loop ends, and which round is no gain."""

    target: Share | None = Field(default=None, description="accuracy on the selection set at which the loop ends")
    target_kind: str | None = Field(default=None, description="the target is that of this kind of question")
    rounds: int = Field(default=3, ge=1, description="rounds at most")
    patience: int = Field(default=1, ge=1, description="rounds in a row that may be rolled back before the loop ends")
    slice_points: float = Field(
        default=2.0, ge=0, description="points that a kind may fall by, if the fall is no chance"
    )
    budget_hours: float | None = Field(default=None, gt=0, description="hours of jobs (GPU hours where there are GPUs)")


class Settings(Strict):
    """All of it. `train` are KEY=VALUE for the trainings of rounds; `study` and `words` are more options of scripts."""

    model: str | None = Field(
        default=None, description="what the loop starts with: a training's run folder, or a model"
    )
    sets: Sets
    continue_from: Literal["base", "last"] = Field(default="base", description="what each round's training starts from")
    train: list[str] = Field(default_factory=list, description="KEY=VALUE for the trainings of rounds")
    study: list[str] = Field(
        default_factory=list, description="options of run_automl.py plan: each round's training is a study's best"
    )
    words: dict[Literal["gaps", "mine", "augment", "assemble"], list[str]] = Field(default_factory=dict)
    augment: bool = Field(default=False, description="also make altered copies of what was mined")
    audit: Literal["ask", "report"] = Field(
        default="ask", description="ask: suspected label errors are answered before mining"
    )
    audit_from: Share = Field(default=0.5, description="probability of an error from which a label is asked about")
    control: bool = Field(default=False, description="also train on as many random samples of the pool, for comparison")
    where: Where = Where()
    stop: Stop = Stop()


TABLES: dict[str, type[Strict]] = {"sets": Sets, "where": Where, "stop": Stop}
CHANGEABLE = ("stop", "where", "audit", "audit_from")  # within a loop


def settings_of(table: dict[str, Any]) -> Settings:
    """Raises DEFT_SETTING with everything that is wrong."""
    try:
        return Settings.model_validate(table)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            names = [name for name in Settings.model_fields if name not in TABLES]
            names += [f"{table}.{name}" for table, model in TABLES.items() for name in model.model_fields]
            close = difflib.get_close_matches(key, names, n=3, cutoff=0.5) or [*names]
            raise DEFT_SETTING.error(key, "there is no such setting", f"set one of {', '.join(close)}") from wrong
        raise DEFT_SETTING.error(key or "settings", f"{first['msg']}: {str(first['input'])[:80]}") from wrong


def with_sets(table: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """The table with KEY=VALUE at dotted keys; words of stages and keys of trainings are split as a shell would.

    Raises DEFT_SETTING."""
    import shlex

    import yaml

    for word in sets:
        key, equals, value = word.partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            raise DEFT_SETTING.error(word, "it is not KEY=VALUE", "write it as stop.rounds=2")
        inner = table
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise DEFT_SETTING.error(key, f"{part} is a value, not a table")
        is_words = parts[0] == "words" or parts in (["train"], ["study"])
        inner[parts[-1]] = shlex.split(value) if is_words else yaml.safe_load(value)
    return table
