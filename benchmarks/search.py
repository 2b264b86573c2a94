"""Compare the search algorithms with optuna's own samplers, and with random search, on functions that are known.

    python benchmarks/search.py --out DIR [--surface TABLE.parquet] [--only NAME]

A row is 20 seeds of one algorithm on one function: the median and the quartiles of the regret, which is how far the
best trial stays above the least that the function can be. Without "rungs" all have as many trials, each of them a whole
training; with rungs they have as many optimizer steps. `against` names what a row must not be worse than, and `p` is
the probability of such results if it is not (Mann-Whitney, one-sided; the lowest): no worse, where it is at least 0.05.
`p_better` is that of such results if it is no better than one of them: better than all, where it is below 0.05. The
regret of a search for two metrics is an area of the plane: that below the best pairs there are, less its own.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]

import optuna
from ledger import Ledger, arguments, table
from scipy.stats import mannwhitneyu
from search_functions import FUNCTIONS, Function, area, recorded

from vidqa.automl.algorithms import Fidelity, algorithm
from vidqa.automl.algorithms.brackets import ladder
from vidqa.automl.moves import Values
from vidqa.automl.parameters import Parameter
from vidqa.automl.simulation import simulated

SEEDS, TRIALS = 20, 25
TINY_SEEDS, TINY_TRIALS = 2, 6
LONGER = 60  # trials of what needs generations
WHOLE = 20  # whole trainings whose steps the algorithms with rungs share; on a table also trials
TWO = "two metrics: "  # rows of what is searched for two metrics
Search = Callable[[Function, int], float]  # from a function and a seed to the regret


def ours(name: str, trials: int, concurrent: int = 1) -> Search:
    def search(function: Function, seed: int) -> float:
        searcher = algorithm(
            name, function.space, function.goals, seed=seed, max_trials=trials, max_concurrent=concurrent,
            rungs=Fidelity(1, function.steps),
        )  # fmt: skip
        study = simulated(searcher, function.whole, max_concurrent=concurrent)
        return _best(each.measured[-1].objectives for each in study.trials) - function.least

    return search


def _best(reached: Iterable[tuple[float, ...]]) -> float:
    """The least loss; of two metrics, less the area that is at least as bad as what was reached."""
    reached = list(reached)
    return min(reached)[0] if len(reached[0]) == 1 else -area(reached)


def optunas(make: Callable[[int], Any], trials: int, concurrent: int = 1) -> Search:
    def search(function: Function, seed: int) -> float:
        study = optuna.create_study(directions=["minimize"] * len(function.goals), sampler=make(seed))
        asked: list[tuple[Any, Values]] = []
        for number in range(trials + concurrent):
            if number < trials:
                trial = study.ask()
                asked.append((trial, suggested(trial, function)))
            if number >= concurrent - 1 and asked:
                trial, values = asked.pop(0)
                study.tell(trial, function.whole(None, values, 0, function.steps)[1])
        return _best(tuple(each.values) for each in study.trials) - function.least

    return search


def suggested(trial: Any, function: Function) -> dict[str, Any]:
    """As a user of optuna would ask for them."""
    values: dict[str, Any] = {}
    for each in function.space.parameters:
        if each.condition is None or each.condition.holds(values):
            values[each.name] = _suggest(trial, each)
    return values


def _suggest(trial: Any, each: Parameter) -> Any:
    if each.options and each.ordered:
        return each.options[trial.suggest_int(each.name, 0, len(each.options) - 1)]
    if each.options:
        return trial.suggest_categorical(each.name, each.options)
    suggest = trial.suggest_float if each.kind == "float" else trial.suggest_int
    return suggest(each.name, each.low, each.high, log=each.log)


def rungs_of(function: Function) -> Fidelity:
    return Fidelity(function.shortest or -(-function.steps // 27), function.steps)


def on_rungs(name: str, trials: int, whole: int, concurrent: int = 2) -> Search:
    """Until the steps of so many trainings are spent; of the trials that were trained longest the best one counts."""

    def search(function: Function, seed: int) -> float:
        searcher = algorithm(
            name, function.space, function.goals, seed=seed, max_trials=trials, max_concurrent=concurrent,
            rungs=rungs_of(function),
        )  # fmt: skip
        study = simulated(
            searcher, function.training, max_concurrent=concurrent, max_steps=(whole - 1) * function.steps
        )
        ends = [each.measured[-1] for each in study.trials if each.measured]
        longest = max(each.steps for each in ends)
        return min(each.objectives[0] for each in ends if each.steps == longest) - function.least

    return search


def optunas_pruned(make: Callable[[int], Any], pruner: Callable[[], Any], whole: int) -> Search:
    """optuna's own way with rungs: trials one after another, pruned at the rungs."""

    def search(function: Function, seed: int) -> float:
        study = optuna.create_study(sampler=make(seed), pruner=pruner())
        spent, ended = 0, []
        while spent < (whole - 1) * function.steps:
            trial, state, begun = study.ask(), None, 0
            values = suggested(trial, function)
            for steps in ladder(rungs_of(function)):
                state, (loss,) = function.training(state, values, begun, steps)
                trial.report(loss, steps * 81 // function.steps)
                spent, begun = spent + steps - begun, steps
                if steps < function.steps and trial.should_prune():
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                    break
            else:
                study.tell(trial, loss)
                ended.append(loss)
        return min(ended, default=function.begin) - function.least

    return search


def samplers() -> dict[str, Callable[[int], Any]]:
    made = optuna.samplers
    return {
        "random": lambda seed: made.RandomSampler(seed=seed),
        "qmc": lambda seed: made.QMCSampler(seed=seed, scramble=True),
        "gp": lambda seed: made.GPSampler(seed=seed),
        "tpe": lambda seed: made.TPESampler(seed=seed),
        "cma-es": lambda seed: made.CmaEsSampler(seed=seed),
        "nsga2": lambda seed: made.NSGAIISampler(population_size=LONGER // 5, seed=seed),  # as large as ours
    }


# What runs, and against which row; a sampler of optuna's own has no row to stand against.
def rows(trials: int, whole: int) -> list[tuple[str, Search, Sequence[str]]]:
    own = samplers()
    found: list[tuple[str, Search, Sequence[str]]] = [
        ("optuna random", optunas(own["random"], trials), ()),
        ("random", ours("random", trials), ("optuna random",)),
        ("grid", ours("grid", trials), ()),
        ("optuna qmc", optunas(own["qmc"], trials), ()),
        ("qmc", ours("qmc", trials), ("optuna qmc",)),
        (f"random, {LONGER}", ours("random", LONGER), ()),
        (f"optuna cma-es, {LONGER}", optunas(own["cma-es"], LONGER), ()),
        (f"cma-es, {LONGER}", ours("cma-es", LONGER), (f"optuna cma-es, {LONGER}", f"random, {LONGER}")),
        ("rungs: random", on_rungs("random", whole, whole), ()),
        ("rungs: optuna asha", optunas_pruned(own["random"], optuna.pruners.SuccessiveHalvingPruner, whole), ()),
        (
            "rungs: optuna hyperband",
            optunas_pruned(own["tpe"], lambda: optuna.pruners.HyperbandPruner(3, 81), whole),
            (),
        ),
    ]
    against = {"asha": "rungs: optuna asha", "bohb": "rungs: optuna hyperband"}
    for name in ("hyperband", "asha", "bohb", "dehb", "pbt"):
        others = ["rungs: random", *([against[name]] if name in against else [])]
        found.append((f"rungs: {name}", on_rungs(name, round(whole * 3.25) if name == "pbt" else 300, whole), others))
    found.append(("rungs: asha, half the steps", on_rungs("asha", 300, whole // 2), ("rungs: random",)))
    found += [
        (f"{TWO}random", ours("random", LONGER), ()),
        (f"{TWO}optuna nsga2", optunas(own["nsga2"], LONGER), ()),
        (f"{TWO}nsga2", ours("nsga2", LONGER), (f"{TWO}optuna nsga2", f"{TWO}random")),
    ]
    found += [  # the slowest ones, last
        ("optuna gp", optunas(own["gp"], trials), ()),
        ("bayesian", ours("bayesian", trials), ("optuna gp", "random")),
        ("optuna tpe, 4 at a time", optunas(own["tpe"], trials, 4), ()),
        ("bayesian, 4 at a time", ours("bayesian", trials, 4), ("optuna tpe, 4 at a time", "random")),
    ]
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--surface", type=Path, help="a table of recorded trainings, searched as well")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--go-on", action="store_true", help="complete the rows of the last call")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    ledger = Ledger("search", options, go_on=options.go_on)
    seeds = range(TINY_SEEDS if options.tiny else SEEDS)
    searched = [*FUNCTIONS, *([recorded(options.surface)] if options.surface else [])]
    known = {(each["function"], each["search"]): each["regrets"] for each in ledger.rows}
    usual = rows(TINY_TRIALS if options.tiny else TRIALS, WHOLE)
    for place, (name, *_) in enumerate(usual):
        for function in searched[:1] if options.tiny else searched:
            is_table = function.curves is not None
            _, search, against = rows(WHOLE, WHOLE)[place] if is_table else usual[place]
            too_much = is_table and (name.endswith("pbt") or str(LONGER) in name)  # it has no copies, and few points
            if too_much or name.startswith(TWO) != (function.pair is not None):
                continue
            if (function.name, name) in known or options.only not in name:
                continue
            began = time.process_time()
            regrets = known[function.name, name] = [search(function, seed) for seed in seeds]
            others = {each: known[function.name, each] for each in against if (function.name, each) in known}
            ledger.add(row(function.name, name, regrets, others, began))
            print(table(ledger.rows[-1:], ("regrets",)), flush=True)
    print(table(ledger.rows, ("regrets",)))


def row(
    function: str, name: str, regrets: Sequence[float], others: dict[str, list[float]], began: float
) -> dict[str, Any]:
    low, median, high = statistics.quantiles(regrets, n=4)
    worse, better = (
        [float(mannwhitneyu(regrets, other, alternative=way).pvalue) for other in others.values()]
        for way in ("greater", "less")
    )
    return {
        "function": function,
        "search": name,
        "median": median,
        "quartiles": [low, high],
        "against": ", ".join(others),
        "p": min(worse, default=None),
        "p_better": max(better, default=None),
        "cpu_s": (time.process_time() - began) / len(regrets),
        "regrets": list(regrets),
    }


if __name__ == "__main__":
    main()
