"""A study in its folder: settings, specs, space, algorithm, and a fingerprint of them all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor
from pathlib import Path
from typing import Any

from vidqa import spec
from vidqa.automl import data_share
from vidqa.automl.algorithms import BY_STEPS, Fidelity, Searcher, Task, algorithm
from vidqa.automl.decisions import Goal
from vidqa.automl.goals import check_goals
from vidqa.automl.history import History
from vidqa.automl.journal import StudyJournal, read
from vidqa.automl.problems import RANGE, STUDY_CHANGED, STUDY_MISSING, STUDY_SETTINGS
from vidqa.automl.settings import FILE, ON_THIS_MACHINE, Settings, Steps, read_settings
from vidqa.automl.space import Space, search_space
from vidqa.core.cli import USAGE
from vidqa.core.files import annotations_in_folder, content_hash
from vidqa.core.metric_names import ANSWERED
from vidqa.core.problem import raise_errors
from vidqa.evaluation.answers import RULES
from vidqa.jobs.job_spec import process_count
from vidqa.preflight.gpus import least_memory, visible_gpus
from vidqa.spec import Spec, TrainSpec
from vidqa.spec.keys import value_at, with_values
from vidqa.spec.schedule import data_ranks, train_samples

FREE = {"limits", "finals", "keep", "platform", "resources", "max_concurrent", "max_trials", "test"}
UNCOUNTED = (
    "give annotations that can be read here, add --set steps.longest=N, or choose --algorithm bayesian"  # remedy
)
DRIVER_GIB = 1.0  # of a GPU, not available to jobs
ALONE = "set resources.trials_per_gpu = 1, or use single-process trainings and evaluations on local or docker"
DECAY = "train.optm_decay_type"
SIZED = ("cma-es", "pbt")  # algorithms whose population depends on the number of trials


@dataclass(frozen=True)
class Study:
    """Settings, specs, space and algorithm of a search; all constant while it runs."""

    folder: Path
    settings: Settings
    base: TrainSpec
    space: Space
    algorithm: Searcher
    data: dict[str, Any]  # changes of the template for trials on a share of the videos
    memory_gib: float | None = None  # of a GPU for each job, if several share it
    evaluations: Mapping[str, Spec] = field(default_factory=dict)  # by their files in the folder

    @cached_property
    def trained(self) -> TrainSpec:
        """The template with the data of trials."""
        return with_values(self.base, self.data)

    @property
    def specs(self) -> list[Spec]:
        """The specs of all its jobs."""
        return [self.base, *self.evaluations.values()]

    @property
    def goal(self) -> Goal:
        """The first goal, which decides the winner."""
        return self.settings.goals[0]

    @property
    def rungs(self) -> list[list[int]]:
        """Optimizer steps at the end of each rung, by bracket."""
        return [list(bracket) for bracket in self.algorithm.rungs]

    @property
    def by_steps(self) -> bool:
        """Whether the study sets the steps of a trial, instead of the trial's epochs."""
        return self.algorithm.has_rungs or self.settings.steps.longest is not None

    @property
    def longest(self) -> int:
        """Steps of a training to the last rung."""
        return max(bracket[-1] for bracket in self.rungs)

    @property
    def whole(self) -> int:
        """Steps of a re-run, which has all videos."""
        return _longest(self.settings, self.base) if self.data else self.longest

    @property
    def notes(self) -> list[str]:
        """Remarks for the user before the search starts."""
        notes = list(self.space.notes)
        if self.settings.algorithm in BY_STEPS and not self.algorithm.has_rungs:
            few = f"{self.longest} steps are too few to divide, so that every trial trains to the end"
            notes.append(f"{self.settings.algorithm} has one rung: {few}")
        unused = ["limits.gpu_hours"] if self.settings.limits.gpu_hours is not None else []
        unused += ["resources.trials_per_gpu"] if self.settings.resources.trials_per_gpu > 1 else []
        if unused and self.settings.platform in ON_THIS_MACHINE and not visible_gpus():
            notes.append(f"no GPU is visible on this machine, so that nothing uses {' and '.join(unused)}")
        return notes

    @cached_property
    def space_dict(self) -> dict[str, Any]:
        """The space in its JSON form."""
        return json.loads(json.dumps(self.space.as_dict()))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that trials depend on: they are comparable only while it is unchanged. Limits, platform
        and concurrency may change; defaults are left out, so that a new version may have more settings."""
        settings = self.settings
        specs = [name for name in (settings.spec, settings.evaluation) if name]
        specs += [f"{data_share.FOLDER}/{data_share.SHARE}"] if self.data else []
        parts = {
            "settings": settings.model_dump(mode="json", exclude=FREE, exclude_defaults=True),
            "specs": [content_hash(self.folder / name) for name in specs],
            "space": self.space_dict,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def check_beginning(self) -> None:
        """Check a study before its first trial; studies that began before these checks existed skip them. Raises
        STUDY_SETTINGS for goals of unknown names, and for rung settings without rungs; AUTOML_RANGE for searched and
        fixed keys that the study itself sets in every trial."""
        check_goals(self.settings, self.base, self.evaluations)
        searched = {parameter.name for parameter in self.space.parameters}
        other = {key for key, value in self.space.fixed.items() if value not in (None, value_at(self.base, key))}
        why = dict.fromkeys(self.data, "its data are set by data_share")
        why |= dict.fromkeys(("train.output_dir", "train.resume"), "each trial has its own folder")
        if self.by_steps:
            same_steps = "all trials have the same steps (steps.longest, else those of the template)"
            why |= dict.fromkeys(("train.epoch", "train.max_num_steps"), same_steps)
        if self.algorithm.has_rungs and DECAY in searched:
            why[DECAY] = f"{self.settings.algorithm} has rungs, and their trials a constant rate"
        remedy = "leave it out, or set it in the training spec that --spec names"
        raise_errors(
            [
                RANGE.at(key, f"the study itself sets {key}: {why[key]}", remedy)
                for key in sorted((searched | other) & why.keys())
            ]
        )
        steps = self.settings.steps
        if self.settings.algorithm not in BY_STEPS and steps != Steps(longest=steps.longest):
            message = f"steps.shortest and steps.reduction divide rungs, but {self.settings.algorithm} has no rungs"
            raise STUDY_SETTINGS.error("steps", message, f"leave them out, or choose one of {', '.join(BY_STEPS)}")

    def fits(self, history: History) -> None:
        """Raise STUDY_CHANGED if the trials of a journal were made with another study."""
        created = history.created
        if created is None:
            self.check_beginning()
            return
        old_rungs = created["rungs"]
        if self.rungs[: len(old_rungs)] != old_rungs:
            raise STUDY_CHANGED.error(self.folder, f"the rungs were {old_rungs} and would be {self.rungs}")
        sized, most = created["settings"].get("max_trials"), self.settings.max_trials
        if self.settings.algorithm in SIZED and most != sized:
            name = self.settings.algorithm
            message = f"{name} started with max_trials = {sized}, the size of its population; it is {most}"
            raise STUDY_CHANGED.error(self.folder, message, "restore it, or plan a new study")
        if created["fingerprint"] == self.fingerprint:
            return
        if created["space"] != self.space_dict:
            message = f"the space was {json.dumps(created['space'])[:300]} and is {json.dumps(self.space_dict)[:300]}"
            raise STUDY_CHANGED.error(self.folder, message)
        old, new = created["settings"], self.settings.model_dump(mode="json")
        changed = [key for key in sorted(new.keys() - FREE) if old.get(key) != new[key]]
        message = "; ".join(f"{key}: {old.get(key)!r} -> {new[key]!r}" for key in changed)
        raise STUDY_CHANGED.error(self.folder, message or "a spec next to study.toml has changed")

    @property
    def data_hashes(self) -> dict[str, str]:
        """SHA-256 of the annotation files that its jobs read, by path; of those that are files on this machine."""
        custom = self.base.custom
        paths = [custom.train_dataset.annotation_path, custom.val_dataset.annotation_path]
        paths += [value_at(evaluation, "dataset.annotation_path") for evaluation in self.evaluations.values()]
        files = [annotations_in_folder(path) or Path(path) for path in filter(None, paths)]
        return {str(file): content_hash(file) for file in files if file.is_file()}

    def check_comparable(self, history: History) -> None:
        """Raise STUDY_CHANGED if new results could not be compared with those of a journal, because annotations have
        changed, or the answer rules that scored a trial."""
        remedy = "restore it, or plan a new study in another folder"
        changed = sorted(path for path, new in self.data_hashes.items() if history.data.get(path, new) != new)
        if changed and any(trial.measured for trial in history.trials):
            raise STUDY_CHANGED.error(changed[0], "its content has changed since trials were measured", remedy)
        of_training = self.settings.of_training
        if all(of_training(goal.metric) and goal.metric not in ANSWERED for goal in self.settings.goals):
            return
        for trial in history.trials:
            rules = trial.metrics.get("answer_rules", RULES)
            if rules != RULES:
                message = f"trial {trial.number} was scored by the answer rules {rules}; this version has {RULES}"
                remedy = "continue it with the version that began it, or plan a new study in another folder"
                raise STUDY_CHANGED.error(self.folder, message, remedy)


def open_study(folder: Path) -> Study:
    """Open a study. Raises STUDY_MISSING, STUDY_SETTINGS, and the problems of its specs and its space."""
    settings = read_settings(folder)
    return study_of(folder, settings)


def study_of(folder: Path, settings: Settings) -> Study:
    for name in (settings.spec, settings.evaluation, settings.test):
        if name and not (folder / name).is_file():
            raise STUDY_MISSING.error(folder / name, "study.toml names it, but it does not exist")
    base = spec.load(folder / settings.spec, "train")
    data: dict[str, Any] = {}
    if settings.data_share is not None:
        data = data_share.data_changes(folder, base, data_share.SHARE)
        if not data:
            message = "a file of data_share is missing in it"
            raise STUDY_MISSING.error(folder / data_share.FOLDER, message)
    trained = with_values(base, data)
    names = [name for name in (settings.evaluation, settings.test) if name]
    evaluations = {name: spec.load(folder / name, "evaluate") for name in names}
    memory_gib = memory_share(folder, settings, [base, *evaluations.values()])
    space, searcher = _search(settings, trained)
    return Study(folder, settings, base, space, searcher, data, memory_gib, evaluations)


def with_constant_rate(study: Study) -> Study:
    """Take the learning rate's decay out of a search with rungs, whose trials have a constant rate, unless named."""
    settings = study.settings
    if not study.algorithm.has_rungs or DECAY in {*settings.ranges, *settings.fixed, *settings.only}:
        return study
    settings = settings.model_copy(update={"fixed": {**settings.fixed, DECAY: value_at(study.base, DECAY)}})
    space, searcher = _search(settings, study.trained)
    return replace(study, settings=settings, space=space, algorithm=searcher)


def _search(settings: Settings, trained: TrainSpec) -> tuple[Space, Searcher]:
    """The space and the algorithm; only the algorithm determines whether trials are measured by steps."""
    space = _space(settings, trained, by_steps=settings.steps.longest is not None)
    searcher = _algorithm(settings, trained, space)
    if searcher.has_rungs and settings.steps.longest is None:
        space = _space(settings, trained, by_steps=True)
        searcher = _algorithm(settings, trained, space)
    return space, searcher


def memory_share(folder: Path, settings: Settings, specs: Sequence[Spec]) -> float | None:
    """GiB of a GPU for each of the jobs that share it, the same on all GPUs of this machine; None without sharing.
    Raises STUDY_SETTINGS if sharing is requested but impossible."""
    jobs, where = settings.resources.trials_per_gpu, f"{folder / FILE} resources.trials_per_gpu"
    if jobs == 1:
        return None
    if settings.platform not in ON_THIS_MACHINE:
        message = f"{jobs} trials would share a GPU; the scheduler of {settings.platform} assigns whole GPUs"
        raise STUDY_SETTINGS.error(where, message, ALONE)
    most = max(map(process_count, specs))
    if most > 1:
        message = f"{jobs} trials would share a GPU, but a job of this study has {most} processes on a GPU each"
        raise STUDY_SETTINGS.error(where, message, ALONE)
    gpus = visible_gpus() if settings.resources.gpus != 0 else []
    if not gpus:
        return None
    if (total_gib := least_memory(gpus)) is None:
        message = "the memory of this machine's GPUs, which trials would share, is unknown"
        raise STUDY_SETTINGS.error("nvidia-smi", message, "make nvidia-smi work, or set resources.trials_per_gpu = 1")
    return floor(10 * (total_gib - DRIVER_GIB) / jobs) / 10


def _space(settings: Settings, base: TrainSpec, *, by_steps: bool) -> Space:
    return search_space(
        base,
        ranges=settings.ranges,
        fixed=settings.fixed,
        only=settings.only,
        samples=train_samples(base),
        ranks=data_ranks(base),
        by_steps=by_steps,
    )


def _algorithm(settings: Settings, base: TrainSpec, space: Space) -> Searcher:
    steps, longest = settings.steps, _longest(settings, base)
    shortest = steps.shortest or max(1, longest // steps.reduction**2)
    fidelity = Fidelity(shortest, longest, steps.reduction)
    task = Task(space, tuple(settings.goals), settings.seed, settings.max_trials, fidelity)
    return algorithm(settings.algorithm, task)


def _longest(settings: Settings, base: TrainSpec) -> int:
    """Steps of the longest training; 1 if they are unknown and no rung depends on them. Raises USAGE."""
    if settings.steps.longest:
        return settings.steps.longest
    samples = train_samples(base)
    if samples is None and settings.algorithm in BY_STEPS:
        uncounted = f"the samples in {base.custom.train_dataset.annotation_path} cannot be counted here"
        message = f"{settings.algorithm} divides a training into rungs of steps, and {uncounted}"
        raise USAGE.error("steps.longest", message, UNCOUNTED)
    return spec.total_steps(base, samples or 0) or 1


def open_with_journal(folder: Path) -> tuple[Study, StudyJournal]:
    """Open a study and its journal. Raises the problems of `open_study`, JOURNAL_BROKEN, and STUDY_CHANGED if the two
    do not match."""
    study, journal = open_study(folder), read(folder)
    study.fits(journal.history)
    return study, journal
