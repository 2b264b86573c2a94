"""Acceptance of a round, and the rules that end the loop: they read the state, and the files of a round. The files are
validated by models: a damaged one is reported, and not used."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, field_validator

from vidqa.core.cli import command
from vidqa.core.files import parse_json
from vidqa.core.pages.page import percent
from vidqa.evaluation.answers import RULES
from vidqa.evaluation.metrics import read_scores
from vidqa.gaps.deft.context import StageContext, StageResult
from vidqa.gaps.deft.state import Ending, LoopState, Share
from vidqa.gaps.problems import DEFT_GATE

LEVEL = 0.05  # of all rounds together: each is tested at its share of it
MOST_BYTES = 4 << 30  # of a file, which may be a set of annotations
Interval = Annotated[tuple[Share, Share] | None, Field(strict=False)]
Change = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


class Table(BaseModel):
    """The fields of a file that the loop reads; other fields are allowed, and kept by `model_dump`."""

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
    """The difference for one kind of question. `p_corrected` is Holm-corrected over all kinds."""

    name: str
    n_videos: int = Field(ge=1)
    difference: Change
    ci95: tuple[Change, Change] = Field(strict=False)
    p_corrected: Share


class Changed(Table):
    """Ids of the questions whose correctness changed."""

    fixed: list[str]
    broken: list[str]


class ComparisonTable(Table):
    """The content of comparison.json. Earlier versions wrote "not told apart"."""

    verdict: Literal["better", "worse", "no significant difference"]
    whole: Whole
    slices: list[Slice]
    samples: Changed

    @field_validator("verdict", mode="before")
    @classmethod
    def _present_verdict(cls, verdict: object) -> object:
        return "no significant difference" if verdict == "not told apart" else verdict


class Suspect(Table):
    """A label that is probably wrong; `verdict` is a person's, "" before."""

    probability: Share
    verdict: str


class AuditQueue(Table):
    """The content of audit.json."""

    items: list[Suspect]


class KindScores(Table):
    """Scores of the questions of one kind."""

    n: int = Field(ge=1)
    accuracy: Share
    accuracy_ci95: Interval


class Scores(Table):
    """The content of an evaluation's metrics.json; accuracy is None if no question has an expected answer."""

    answer_rules: str = RULES
    headline: str | None
    n: int = Field(ge=0)
    accuracy: Share | None
    accuracy_ci95: Interval
    by_kind: dict[str, KindScores]


class Annotations(RootModel[list[dict[str, Any]]]):
    """The annotations that a stage added to the training set."""


T = TypeVar("T", bound=BaseModel)


def read_table(path: Path, model: type[T], remedy: str = "") -> T:
    """Read a file through its model. Raises DEFT_GATE."""
    try:
        return model.model_validate(parse_json(path, MOST_BYTES))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        raise DEFT_GATE.error(path, f"{field}: {first['msg']}, got {str(first['input'])[:80]}", remedy) from wrong
    except (OSError, ValueError) as wrong:
        raise DEFT_GATE.error(path, f"it cannot be read: {wrong}", remedy) from wrong


def scores_of(run: str | Path) -> Scores:
    """The scores of an evaluation by the present answer rules. Raises DEFT_GATE."""
    remedy = f"score its answers again: {command('score_results', run, '--out', 'DIR')}, and put metrics.json there"
    scores = read_table(Path(run) / "metrics.json", Scores, remedy)
    return scores if scores.answer_rules == RULES else Scores.model_validate(read_scores(Path(run)))


def decide(context: StageContext) -> StageResult:
    """Accept this round's model, or roll back to the best earlier one. Raises DEFT_GATE."""
    stop = context.settings.stop
    comparison = read_table(context.require("comparison"), ComparisonTable)
    accepted, why = verdict(comparison, stop.rounds, stop.slice_points)
    is_worse = comparison.verdict == "worse" or bool(fallen(comparison.slices, stop.slice_points))
    return StageResult(why, facts={"accepted": accepted, "regression": is_worse and not accepted})


def verdict(comparison: ComparisonTable, rounds: int, slice_points: float) -> tuple[bool, str]:
    """Whether the round is accepted, and the reason. Each of `rounds` tests has its share of LEVEL, since among several
    tests one is more likely to be passed by chance."""
    whole = comparison.whole
    change = f"{percent(whole.before)} -> {percent(whole.after)}, p = {whole.p_value:.3g}"
    accepted, why = False, f"Rolled back: no significant difference to the model before ({change})."
    if fell := fallen(comparison.slices, slice_points):
        why = f"Rolled back: a fall of more than {slice_points:g} points: {_points(fell)} (all kinds: {change})."
    elif comparison.verdict == "worse":
        why = f"Rolled back: the new model is worse ({change})."
    elif comparison.verdict == "better" and whole.p_value * rounds >= LEVEL:
        why = f"Rolled back: better, but too likely by chance for one of {rounds} rounds ({change})."
    elif comparison.verdict == "better":
        accepted, why = True, f"Accepted: the new model is better ({change})."
    if unjudged := too_small(comparison.slices, slice_points):
        why += f" Too few videos to judge a fall: {_points(unjudged)}."
    return accepted, why


def _points(slices: Sequence[Slice]) -> str:
    return ", ".join(f"{part.name or '(no kind)'} by {-100 * part.difference:.1f} points" for part in slices)


def fallen(slices: Sequence[Slice], slice_points: float) -> list[Slice]:
    """The kinds whose accuracy fell by more than the limit, significantly by both interval and corrected test. An
    interval alone is no proof: that of one video has no width, and among twenty kinds one falls by chance."""
    return [part for part in _lower(slices, slice_points) if part.ci95[1] < 0 and part.p_corrected < LEVEL]


def too_small(slices: Sequence[Slice], slice_points: float) -> list[Slice]:
    """The kinds that fell by more than the limit with so few videos that no result could be significant: the least
    p-value of n videos is 2 / 2^n, times the number of kinds."""
    return [part for part in _lower(slices, slice_points) if len(slices) * 2.0 ** (1 - part.n_videos) >= LEVEL]


def _lower(slices: Sequence[Slice], slice_points: float) -> list[Slice]:
    return [part for part in slices if part.difference < -slice_points / 100]


def after_round(state: LoopState) -> Ending | None:
    """The reason why no further round follows; None if one does."""
    if state.accepted is None or (state.newest and state.newest.accepted is None):
        return None
    return _target(state) or _no_gain(state) or _rounds(state) or budget(state)


def _target(state: LoopState) -> Ending | None:
    stop, accepted = state.settings.stop, state.accepted
    if stop.target is None or accepted is None:
        return None
    scores = scores_of(accepted.evaluation)
    row = scores if stop.target_kind is None else scores.by_kind.get(stop.target_kind)
    if row is None or row.accuracy is None or row.accuracy < stop.target:
        return None
    what = f"of {stop.target_kind}" if stop.target_kind else "accuracy"
    sentence = f"The target of {percent(stop.target)} is reached: {percent(row.accuracy)} {what} on the selection set."
    return Ending(rule="target", sentence=sentence)


def _no_gain(state: LoopState) -> Ending | None:
    rejected = list(takewhile(lambda decided: not decided.accepted, reversed(state.decided)))
    if len(rejected) < state.settings.stop.patience:
        return None
    last = rejected[0]
    best = state.accepted.round if state.accepted else 0
    keeps = f"The model of round {best} is kept." if best else "The initial model is kept."
    if last.stages["decide"].facts.get("regression"):
        return Ending(rule="regression", sentence=f"Round {last.number} made the model worse. {last.why} {keeps}")
    count = f"{len(rejected)} rounds in a row" if len(rejected) > 1 else f"Round {last.number}"
    return Ending(rule="no progress", sentence=f"{count} brought no significant gain. {last.why} {keeps}")


def _rounds(state: LoopState) -> Ending | None:
    if len(state.decided) < state.settings.stop.rounds:
        return None
    return Ending(rule="rounds", sentence=f"All {len(state.decided)} agreed rounds are done.")


def budget(state: LoopState) -> Ending | None:
    """The ending if the agreed hours are spent."""
    limit = state.settings.stop.budget_hours
    if limit is None or state.hours < limit:
        return None
    return Ending(rule="budget", sentence=f"The budget is spent: {state.hours:.2f} of {limit:g} hours of jobs.")
