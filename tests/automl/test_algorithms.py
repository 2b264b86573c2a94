"""What holds of every algorithm: the same moves from the same trials, values of the space, as many trials as asked."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from simulation import ACCURACY, LOSS, MIXED, RUNGS, Simulation, end, made, simulated, training

from vidqa.automl.algorithms import NAMES, Fidelity, Searcher, Task, algorithm
from vidqa.automl.decisions import Decision, Done, Measured, Start, Trial, Values, Wait
from vidqa.core.problem import ProblemError

SEARCHING = [name for name in NAMES if name not in ("agent", "nsga2")]
TRIALS = dict.fromkeys(SEARCHING, 18) | {"bayesian": 4}  # a Gaussian process takes its time
TEMPLATE = {"rate": 1e-2, "rank": 16, "epochs": 3, "decay": "cosine", "floor": 0.1}  # its rate is out of the range


def best(study: Simulation) -> float:
    return min(trial.measured[-1].objectives[0] for trial in study.trials if trial.measured)


@cache
def shared_study(name: str) -> Simulation:
    """The study of an algorithm's first seed, which no test changes."""
    return simulated(made(name, max_trials=TRIALS[name]), training)


def drawn(count: int) -> list[Values]:
    task = Task(MIXED, (LOSS,), 0, count, RUNGS)
    return [task.drawn(number) for number in range(count)]


class Checked:
    """An algorithm that is made anew for every question, as after a kill, and asked twice."""

    def __init__(self, name: str, **options: int) -> None:
        self.name, self.options = name, options
        self.rungs: Sequence[Sequence[int]] = made(name, **options).rungs
        self.starts: list[Start] = []

    def next(self, trials: Sequence[Trial]) -> Decision:
        move = made(self.name, **self.options).next(trials)
        assert made(self.name, **self.options).next(list(trials)) == move
        if isinstance(move, Start):
            assert {each.name for each in MIXED.parameters if each.applies(move.values)} == set(move.values)
            assert all(each.holds(move.values[each.name]) for each in MIXED.parameters if each.name in move.values)
            assert json.loads(json.dumps(move.extra)) == move.extra and move.proposer
            assert move.rung < len(self.rungs[move.bracket])
            self.starts.append(move)
        return move


@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize("name", SEARCHING)
def test_moves_follow_from_the_trials_alone_and_stay_in_the_space(name: str, concurrent: int) -> None:
    most = TRIALS[name]
    checked = Checked(name, max_trials=most)
    study = simulated(checked, training, max_concurrent=concurrent, proposed=TEMPLATE)
    assert len(study.trials) == len({trial.number for trial in study.trials}) <= most
    assert len(checked.starts) >= len(study.trials) - 1 >= most * 2 // 3
    assert not [trial for trial in study.trials if trial.state in ("running", "waiting")]
    assert any(trial.state == "complete" for trial in study.trials)
    values = [json.dumps(dict(trial.values), sort_keys=True) for trial in study.trials if trial.parent is None]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("name", SEARCHING)
def test_a_seed_repeats_a_study_and_another_one_does_not(name: str) -> None:
    first = [trial.values for trial in shared_study(name).trials]
    again, other = (simulated(made(name, seed=seed, max_trials=TRIALS[name]), training).trials for seed in (0, 1))
    assert [trial.values for trial in again] == first != [trial.values for trial in other]


@pytest.mark.parametrize("name", SEARCHING)
def test_the_better_way_is_the_goals(name: str) -> None:
    """A study that maximizes makes the moves of one that minimizes the negative."""

    def negative(*of: object) -> tuple[float, tuple[float, ...]]:
        state, (loss,) = training(*of)  # type: ignore[arg-type]
        return state, (-loss,)

    least = shared_study(name)
    most = simulated(made(name, max_trials=TRIALS[name], goals=(ACCURACY,)), negative)
    assert [trial.values for trial in least.trials] == [trial.values for trial in most.trials]
    assert [trial.state for trial in least.trials] == [trial.state for trial in most.trials]


@pytest.mark.parametrize("name", SEARCHING)
def test_failed_trials_count_and_stop_nothing(name: str) -> None:
    def failing(state: object, values: Values, begun: int, steps: int) -> tuple[float, tuple[float, ...]]:
        if values["rate"] > 3e-5 or (begun and values["rank"] == 2):
            raise OverflowError("the loss is not finite")
        return training(state, values, begun, steps)

    study = simulated(made(name, max_trials=TRIALS[name]), failing, max_concurrent=2)
    states = {trial.state for trial in study.trials}
    assert "failed" in states and "running" not in states and len(study.trials) >= TRIALS[name] // 2
    nothing = simulated(made(name), lambda *of: 1 / 0, max_concurrent=2)  # type: ignore[arg-type,return-value]
    assert {trial.state for trial in nothing.trials} == {"failed"}


@pytest.mark.parametrize("name", SEARCHING)
def test_a_result_that_is_no_number_is_no_result(name: str) -> None:
    study = simulated(made(name), lambda *of: (0.0, (float("nan"),)), max_concurrent=2)
    assert len(study.trials) >= 15 or name == "pbt"


def test_a_trial_that_someone_else_proposed_late_is_taken_in() -> None:
    for name in SEARCHING:
        searcher = made(name, max_trials=8)
        study = simulated(searcher, training, max_steps=300)
        number = len(study.trials)
        theirs = Trial(number, TEMPLATE, "agent", "complete", (Measured(0, 3, (0.0,)),))
        move = searcher.next([*study.trials, theirs])
        assert isinstance(move, Decision), name  # type: ignore[arg-type]


def test_the_agent_waits_for_proposals_until_all_trials_are_there() -> None:
    agent = made("agent", max_trials=2)
    one = Trial(0, TEMPLATE, "agent", "complete", (Measured(0, 81, (1.0,)),))
    assert (
        agent.next([]) == Wait() and agent.next([one]) == Wait() and agent.next([one, replace(one, number=1)]) == Done()
    )


def test_two_goals_are_for_those_that_can_weigh_them() -> None:
    def both(state: object, values: Values, begun: int, steps: int) -> tuple[float, tuple[float, ...]]:
        return 0.0, (end(values), -abs(values["epochs"] - 1))

    for name, count in (("nsga2", 24), ("bayesian", 5), ("random", 20), ("grid", 20), ("qmc", 20)):
        study = simulated(
            made(name, goals=(LOSS, ACCURACY), max_trials=count), both, max_concurrent=2, proposed=TEMPLATE
        )
        assert len(study.trials) >= count - 2, name
    for name, goals in (("asha", (LOSS, ACCURACY)), ("cma-es", (LOSS, ACCURACY)), ("nsga2", (LOSS,)), ("pbt", ())):
        with pytest.raises(ProblemError, match="STUDY_SETTINGS"):
            made(name, goals=goals)


def test_an_unknown_name_and_impossible_rungs_are_told() -> None:
    with pytest.raises(ProblemError, match=r"STUDY_SETTINGS(.|\n)*bayesian"):
        made("bayes")
    for rungs in (Fidelity(0, 10), Fidelity(11, 10), Fidelity(1, 10, 1)):
        with pytest.raises(ProblemError, match="STUDY_SETTINGS"):
            algorithm("asha", Task(MIXED, (LOSS,), 0, 4, rungs))


@pytest.mark.parametrize("name", SEARCHING)
def test_a_thousand_trials_take_the_controller_seconds(name: str) -> None:
    searcher, values = made(name, max_trials=1100), drawn(1000)
    measured = tuple(Measured(rung, steps, (1.0,)) for rung, steps in enumerate(searcher.rungs[0]))
    trials = [
        Trial(number, each, "random", "complete", tuple(replace(one, objectives=(end(each),)) for one in measured))
        for number, each in enumerate(values)
    ]
    began = time.process_time()
    searcher.next(trials)
    assert time.process_time() - began < 60  # seconds; a quadratic search takes many minutes


def test_a_ten_trial_study_is_no_random_search() -> None:
    study = simulated(made("bayesian", max_trials=10), training, proposed=TEMPLATE, max_steps=6 * 81)
    assert [trial.proposer for trial in study.trials] == ["template", "spread", "spread", "gp", "gp", "gp"]


def test_without_torch_the_proposer_is_another_and_the_trial_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidqa.automl.algorithms.samplers.find_spec", lambda name: None)
    study = simulated(made("bayesian", max_trials=6), training)
    assert study.trials[-1].proposer == "tpe"


def test_rungs_end_with_the_whole_training() -> None:
    for name in NAMES:
        goals = (LOSS, ACCURACY) if name == "nsga2" else (LOSS,)
        found: Searcher = made(name, goals=goals)
        assert all(rungs[-1] == RUNGS.max_steps for rungs in found.rungs)
        assert all(list(rungs) == sorted(set(rungs)) for rungs in found.rungs)
    assert [list(rungs) for rungs in made("asha").rungs] == [[3, 9, 27, 81]]
