"""What a study knows of its size before it starts: rungs for every source of records, and the runs that are allowed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))

from small_studies import RATE
from source_conformance import row
from test_sources import MAKERS

from vidqa.automl import specs
from vidqa.automl.estimate import _shared_media
from vidqa.automl.plan import PlanRequest, write
from vidqa.automl.study import Study, open_study
from vidqa.core.problem import ProblemError
from vidqa.spec import Layer, dump, resolve

TWELVE = ("finals.top=3",)  # re-runs, whatever the runs


def study(folder: Path, annotations: str, **given: object) -> Study:
    """A search for the rate of 2 epochs in batches of 4, planned and not started."""
    keys = {
        "policy.model_name_or_path": str(folder),
        "custom.train_dataset.annotation_path": annotations,
        "custom.train_dataset.media_path": str(folder),
        "custom.val_dataset.annotation_path": str(folder / "held.json"),
        "custom.val_dataset.media_path": str(folder),
        "validation.enable": True,
        "train.epoch": 2,
        "train.train_batch_per_replica": 4,
    }
    (folder / "train.toml").write_text(dump(resolve("train", [Layer("test", keys)]).spec))
    words = {"algorithm": "asha", "trials": 9, "only": (RATE,), **given}
    write(folder / "study", PlanRequest(folder / "train.toml", **words))
    return open_study(folder / "study")


@pytest.mark.parametrize("source", MAKERS)
def test_rungs_are_those_of_the_samples_whatever_holds_them(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    place = tmp_path / "set"
    place.mkdir()
    planned = study(tmp_path, str(MAKERS[source](place, [row(str(number)) for number in range(36)])))
    assert planned.algorithm.rungs == [[2, 6, 18]] and planned.space.samples == 36 and planned.notes == []
    assert round(planned.algorithm.whole_trainings, 2) == 2.33
    (first,) = specs.preview_trials(planned, [], 1)
    assert specs.trial_changes(planned, first["values"], 18, tmp_path)["train.epoch"] == 2


@pytest.mark.parametrize("algorithm", ["asha", "hyperband", "bohb", "hyperband-de", "pbt"])
def test_rungs_of_samples_that_cannot_be_counted_are_refused(tmp_path: Path, algorithm: str) -> None:
    with pytest.raises(ProblemError, match=r"USAGE(.|\n)*elsewhere.json cannot be counted"):
        study(tmp_path, str(tmp_path / "elsewhere.json"), algorithm=algorithm)
    sets = ("steps.longest=18",)
    assert study(tmp_path, str(tmp_path / "elsewhere.json"), algorithm=algorithm, set=sets).longest == 18
    assert study(tmp_path, str(tmp_path / "elsewhere.json"), algorithm="random").notes == []


def test_a_training_too_short_to_be_divided_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"x")
    planned = study(
        tmp_path, str(MAKERS["CSV file"](tmp_path, [row(name) for name in "abcd"])), set=("steps.shortest=2",)
    )
    (note,) = planned.notes
    assert note.startswith("asha has one rung: 2 steps") and "every trial trains to the end" in note


@pytest.mark.parametrize(
    ("runs", "trials", "reruns"), [(60, 48, 12), (36, 24, 12), (20, 14, 6), (10, 8, 2), (6, 4, 2), (5, 5, 0), (2, 2, 0)]
)
def test_the_runs_that_a_user_allows_are_trials_and_re_runs_together(
    tmp_path: Path, runs: int, trials: int, reruns: int
) -> None:
    settings = study(tmp_path, "none.json", algorithm="random", trials=None, runs=runs).settings
    assert (settings.max_trials, settings.finals.reruns) == (trials, reruns)


def test_runs_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    for given in ({"trials": 4, "runs": 9}, {"trials": None, "runs": 1}, {"trials": None, "runs": 12, "set": TWELVE}):
        with pytest.raises(ProblemError, match="STUDY_SETTINGS at --runs"):
            study(tmp_path, "none.json", algorithm="random", **given)
    settings = study(tmp_path, "none.json", algorithm="random", trials=None, runs=15, set=TWELVE).settings
    assert (settings.max_trials, settings.finals.reruns) == (3, 12)


def test_settings_join_what_options_of_their_own_say(tmp_path: Path) -> None:
    ranges, sets = (f"{RATE}=1e-6..1e-4:log",), ("ranges.num_epochs=1..3", "finals.top=2")
    settings = study(tmp_path, "none.json", algorithm="random", only=(), range=ranges, set=sets).settings
    assert settings.ranges == {RATE: "1e-6..1e-4:log", "num_epochs": "1..3"} and settings.finals.top == 2


def test_sets_that_cannot_be_read_are_named_as_not_compared(tmp_path: Path) -> None:
    planned = study(tmp_path, "none.json", algorithm="random")
    assert _shared_media(planned, planned.folder / "train.toml") == ([], ["train", "validation"])
