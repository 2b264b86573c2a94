"""Finals after a search: re-runs of the best trials and the template with other seeds, a winner, and one test.

The best of many trials is partly best by chance. Re-runs with new seeds show how much of its lead is real; the test
set, which selected nothing, measures its quality. Each evaluation on the test set is run once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import fmean

from vidqa.automl.decisions import Trial
from vidqa.automl.history import History
from vidqa.automl.study import Study
from vidqa.automl.trials import Trials, objectives_of, work_name
from vidqa.core.files import remove, require_owned
from vidqa.core.run_folder import UNFINISHED

RERUNS, TESTS = "reruns", "test"


class FinalRuns:
    """Re-runs, winner and test; `advance` carries them out and ends the study."""

    def __init__(self, study: Study, history: History) -> None:
        self.study, self.history, self.settings = study, history, study.settings.finals

    def advance(self, trials: Trials, elapsed_s: float) -> None:
        if not self._rerun(trials, elapsed_s):
            return
        winner = self.winner()
        if winner is None or self._test(trials, winner):
            trials.jobs.append("finished", winner=None if winner is None else winner.number)

    def candidates(self) -> list[Trial]:
        """The best trials of the search, and the template's."""
        best = self.history.ranked(self.study.goal)[: self.settings.top]
        template = self.history.template
        return [*best, template] if template and template.measured and template not in best else best

    def winner(self) -> Trial | None:
        """The best candidate: by mean objective over re-runs if all candidates have some, else by the search."""
        candidates = self.candidates()
        means = {trial.number: fmean(values) for trial in candidates if (values := self.rerun_objectives(trial))}
        if not candidates or len(means) < len(candidates):
            return candidates[0] if candidates else None
        return min(candidates, key=lambda trial: self.study.goal.loss(means[trial.number]))

    def rerun_objectives(self, trial: Trial) -> list[float]:
        """The first goal of each re-run that did not fail."""
        scores = [self.history.scores.get(_rerun_name(trial, seed), {}) for seed in self.settings.seeds]
        return [values[0] for score in scores if (values := objectives_of([self.study.goal], score)[0])]

    def tested_runs(self, trial: Trial) -> dict[str, Path]:
        """Runs of a trial to evaluate on the test set, by the name of the test: its re-runs, or without these its own
        runs. A trial that was run elsewhere has none."""
        runs = {}
        for seed in self.settings.seeds:
            score = self.history.scores.get(_rerun_name(trial, seed), {})
            if score and "failed" not in score:
                runs[f"{test_of(trial)}/seed-{seed}"] = Path(score["train_run"])
        if not runs:
            work = self.history.work.get(f"{work_name(trial.number, trial.measured[-1].rung)}/train")
            if work and work.ended:
                runs[test_of(trial)] = Path(work.ended["run_dir"])
        return runs

    def _rerun(self, trials: Trials, elapsed_s: float) -> bool:
        """Whether all re-runs are done, or there are none."""
        if not self.settings.seeds or RERUNS in self.history.skipped or not self.candidates():
            return True
        pairs = [(trial, seed) for trial in self.candidates() for seed in self.settings.seeds]
        has_begun = any(name.startswith("final-") for name in self.history.work)
        if not has_begun and (why := self._over_budget(len(pairs), elapsed_s)):
            trials.jobs.append("skipped", what=RERUNS, why=why)
            return True
        unscored = [pair for pair in pairs if _rerun_name(*pair) not in self.history.scores]
        for trial, seed in unscored[: self.study.settings.max_concurrent]:
            name = _rerun_name(trial, seed)
            if done := trials.train_and_evaluate(name, partial(trials.train_again, trial, seed, name)):
                run_dir, metrics, failure = done
                failed = {"failed": failure["evidence"]} if failure else {}
                trials.score(name, {**metrics, **failed, "train_run": str(run_dir)})
        return not unscored

    def _over_budget(self, count: int, elapsed_s: float) -> str:
        """The reason why re-runs would exceed a limit, estimated from the trials; empty if they would not."""
        limits, history = self.study.settings.limits, self.history
        prefixes = tuple(f"trial-{trial.number}/" for trial in history.completed)
        ended = [work.ended for name, work in history.work.items() if work.ended and name.startswith(prefixes)]
        if not prefixes:
            return ""
        hours = sum(end["seconds"] for end in ended) / 3600 / len(prefixes) * count / self.study.settings.max_concurrent
        gpu_hours = sum(end["gpu_seconds"] for end in ended) / 3600 / len(prefixes) * count
        if limits.wall_hours is not None and elapsed_s / 3600 + hours > limits.wall_hours:
            return f"{count} re-runs take about {hours:.2f} hours more, beyond wall_hours = {limits.wall_hours:g}"
        if limits.gpu_hours is not None and history.gpu_seconds / 3600 + gpu_hours > limits.gpu_hours:
            return f"{count} re-runs take about {gpu_hours:.2f} GPU hours more, beyond gpu_hours = {limits.gpu_hours:g}"
        return ""

    def _test(self, trials: Trials, winner: Trial) -> bool:
        """Whether all tests are done; runs as many in parallel as trials may run."""
        test = self.study.settings.test
        if not test:
            return True
        runs: dict[str, Path | None] = {f"{TESTS}/baseline": None, **self.tested_runs(winner)}
        template = self.history.template
        if template and template.measured and template is not winner:
            runs |= self.tested_runs(template)
        unscored = [(name, run_dir) for name, run_dir in runs.items() if name not in self.history.scores]
        for name, run_dir in unscored[: self.study.settings.max_concurrent]:
            trials.score_evaluation(name, test, run_dir)
        return not unscored


def test_of(trial: Trial) -> str:
    """The name of a trial's evaluation on the test set, or the prefix of the names of several."""
    return f"{TESTS}/trial-{trial.number}"


def _rerun_name(trial: Trial, seed: int) -> str:
    return f"final-{trial.number}/seed-{seed}"


def removable(study: Study, history: History) -> list[Path]:
    """Folders that are no longer needed: checkpoints of trials that are neither running nor paused nor possible
    parents; exports of trials that are neither the template nor among the best."""
    if study.settings.keep == "all":
        return []
    best = {trial.number for trial in history.ranked(study.goal)[: study.settings.finals.top]}
    may_be_parents = study.settings.algorithm == "pbt" and not history.searched
    folders: list[Path] = []
    for trial in history.trials:
        if may_be_parents or (trial.state in ("running", "paused") and not history.searched):
            continue
        for run in _runs(history, trial):
            folders.append(run / "checkpoints")
            if trial.number not in best and trial is not history.template:
                folders.append(run / "safetensors")
    reruns = [Path(score.get("train_run", "")) for score in history.scores.values()]
    folders += [run / "checkpoints" for run in reruns if run.name]  # "." if no job was started
    return [path for path in folders if str(path) not in history.removed and path.is_dir()]


def is_stranded(history: History, trial: Trial) -> bool:
    """Whether a paused trial cannot resume, because its checkpoints were removed at the end of the search."""
    return trial.state == "paused" and str(_runs(history, trial)[-1] / "checkpoints") in history.removed


def remove_whole(path: Path, study: Study) -> None:
    """Rename, then remove a folder, so that no partial folder is left under its name. Raises REMOVAL_OUTSIDE."""
    require_owned(path, study.folder)
    doomed = path.with_name(f"{UNFINISHED}{path.name}")
    path.rename(doomed)
    remove(doomed, owner=study.folder)


def _runs(history: History, trial: Trial) -> list[Path]:
    """The run folders of a trial's finished trainings, by rung."""
    names = [f"{work_name(trial.number, rung)}/train" for rung in range(trial.rung + 1)]
    ended = [work.ended for name in names if (work := history.work.get(name)) and work.ended]
    return [Path(end["run_dir"]) for end in ended if end["run_dir"]]
