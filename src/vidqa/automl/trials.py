"""Trials as jobs: a training to the end of a rung, an evaluation where the goal asks for one, and what they reached."""

from __future__ import annotations

import math
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.jobs.api import JobHandle, attach, submit
from vidqa.jobs.job_spec import process_count
from vidqa.automl import specs
from vidqa.automl.history import BASELINE, Entry
from vidqa.automl.journal import Event
from vidqa.automl.moves import Measured
from vidqa.automl.results import (
    before_training,
    check_steps,
    end_step,
    evaluation_metrics,
    objectives_of,
    training_metrics,
)
from vidqa.automl.study import Study
from vidqa.automl.work import CANCELED, Jobs


class Trials:
    """The trials of a study; `advance` brings a running one a step further, whatever became of it meanwhile."""

    def __init__(self, study: Study, jobs: Jobs) -> None:
        self.study, self.jobs, self.history = study, jobs, jobs.history

    def advance(self, entry: Entry) -> None:
        name = work_name(entry.number, entry.rung)
        trained = self.jobs.look(f"{name}/train", self.ranks, lambda: self._train(entry))
        if trained is None or self._is_over(entry, trained):
            return
        run_dir = Path(trained["run_dir"])
        metrics = training_metrics(run_dir)
        if self.study.settings.evaluation:
            work = f"{name}/evaluate"
            evaluated = self.jobs.look(
                work, self.asking(self._evaluation), lambda: self.evaluate(self._evaluation, run_dir, name)
            )
            if evaluated is None or self._is_over(entry, evaluated):
                return
            metrics |= evaluation_metrics(Path(evaluated["run_dir"]))
        self._measure(entry, run_dir, metrics)

    @property
    def lacks_baseline(self) -> bool:
        """Whether the model before training is still to be evaluated. Without an evaluation, the template's training
        measures it before its first step."""
        return bool(self.study.settings.evaluation) and BASELINE not in self.history.scores

    def baseline(self) -> None:
        """Bring the evaluation of the model before training a step further."""
        ranks = self.asking(self._evaluation)
        ended = self.jobs.look(BASELINE, ranks, lambda: self.evaluate_model(self._evaluation, BASELINE))
        if ended is not None:
            why = ended["failure"]
            self._score(BASELINE, {"failed": _said(why)} if why else evaluation_metrics(Path(ended["run_dir"])))

    def evaluate(self, spec_name: str, run_dir: Path, work: str) -> JobHandle:
        path = specs.write_evaluation(self.study, spec_name, run_dir, self.study.folder / folder_of(work))
        return self._submit("evaluate", path)

    def evaluate_model(self, spec_name: str, work: str) -> JobHandle:
        path = specs.write_baseline(self.study, spec_name, self.study.folder / folder_of(work))
        return self._submit("evaluate", path)

    def train_again(self, entry: Entry, seed: int, work: str) -> JobHandle:
        """The whole training of a trial's values, as the template's schedule says, with another seed."""
        folder = self.study.folder / folder_of(work)
        return self._submit(
            "train", specs.write_training(self.study, specs.rerun(self.study, entry, seed, folder), folder)
        )

    @cached_property
    def ranks(self) -> int:
        """Processes of a training."""
        return process_count(self.study.base)

    def asking(self, spec_name: str) -> int:
        """Processes of an evaluation."""
        return _processes(self.study.folder / spec_name)

    @property
    def _evaluation(self) -> str:
        assert self.study.settings.evaluation
        return self.study.settings.evaluation

    def _train(self, entry: Entry) -> JobHandle:
        folder = self.study.folder / folder_of(work_name(entry.number, entry.rung))
        changes = specs.trial_changes(self.study, entry.values, self._target(entry), folder.parent / "runs")
        source = self._source(entry)
        if source is None:
            if entry is self.history.template and not self.study.settings.evaluation:
                changes["validation.val_before_train"] = True
            return self._submit("train", specs.write_training(self.study, changes, folder))
        trial, reached = source
        before = self.history.work[f"{work_name(trial.number, reached.rung)}/train"].ended
        assert before
        job = attach(before["job_id"])
        del changes["train.resume"]
        return job.continue_from(
            job.checkpoints()[-1],
            folder / specs.SPEC,
            changes,
            self.study.settings.launch_resources,
            ready=self.jobs.ready,
        )

    def _submit(self, action: str, path: Path) -> JobHandle:
        asked = self.study.settings
        return submit(action, path, asked.platform, asked.launch_resources, ready=self.jobs.ready)

    def _target(self, entry: Entry) -> int | None:
        """Steps in all at the end of the present rung; None where a training ends by itself."""
        if not self.study.by_steps:
            return None
        return self.study.algorithm.rungs[entry.bracket][entry.rung]

    def _source(self, entry: Entry) -> tuple[Entry, Measured] | None:
        """The trial and the rung whose last checkpoint this one goes on from: its own, or its parent's of the rung
        below. None where it starts from the model."""
        if entry.measured:
            return entry, entry.measured[-1]
        if entry.parent is None:
            return None
        parent = self.history.trials[entry.parent]
        return parent, next(each for each in parent.measured if each.rung == entry.rung - 1)

    def _is_over(self, entry: Entry, ended: Event) -> bool:
        """Whether a job of the trial ended so that it reaches nothing."""
        why = ended["failure"]
        if why and why["class"] == CANCELED:
            self.jobs.append("pruned", number=entry.number, why=why["evidence"])
        elif why:
            self.jobs.append("failed", number=entry.number, rung=entry.rung, why=_said(why))
        return bool(why)

    def _measure(self, entry: Entry, run_dir: Path, metrics: dict[str, Any]) -> None:
        objectives, wrong = objectives_of(self.study.settings.as_goals, metrics)
        if wrong:
            self.jobs.append("failed", number=entry.number, rung=entry.rung, why=wrong)
            return
        if (target := self._target(entry)) is not None and self.study.has_rungs:
            source = self._source(entry)
            check_steps(run_dir, source[1].steps if source else 0, target)
        if entry is self.history.template and BASELINE not in self.history.scores:
            self._score(BASELINE, before_training(run_dir))
        is_last = entry.rung == len(self.study.algorithm.rungs[entry.bracket]) - 1
        self.jobs.append(
            "measured",
            number=entry.number,
            rung=entry.rung,
            steps=target or end_step(run_dir),
            objectives=objectives,
            metrics={**finite(metrics), "train_run": str(run_dir)},
            state="complete" if is_last else "paused",
        )

    def _score(self, work: str, metrics: dict[str, Any]) -> None:
        self.jobs.append("scored", work=work, metrics=finite(metrics))


@cache
def _processes(path: Path) -> int:
    return process_count(spec.load(path, "evaluate"))


def work_name(number: int, rung: int) -> str:
    return f"trial-{number}/rung-{rung}"


def folder_of(work: str) -> Path:
    """Where the specs and runs of a piece of work lie, from the study's folder."""
    first, _, rest = work.partition("/")
    kind, _, number = first.partition("-")
    return Path(f"{kind}s", number, rest) if number else Path(first, rest)


def finite(metrics: dict[str, Any]) -> dict[str, Any]:
    """What JSON can hold of them."""
    return {name: each for name, each in metrics.items() if not isinstance(each, float) or math.isfinite(each)}


def _said(why: dict[str, str]) -> str:
    return f"{why['class']}: {why['evidence']}"
