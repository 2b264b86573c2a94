"""The files of a round that decide about it, read through models: a damaged one is named, and stands for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from vidqa.core.cli import command
from vidqa.core.files import parse_json
from vidqa.gaps.problems import DEFT_GATE

MOST_BYTES = 4 << 30  # of a file, which may be a set of annotations
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Interval = Annotated[tuple[Share, Share] | None, Field(strict=False)]
Change = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class Table(BaseModel):
    """The fields that the loop reads; a file may have more of them, which `model_dump` keeps."""

    model_config = ConfigDict(extra="allow", strict=True)


class Whole(Table):
    """The difference over all questions."""

    before: Share
    after: Share
    difference: Change
    p_value: Share
    fixed: int = Field(ge=0)
    broken: int = Field(ge=0)
    n: int = Field(ge=1)


class Slice(Table):
    """The difference of one kind of question. `p_corrected` is Holm's, among all kinds."""

    name: str
    n_videos: int = Field(ge=1)
    difference: Change
    ci95: tuple[Change, Change] = Field(strict=False)
    p_corrected: Share


class Changed(Table):
    """Ids of the questions that changed sides."""

    fixed: list[str]
    broken: list[str]


class ComparisonTable(Table):
    """comparison.json."""

    verdict: Literal["better", "worse", "not told apart"]
    whole: Whole
    slices: list[Slice]
    samples: Changed


class Suspect(Table):
    """A label that is probably wrong; `verdict` is a person's, "" before."""

    probability: Share
    verdict: str


class AuditQueue(Table):
    """audit.json."""

    items: list[Suspect]


class KindScores(Table):
    """Scores of the questions of one kind."""

    n: int = Field(ge=1)
    accuracy: Share
    accuracy_ci95: Interval


class Scores(Table):
    """metrics.json of an evaluation; without a question that has an expected answer there is no accuracy."""

    headline: str | None
    n: int = Field(ge=0)
    accuracy: Share | None
    accuracy_ci95: Interval
    by_kind: dict[str, KindScores]


class Annotations(RootModel[list[dict[str, Any]]]):
    """What a stage has added to the training set."""


T = TypeVar("T", bound=BaseModel)


def read_table(path: Path, model: type[T], remedy: str = "") -> T:
    """Raises DEFT_GATE."""
    try:
        return model.model_validate(parse_json(path, MOST_BYTES))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise DEFT_GATE.error(path, f"{field}: {first['msg']}, got {str(first['input'])[:80]}", remedy) from wrong
    except (OSError, ValueError) as wrong:
        raise DEFT_GATE.error(path, f"it cannot be read: {wrong}", remedy) from wrong


def scores_of(run: str | Path) -> Scores:
    """The scores of an evaluation. Raises DEFT_GATE."""
    remedy = f"score its answers again: {command('score_results', run, '--out', 'DIR')}, and put metrics.json there"
    return read_table(Path(run) / "metrics.json", Scores, remedy)
