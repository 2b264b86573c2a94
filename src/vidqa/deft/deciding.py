"""Whether a round is accepted, and whether the loop goes on: rules that read the state and nothing else."""

from __future__ import annotations

from typing import Any

from vidqa.contract.files import read_object
from vidqa.deft.state import Ending, LoopState, RoundState
from vidqa.deft.turn import Done, Turn
from vidqa.pages.page import percent

LEVEL = 0.05  # of all rounds together: each is tested at its share of it


def decide(turn: Turn) -> Done:
    """Accept this round's model, or roll back to the best one before it."""
    comparison = turn.output("comparison")
    found = read_object(comparison) if comparison else {}
    stop = turn.settings.stop
    accepted, why = verdict(found, stop.rounds, stop.slice_points)
    fell = [each["name"] for each in fallen(found, stop.slice_points)]
    is_worse = found["verdict"] == "worse" or bool(fell)
    return Done(why, {}, {"accepted": accepted, "regression": is_worse and not accepted, "fell": fell})


def verdict(found: dict[str, Any], rounds: int, slice_points: float) -> tuple[bool, str]:
    """(accepted, why) from a comparison. Among `rounds` tests one is passed by chance more often than among one, so
    that each has its share of LEVEL."""
    whole, fell = found["whole"], fallen(found, slice_points)
    change = f"{percent(whole['before'])} -> {percent(whole['after'])}, p = {whole['p_value']:.3g}"
    if fell:
        named = ", ".join(f"{each['name']} by {-100 * each['difference']:.1f} points" for each in fell)
        return False, f"Rolled back: {named} fell further than {slice_points:g} points ({change})."
    if found["verdict"] == "worse":
        return False, f"Rolled back: the new model is worse ({change})."
    if found["verdict"] != "better":
        return False, f"Rolled back: the new model is not told apart from the one before ({change})."
    if whole["p_value"] * rounds >= LEVEL:
        return False, f"Rolled back: better, but too likely by chance for one of {rounds} rounds ({change})."
    return True, f"Accepted: the new model is better ({change})."


def fallen(found: dict[str, Any], slice_points: float) -> list[dict[str, Any]]:
    """The slices that fell by more than the limit, and surely fell."""
    slices = found.get("slices", [])
    return [each for each in slices if each["difference"] < -slice_points / 100 and each["ci95"][1] < 0]


def after_round(state: LoopState) -> Ending | None:
    """Why no further round follows; None where one does."""
    if state.accepted is None or (state.newest and state.newest.accepted is None):
        return None
    return _target(state) or _no_gain(state) or _rounds(state) or budget(state)


def _target(state: LoopState) -> Ending | None:
    stop = state.settings.stop
    if stop.target is None or state.accepted is None:
        return None
    reached, what = _reached(state, stop.target_kind)
    if reached is None or reached < stop.target:
        return None
    said = (
        f"The target is reached: {percent(reached)} {what} on the selection set; {percent(stop.target)} was asked for."
    )
    return Ending(rule="target", sentence=said)


def _reached(state: LoopState, kind: str | None) -> tuple[float | None, str]:
    """The accuracy that the target is about, and its name."""
    accepted = state.accepted
    assert accepted is not None  # the caller has looked
    if kind is None:
        return accepted.accuracy, "accuracy"
    row = read_object(_metrics(accepted.evaluation)).get("by_kind", {}).get(kind, {})
    return row.get("accuracy"), f"of {kind}"


def _metrics(run: str) -> Any:
    from pathlib import Path

    return Path(run) / "metrics.json"


def _no_gain(state: LoopState) -> Ending | None:
    rejected = _rejected_in_a_row(state)
    if len(rejected) < state.settings.stop.patience:
        return None
    last = rejected[-1]
    best = state.accepted.round if state.accepted else 0
    keeps = f"The model of round {best} is kept." if best else "The model that the loop started with is kept."
    if last.stages["decide"].facts.get("regression"):
        return Ending(rule="regression", sentence=f"Round {last.number} made the model worse. {last.why} {keeps}")
    count = f"{len(rejected)} rounds in a row" if len(rejected) > 1 else f"Round {last.number}"
    return Ending(rule="no progress", sentence=f"{count} brought no proven gain. {last.why} {keeps}")


def _rejected_in_a_row(state: LoopState) -> list[RoundState]:
    found: list[RoundState] = []
    for each in reversed(state.decided):
        if each.accepted:
            break
        found.insert(0, each)
    return found


def _rounds(state: LoopState) -> Ending | None:
    if len(state.decided) < state.settings.stop.rounds:
        return None
    return Ending(rule="rounds", sentence=f"All {len(state.decided)} agreed rounds are done.")


def budget(state: LoopState) -> Ending | None:
    """Whether the agreed hours are spent."""
    limit = state.settings.stop.budget_hours
    if limit is None or state.hours < limit:
        return None
    return Ending(rule="budget", sentence=f"The budget is spent: {state.hours:.2f} of {limit:g} hours of jobs.")
