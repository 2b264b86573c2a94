"""After a search: the best trials and the template again with other seeds, a winner, and one look at the test set.

The best of many trials is partly best by chance. Re-runs with new seeds tell how much of its lead stays, and the test
set, on which nothing was chosen, what it is worth. Each evaluation on the test set is made once.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from vidqa.jobs.api import JobHandle
from vidqa.automl.history import Entry, better, ranked
from vidqa.automl.results import evaluation_metrics, objectives_of, training_metrics
from vidqa.automl.study import Study
from vidqa.automl.trials import Trials, finite, work_name

RERUNS, TESTS = "reruns", "test"


class After:
    """What follows the search; `advance` brings it a step further and ends the study."""

    def __init__(self, study: Study, trials: Trials) -> None:
        self.study, self.trials = study, trials
        self.jobs, self.history = trials.jobs, trials.history

    def advance(self, elapsed_s: float) -> None:
        if not self._rerun(elapsed_s):
            return
        winner = self.winner()
        if winner is None or self._test(winner):
            self.jobs.append("finished", winner=None if winner is None else winner.number)

    def candidates(self) -> list[Entry]:
        """The best trials of the search, and the template's."""
        best = ranked(self.history, self.study.goal)[: self.study.settings.finals.top]
        template = self.history.template
        return [*best, template] if template and template.measured and template not in best else best

    def winner(self) -> Entry | None:
        """By the mean over re-runs where all candidates have some, else by the search itself."""
        found = self.candidates()
        means = {entry.number: fmean(values) for entry in found if (values := self.reached_again(entry))}
        if not found or len(means) < len(found):
            return found[0] if found else None
        best = found[0]
        for entry in found[1:]:
            if better(self.study.goal, means[entry.number], than=means[best.number]):
                best = entry
        return best

    def reached_again(self, entry: Entry) -> list[float]:
        """The first goal of each re-run that did not fail."""
        scores = [self.history.scores.get(_final(entry, seed), {}) for seed in self.study.settings.finals.seeds]
        return [values[0] for score in scores if (values := objectives_of([self.study.goal], score)[0])]

    def _rerun(self, elapsed_s: float) -> bool:
        """Whether all re-runs are done, or there are none."""
        seeds = self.study.settings.finals.seeds
        if not seeds or RERUNS in self.history.skipped or not self.candidates():
            return True
        works = [(entry, seed) for entry in self.candidates() for seed in seeds]
        has_begun = any(name.startswith("final-") for name in self.history.work)
        if not has_begun and (why := self._too_dear(len(works), elapsed_s)):
            self.jobs.append("skipped", what=RERUNS, why=why)
            return True
        open_works = [work for work in works if _final(*work) not in self.history.scores]
        for entry, seed in open_works[: self.study.settings.max_concurrent]:
            self._rerun_one(entry, seed)
        return not open_works

    def _rerun_one(self, entry: Entry, seed: int) -> None:
        name = _final(entry, seed)
        trained = self.jobs.look(f"{name}/train", self.trials.ranks, lambda: self.trials.train_again(entry, seed, name))
        if trained is None:
            return
        metrics: dict[str, Any] = {"failed": trained["failure"]["evidence"]} if trained["failure"] else {}
        run_dir = Path(trained["run_dir"])
        if not metrics:
            metrics = training_metrics(run_dir)
            if evaluation := self.study.settings.evaluation:
                ranks = self.trials.asking(evaluation)
                evaluated = self.jobs.look(
                    f"{name}/evaluate", ranks, lambda: self.trials.evaluate(evaluation, run_dir, name)
                )
                if evaluated is None:
                    return
                why = evaluated["failure"]
                metrics |= {"failed": why["evidence"]} if why else evaluation_metrics(Path(evaluated["run_dir"]))
        self.jobs.append("scored", work=name, metrics={**finite(metrics), "train_run": str(run_dir)})

    def _too_dear(self, count: int, elapsed_s: float) -> str:
        """Why re-runs would pass a limit; empty where they would not, as far as the trials tell."""
        limits, done = self.study.settings.limits, self.history.completed
        if not done:
            return ""
        ended = [
            work.ended
            for entry in done
            for name, work in self.history.work.items()
            if work.ended and name.startswith(f"trial-{entry.number}/")
        ]
        seconds = sum(each["seconds"] for each in ended) / len(done) * count / self.study.settings.max_concurrent
        gpu_seconds = sum(each["gpu_seconds"] for each in ended) / len(done) * count
        if limits.wall_hours is not None and elapsed_s + seconds > limits.wall_hours * 3600:
            return (
                f"{count} re-runs take about {seconds / 3600:.2f} hours more, beyond wall_hours = {limits.wall_hours:g}"
            )
        if limits.gpu_hours is not None and self.history.gpu_seconds + gpu_seconds > limits.gpu_hours * 3600:
            hours = gpu_seconds / 3600
            return f"{count} re-runs take about {hours:.2f} GPU hours more, beyond gpu_hours = {limits.gpu_hours:g}"
        return ""

    def _test(self, winner: Entry) -> bool:
        """Whether the test set has been looked at; at once by as many jobs as there may be trials."""
        test = self.study.settings.test
        if not test:
            return True
        works = {f"{TESTS}/baseline": None, **self.runs(winner)}
        template = self.history.template
        if template and template.measured and template is not winner:
            works |= self.runs(template)
        open_works = [work for work in works.items() if work[0] not in self.history.scores]
        for name, run_dir in open_works[: self.study.settings.max_concurrent]:
            self._test_one(test, name, run_dir)
        return not open_works

    def _test_one(self, test: str, name: str, run_dir: Path | None) -> None:
        def submit() -> JobHandle:
            if run_dir is None:
                return self.trials.evaluate_model(test, name)
            return self.trials.evaluate(test, run_dir, name)

        if ended := self.jobs.look(name, self.trials.asking(test), submit):
            why = ended["failure"]
            metrics = {"failed": why["evidence"]} if why else evaluation_metrics(Path(ended["run_dir"]))
            self.jobs.append("scored", work=name, metrics=finite(metrics))

    def runs(self, entry: Entry) -> dict[str, Path]:
        """By the name of its test, each run of a trial that is tested: its re-runs, or where there are none itself. A
        trial that was made elsewhere has none of its own."""
        found = {}
        for seed in self.study.settings.finals.seeds:
            score = self.history.scores.get(_final(entry, seed), {})
            if score and "failed" not in score:
                found[f"{test_of(entry)}/seed-{seed}"] = Path(score["train_run"])
        if not found:
            work = self.history.work.get(f"{work_name(entry.number, entry.measured[-1].rung)}/train")
            if work and work.ended:
                found[test_of(entry)] = Path(work.ended["run_dir"])
        return found


def test_of(entry: Entry) -> str:
    """The name of a trial's evaluations on the test set, or what it begins with."""
    return f"{TESTS}/trial-{entry.number}"


def _final(entry: Entry, seed: int) -> str:
    return f"final-{entry.number}/seed-{seed}"
