"""Who climbs: brackets, promotions from checkpoints, copies of the best, and the steps that all of it takes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from simulation import RUNGS, Simulation, end, made, simulated, training

from vidqa.automl.algorithms import Fidelity
from vidqa.automl.algorithms.rungs import Bracket, brackets, intervals, ladder
from vidqa.automl.decisions import Promote, Start, Trial, Values


def trained(study: Simulation, rungs: list[list[int]]) -> int:
    """The steps that the trials say they took, each from where its weights began."""
    total = 0
    for each in study.trials:
        if each.measured:
            begun = rungs[each.bracket][each.measured[0].rung - 1] if each.parent is not None else 0
            total += each.measured[-1].steps - begun
    return total


@pytest.mark.parametrize("name", ["hyperband", "asha", "bohb", "hyperband-de", "pbt"])
def test_trained_steps_are_the_sum_of_the_rungs_increments(name: str) -> None:
    searcher = made(name, max_trials=30)
    study = simulated(searcher, training, max_concurrent=3)
    assert study.steps == trained(study, [list(rungs) for rungs in searcher.rungs])
    assert searcher.whole_trainings == pytest.approx(study.steps / RUNGS.max_steps, rel=0.1), "as it was estimated"
    for each in study.trials:
        assert [one.rung for one in each.measured] == list(range(each.measured[0].rung, each.measured[-1].rung + 1))


def test_the_ladder_is_made_of_powers_of_the_reduction_below_the_whole_training() -> None:
    assert ladder(Fidelity(3, 81)) == [3, 9, 27, 81]
    assert ladder(Fidelity(10, 100, 2)) == [13, 25, 50, 100]
    assert ladder(Fidelity(5, 5)) == [5] and ladder(Fidelity(1, 2)) == [1, 2]


def test_brackets_are_hyperbands_and_the_last_one_is_cut_to_the_trials_that_are_left() -> None:
    first = [Bracket((9, 27, 81), (9, 3, 1)), Bracket((27, 81), (5, 1)), Bracket((81,), (3,))]
    assert brackets(Fidelity(9, 81), 17) == first
    assert brackets(Fidelity(9, 81), 20) == [*first, Bracket((9, 27, 81), (3, 1, 1))]


def test_hyperband_promotes_the_best_of_a_rung_when_it_is_over_and_gives_up_the_others() -> None:
    searcher = made("hyperband", max_trials=27)
    study = simulated(searcher, training, max_concurrent=4)
    for place, rungs in enumerate(searcher.rungs):
        members = [trial for trial in study.trials if trial.bracket == place]
        for rung in range(len(rungs) - 1):
            losses = {each.number: each.measured[rung].objectives[0] for each in members if len(each.measured) > rung}
            climbed = {each.number for each in members if len(each.measured) > rung + 1}
            kept = sorted(losses, key=losses.__getitem__)[: len(climbed)]
            assert climbed == set(kept) and len(climbed) == max(1, len(members) // 3 ** (rung + 1))
        assert {each.state for each in members} <= {"complete", "pruned"}


def test_asha_never_waits_while_trials_are_left_and_promotes_one_in_three() -> None:
    study = simulated(made("asha", max_trials=30), training, max_concurrent=4)
    reached = [sum(len(trial.measured) > rung for trial in study.trials) for rung in range(4)]
    assert reached[0] == 30 and 10 <= reached[1] <= 12 and 3 <= reached[2] <= 4 and reached[3] == 1


def test_asha_trains_its_best_trial_to_the_end_even_of_four() -> None:
    study = simulated(made("asha", max_trials=4), training, max_concurrent=2)
    full = [trial for trial in study.trials if trial.state == "complete"]
    assert len(full) == 1 and full[0].measured[-1].steps == RUNGS.max_steps


@pytest.mark.parametrize("name", ["bohb", "hyperband-de"])
def test_what_is_proposed_is_learned_from_the_longest_training_with_results_enough(name: str) -> None:
    study = simulated(made(name, max_trials=60), training, max_concurrent=2)
    proposers = [trial.proposer for trial in study.trials]
    assert set(proposers) == {"spread", "tpe" if name == "bohb" else "de"}
    late = [end(each.values) for each in study.trials[30:] if each.proposer != "spread"]
    early = [end(each.values) for each in study.trials[:20]]
    assert sum(late) / len(late) < sum(early) / len(early)


def test_pbt_replaces_the_worst_by_copies_that_keep_what_shapes_the_weights() -> None:
    searcher = made("pbt", max_trials=40)
    study = simulated(searcher, training, max_concurrent=4)
    copies = [trial for trial in study.trials if trial.parent is not None]
    assert copies and len(study.trials) <= 40
    population = sum(trial.parent is None for trial in study.trials)
    for each in copies:
        parent = study.trials[each.parent or 0]
        assert each.values["rank"] == parent.values["rank"] and dict(each.values) != dict(parent.values)
        assert each.measured[0].rung == each.extra["copied_at"] + 1
        assert any(one.rung == each.extra["copied_at"] for one in parent.measured)
    for rung in range(len(searcher.rungs[0])):
        assert sum(any(one.rung == rung for one in each.measured) for each in study.trials) == population


def test_pbt_has_rungs_of_equal_length_and_ten_at_most() -> None:
    assert intervals(Fidelity(20, 80)) == [20, 40, 60, 80]
    assert intervals(Fidelity(1, 100)) == list(range(10, 101, 10)) and intervals(Fidelity(60, 100)) == [100]


def test_a_template_that_was_trained_in_full_at_once_is_left_in_peace() -> None:
    template: Values = {"rate": 1e-4, "rank": 16, "epochs": 3, "decay": "cosine", "floor": 0.1}
    whole = Trial(0, template, "template", "running", rung=3)
    for name in ("hyperband", "asha", "bohb", "hyperband-de"):
        searcher = made(name, max_trials=12)
        assert isinstance(searcher.next([whole]), Start), name
    assert not isinstance(made("asha").next([whole]), Promote)


def test_a_copy_goes_on_from_its_parents_weights() -> None:
    seen: list[tuple[object, int]] = []

    def watched(state: object, values: Mapping[str, object], begun: int, steps: int) -> tuple[float, tuple[float, ...]]:
        seen.append((state, begun))
        return training(state, values, begun, steps)

    simulated(made("pbt", max_trials=12), watched, max_concurrent=2)
    assert all((state is None) == (begun == 0) for state, begun in seen)
