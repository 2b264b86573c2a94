"""Trials as jobs: a training to the end of a rung, an evaluation if the goal needs one, and their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from vidqa.automl import specs
from vidqa.automl.decisions import Goal, Measured, Trial
from vidqa.automl.history import BASELINE
from vidqa.automl.problems import STUDY_SETTINGS
from vidqa.automl.study import Study
from vidqa.automl.trial_jobs import CANCELED, Jobs
from vidqa.core.files import read_object
from vidqa.core.metric_names import LOSS
from vidqa.core.problem import INTERNAL
from vidqa.core.run_folder import METRICS, TRAINER, RunFolder, read_checkpoint, read_metrics
from vidqa.evaluation.answers import RULES
from vidqa.evaluation.metrics import numbers_of, read_scores
from vidqa.jobs.api import JobHandle, attach, submit
from vidqa.jobs.job_spec import process_count

Metrics = dict[str, Any]
STEPS_REMEDY = "report it with this run folder and that of the rung before"


class Trials:
    """The trials of a study; `advance` processes a running one in any state."""

    def __init__(self, study: Study, jobs: Jobs) -> None:
        self.study, self.jobs, self.history = study, jobs, jobs.history

    def advance(self, trial: Trial) -> None:
        name = work_name(trial.number, trial.rung)
        done = self.train_and_evaluate(name, lambda: self._train(trial))
        if done is None:
            return
        run_dir, metrics, failure = done
        if failure and failure["class"] == CANCELED:
            self.jobs.append("pruned", number=trial.number, why=failure["evidence"])
        elif failure:
            self.jobs.append("failed", number=trial.number, rung=trial.rung, why=_failure_text(failure))
        else:
            self._measure(trial, run_dir, metrics)

    def train_and_evaluate(
        self, name: str, train: Callable[[], JobHandle]
    ) -> tuple[Path, Metrics, dict[str, str] | None] | None:
        """Run folder and metrics of a training with the study's evaluation of it, or the failure of one; None while
        they run."""
        trained = self.jobs.poll(f"{name}/train", process_count(self.study.base), train)
        if trained is None:
            return None
        run_dir, evaluation = Path(trained["run_dir"]), self.study.settings.evaluation
        if trained["failure"]:
            return run_dir, {}, trained["failure"]
        metrics = training_metrics(run_dir)
        if evaluation:
            ranks = process_count(self.study.evaluations[evaluation])
            evaluated = self.jobs.poll(f"{name}/evaluate", ranks, lambda: self.evaluate(evaluation, run_dir, name))
            if evaluated is None:
                return None
            if evaluated["failure"]:
                return run_dir, metrics, evaluated["failure"]
            metrics |= evaluation_metrics(Path(evaluated["run_dir"]))
        return run_dir, metrics, None

    @property
    def lacks_baseline(self) -> bool:
        """Whether the baseline, the model before training, still needs an evaluation. Without an evaluation spec, the
        template's training measures it before its first step."""
        return bool(self.study.settings.evaluation) and BASELINE not in self.history.scores

    def advance_baseline(self) -> None:
        """Advance the evaluation of the model before training."""
        if self.lacks_baseline and (evaluation := self.study.settings.evaluation):
            self.score_evaluation(BASELINE, evaluation, None)

    def score_evaluation(self, name: str, spec_name: str, run_dir: Path | None) -> None:
        """Advance an evaluation of a run, or of the model before training, and record its scores at its end."""
        ranks = process_count(self.study.evaluations[spec_name])
        if ended := self.jobs.poll(name, ranks, lambda: self.evaluate(spec_name, run_dir, name)):
            failure, run_dir = ended["failure"], Path(ended["run_dir"])
            self.score(name, {"failed": _failure_text(failure)} if failure else evaluation_metrics(run_dir))
            if name == BASELINE and not failure:  # a null metric of this model may have a value in another
                names = numbers_of(read_scores(run_dir), types=(int, float, NoneType))
                self._check_goals(run_dir, names, of_training=False)

    def score(self, work: str, metrics: Metrics) -> None:
        self.jobs.append("scored", work=work, metrics=finite(metrics))

    def evaluate(self, spec_name: str, run_dir: Path | None, work: str) -> JobHandle:
        """Submit an evaluation of a run, or of the model before training."""
        folder = self.study.folder / folder_of(work)
        return self._submit("evaluate", specs.write_evaluation(self.study, spec_name, run_dir, folder))

    def train_again(self, trial: Trial, seed: int, work: str) -> JobHandle:
        """Submit a re-run: the whole training of a trial's values, with the template's schedule and another seed."""
        folder = self.study.folder / folder_of(work)
        changes = specs.rerun_changes(self.study, trial.values, seed, folder)
        return self._submit("train", specs.write_training(self.study, changes, folder))

    def _train(self, trial: Trial) -> JobHandle:
        folder = self.study.folder / folder_of(work_name(trial.number, trial.rung))
        changes = specs.trial_changes(self.study, trial.values, self._target(trial), folder.parent / "runs")
        source = self._source(trial)
        if source is None:
            if trial is self.history.template and not self.study.settings.evaluation:
                changes["validation.val_before_train"] = True
            return self._submit("train", specs.write_training(self.study, changes, folder))
        origin, reached = source
        before = self.history.work[f"{work_name(origin.number, reached.rung)}/train"].ended
        assert before
        job = attach(before["job_id"])
        del changes["train.resume"]
        resources = self.study.settings.resources
        return job.continue_from(job.checkpoints()[-1], folder / specs.SPEC, changes, resources, ready=self.jobs.ready)

    def _submit(self, action: str, path: Path) -> JobHandle:
        settings = self.study.settings
        return submit(action, path, settings.platform, settings.resources, ready=self.jobs.ready)

    def _target(self, trial: Trial) -> int | None:
        """The total of steps at the end of the present rung; None if a training ends by its epochs."""
        if not self.study.by_steps:
            return None
        return self.study.algorithm.rungs[trial.bracket][trial.rung]

    def _source(self, trial: Trial) -> tuple[Trial, Measured] | None:
        """The trial and rung whose last checkpoint this one resumes from: its own, or its parent's at the previous
        rung. None if it starts from the base model."""
        if trial.measured:
            return trial, trial.measured[-1]
        if trial.parent is None:
            return None
        parent = self.history.trials[trial.parent]
        return parent, next(result for result in parent.measured if result.rung == trial.rung - 1)

    def _check_goals(self, run_dir: Path, measured: Collection[str], *, of_training: bool) -> None:
        """Raise STUDY_SETTINGS for a goal that no trial can have, since this run does not measure it."""
        for goal in self.study.settings.goals:
            if self.study.settings.of_training(goal.metric) == of_training and goal.metric not in measured:
                message = f"{run_dir} measures no {goal.metric}; it has {', '.join(sorted(measured)[:40])}"
                remedy = "plan a new study, in another folder, with one of these: --metric NAME"
                raise STUDY_SETTINGS.error(f"goals {goal.metric}", message, remedy)

    def _measure(self, trial: Trial, run_dir: Path, metrics: Metrics) -> None:
        objectives, missing = objectives_of(self.study.settings.goals, metrics)
        if missing:
            if trial is self.history.template:
                self._check_goals(run_dir, metrics, of_training=True)
            self.jobs.append("failed", number=trial.number, rung=trial.rung, why=missing)
            return
        if (target := self._target(trial)) is not None and self.study.algorithm.has_rungs:
            source = self._source(trial)
            check_steps(run_dir, source[1].steps if source else 0, target)
        if trial is self.history.template and BASELINE not in self.history.scores:
            self.score(BASELINE, before_training(run_dir))
        is_last = trial.rung == len(self.study.algorithm.rungs[trial.bracket]) - 1
        self.jobs.append(
            "measured",
            number=trial.number,
            rung=trial.rung,
            steps=target or end_step(run_dir),
            objectives=objectives,
            metrics={**finite(metrics), "train_run": str(run_dir), "answer_rules": RULES},
            state="complete" if is_last else "paused",
        )


def work_name(number: int, rung: int) -> str:
    return f"trial-{number}/rung-{rung}"


def folder_of(work: str) -> Path:
    """The folder for specs and runs of a work unit, relative to the study's folder."""
    first, _, rest = work.partition("/")
    kind, _, number = first.partition("-")
    return Path(f"{kind}s", number, rest) if number else Path(first, rest)


def finite(metrics: Mapping[str, Any]) -> Metrics:
    """The metrics that JSON can represent."""
    return {name: value for name, value in metrics.items() if not isinstance(value, float) or math.isfinite(value)}


def _failure_text(failure: Mapping[str, str]) -> str:
    return f"{failure['class']}: {failure['evidence']}"


def training_metrics(run_dir: Path) -> Metrics:
    """The metrics of a training at its best export, else at its end."""
    best = read_object(run_dir / "best.json").get("step")
    metrics: Metrics = {}
    for step, row in _rows(run_dir):
        metrics |= row
        if step == best and any(name.startswith("val/") for name in row):
            return metrics | {"best_step": best}
    return metrics


def before_training(run_dir: Path) -> Metrics:
    """The validation metrics before the first step; empty without."""
    return next((row for step, row in _rows(run_dir) if step == 0 and LOSS in row), {})


def _rows(run_dir: Path) -> list[tuple[int, Metrics]]:
    """Step and metrics of each row that a training wrote."""
    try:
        rows = read_metrics(run_dir / METRICS)
    except OSError:
        return []
    return [(row.pop("step"), {name: value for name, value in row.items() if name != "time"}) for row in rows]


def evaluation_metrics(run_dir: Path) -> Metrics:
    """The numbers of metrics.json by dotted name, and the intervals and slices for reports."""
    metrics = read_scores(run_dir)
    shown: Metrics = {name: metrics[name] for name in ("accuracy_ci95", "headline", "by_kind") if name in metrics}
    return {**numbers_of(metrics), **shown, "run_dir": str(run_dir)}


def objectives_of(goals: Sequence[Goal], metrics: Mapping[str, Any]) -> tuple[list[float], str]:
    """The values of the goals, or the reason why one is missing: absent, or not finite."""
    values = []
    for goal in goals:
        value = metrics.get(goal.metric)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            names = sorted(name for name, other in metrics.items() if isinstance(other, (int, float)))
            return [], f"it has no {goal.metric}; there are: {', '.join(names[:20]) or 'none'}"
        if not math.isfinite(value):
            return [], f"its {goal.metric} is {value}"
        values.append(float(value))
    return values, ""


def end_step(run_dir: Path) -> int:
    """The optimizer step at which a training ended."""
    checkpoints = RunFolder(run_dir).complete(run_dir / "checkpoints", TRAINER)
    if checkpoints:
        return int(read_checkpoint(checkpoints[-1])["step"])
    return int(RunFolder(run_dir).read_status().get("step", 0))


def check_steps(run_dir: Path, before: int, target: int) -> None:
    """Check the steps of a rung: it resumed at the step that the previous rung had reached, and took exactly the steps
    in between, so that the steps of all rungs add up to `target`. Raises INTERNAL."""
    resumes = RunFolder(run_dir).read_run().get("resumes") or [{"step": 0}]
    first, last = int(resumes[0].get("step", -1)), end_step(run_dir)
    if before and first != before:
        message = f"the rung before ended at step {before}; this run continued from step {first}"
        raise INTERNAL.error(run_dir, message, STEPS_REMEDY)
    if last != target:
        raise INTERNAL.error(run_dir, f"it ended at step {last} instead of step {target}", STEPS_REMEDY)
