"""GPUs that trials share: as many at a time as the study says, each with its part of the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_studies import carry_out, gpus_over_time, history, write_study

from vidqa import spec
from vidqa.automl import estimate, trial_jobs
from vidqa.automl.controller import Controller, controlling
from vidqa.automl.journal import JOURNAL
from vidqa.automl.specs import write_evaluation
from vidqa.automl.study import open_study
from vidqa.automl.trial_jobs import GpuAllocator
from vidqa.core import environment
from vidqa.core.problem import ProblemError
from vidqa.jobs import cost
from vidqa.jobs.launch import unchecked
from vidqa.jobs.platforms import local
from vidqa.preflight import gpus

CARD_GIB = 80.0
SHARE_GIB = 39.5  # of two


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 GiB each, by the names 4 and 6."""
    monkeypatch.setattr(local, "_installed_gpus", lambda _: [""] * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setattr("vidqa.automl.study.visible_gpus", lambda: [gpus.Gpu("card", CARD_GIB)] * 2)


def stopped_at(study: Path, point: Callable[[Controller], bool]) -> Controller:
    """A controller that began a study and ended at a point of it; its jobs go on."""
    with controlling(study, unchecked) as controller:
        controller._create()
        while not point(controller):
            controller.step()
    return controller


def test_free_places_are_those_of_the_emptiest_gpus(two_gpus: None) -> None:
    alone, shared = GpuAllocator("local", None), GpuAllocator("local", None, jobs_per_gpu=2)
    assert (
        alone.available([], 1) == ["4"]
        and alone.available([("4", 1)], 1) == ["6"]
        and alone.available([("4", 1), ("6", 1)], 1) is None
    )
    assert alone.available([], 2) == ["4", "6"] and alone.available([("4", 1)], 2) is None
    assert shared.available([("4", 2)], 1) == ["6"], "an empty GPU before one that others use"
    assert shared.available([("4", 2), ("6", 2)], 1) == ["4"] and shared.available(
        [("4", 2), ("4", 2), ("6", 2)], 1
    ) == ["6"]
    assert shared.available([("4", 2), ("4", 2), ("6", 2), ("6", 2)], 1) is None
    assert shared.available([("4", 1), ("6", 2)], 1, starting={"6"}) is None, (
        "a job that began alone has its GPU to itself"
    )
    assert GpuAllocator("local", None, jobs_per_gpu=1).available([("4", 2), ("6", 1)], 1) is None, (
        "and one that wants it alone waits"
    )
    assert GpuAllocator("local", None, jobs_per_gpu=3).available([("4", 2)], 1, starting={"6"}) == ["4"], "1/2 and 1/3"
    assert GpuAllocator("slurm", None, jobs_per_gpu=1).available([], 4) == []


def test_a_launch_has_its_gpus_and_nothing_else_of_the_process_changes(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two launches at the same time each has its own, and a third thread sees what the process sees."""
    both_inside, seen = threading.Barrier(3), {}

    def launch(name: str) -> None:
        with GpuAllocator("local", None).visible([name]):
            both_inside.wait(10)
            shown = subprocess.run(
                [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"],
                env=environment.child_environment(),
                capture_output=True,
                text=True,
                check=True,
            )
            seen[name] = (shown.stdout.strip(), environment.visible_gpus())
            both_inside.wait(10)

    threads = [threading.Thread(target=launch, args=(name,)) for name in ("4", "6")]
    for thread in threads:
        thread.start()
    both_inside.wait(10)
    assert (os.environ["CUDA_VISIBLE_DEVICES"], environment.visible_gpus()) == ("4,6", ["4", "6"])
    both_inside.wait(10)
    for thread in threads:
        thread.join()
    assert seen == {"4": ("4", ["4"]), "6": ("6", ["6"])}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with GpuAllocator("local", None).visible(["1"]):
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert "CUDA_VISIBLE_DEVICES" not in os.environ and environment.visible_gpus() is None


@pytest.mark.usefixtures("quick_trials", "two_gpus")
def test_trials_share_gpus_and_each_keeps_to_its_part_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_jobs, "STAGGER_S", 0.0)
    sets = ("resources.trials_per_gpu=2", "finals.seeds=[7]", "finals.top=1")
    study = write_study(tmp_path, *sets, manner="slow", max_trials=6, max_concurrent=4)
    found = carry_out(study)
    seen = gpus_over_time(study, found)
    assert {each.gpus for each in found.work.values()} == {("4",), ("6",)}
    assert max(count for each in seen for count in each.values()) == 2 and {"4": 2, "6": 2} in seen
    assert {(path / "gpus").read_text() for path in study.glob("trials/*/runs/*")} == {"4", "6"}, "a job sees one"
    made = [*study.glob("trials/*/rung-0/spec.toml"), *study.glob("finals/*/seed-7/spec.toml")]
    assert len(made) == 8 and {spec.load(path, "train").engine.gpu_memory_gib for path in made} == {SHARE_GIB}
    assert spec.load(study / "train.toml", "train").engine.gpu_memory_gib is None
    assert found.finished and found.gpu_seconds > 0
    assert found.gpu_seconds == pytest.approx(found.seconds / 2, rel=0.01)


@pytest.mark.usefixtures("quick_trials", "two_gpus")
def test_a_trial_joins_a_gpu_only_when_the_one_before_is_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_jobs, "STAGGER_S", 1e6)
    study = write_study(tmp_path, "resources.trials_per_gpu=2", manner="slow", max_trials=5, max_concurrent=4)
    found = carry_out(study)
    most = max(count for each in gpus_over_time(study, found) for count in each.values())
    assert most == 1, "none of these trials is ever far enough ahead of another"
    assert found.finished and len(found.trials) == 5


@pytest.mark.usefixtures("quick_trials", "two_gpus")
def test_how_far_a_trial_is_ahead_counts_from_its_first_step(tmp_path: Path) -> None:
    study = write_study(tmp_path, "resources.trials_per_gpu=2", manner="slow", max_trials=2, max_concurrent=1)
    controller = stopped_at(
        study, lambda at: bool(at.jobs.first_steps or at.history.trials[1:])
    )  # nobody wants to join
    assert list(controller.jobs.first_steps) == [controller.history.work["trial-0/rung-0/train"].job_id]
    assert carry_out(study).finished


@pytest.mark.usefixtures("quick_trials", "two_gpus")
def test_a_controller_that_is_started_again_finds_the_places_that_jobs_have(tmp_path: Path) -> None:
    study = write_study(tmp_path, "resources.trials_per_gpu=2", manner="slow", max_trials=2, max_concurrent=1)
    stopped_at(study, lambda at: bool(at.history.work))
    text = (study / "study.toml").read_text()
    for each, room in ((2, ["6"]), (1, ["6"])):
        (study / "study.toml").write_text(text.replace("trials_per_gpu = 2", f"trials_per_gpu = {each}"))
        with controlling(study, unchecked) as again:
            pass
        assert again.jobs.used_gpus() == [("4", 2)] and again.jobs.gpus.available(again.jobs.used_gpus(), 1) == room
    # A journal from before trials could share, without checksums: its jobs have their GPUs to themselves.
    lines = [json.loads(line) for line in (study / JOURNAL).read_text().splitlines()]
    for event in lines:
        event.pop("places", None)
        event.pop("check")
    (study / JOURNAL).write_text("".join(json.dumps(event) + "\n" for event in lines))
    assert history(study).work["trial-0/rung-0/train"].places == 1
    (study / "study.toml").write_text(text)
    assert carry_out(study).finished, "how many share a GPU may change while a study goes on"


@pytest.mark.usefixtures("quick_trials", "two_gpus")
def test_gpu_hours_count_every_attempt_of_a_job_that_has_not_ended(tmp_path: Path) -> None:
    study = write_study(tmp_path, manner="killed", max_trials=1)
    controller = stopped_at(study, lambda at: any(work.retries for work in at.history.work.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "running_s", lambda record: 10.0)
        assert controller.jobs.gpu_seconds() == 20.0, "the attempt that was killed, and its second one"
    assert carry_out(study).finished


@pytest.mark.parametrize(("mine", "written"), [(None, SHARE_GIB), (20.0, 20.0), (60.0, SHARE_GIB)])
def test_the_limit_of_the_users_own_spec_stays_where_it_is_lower(
    tmp_path: Path, two_gpus: None, mine: float | None, written: float
) -> None:
    study = write_study(tmp_path, "resources.trials_per_gpu=2")
    limit = "" if mine is None else f"[engine]\ngpu_memory_gib = {mine}\n"
    sets = f'[dataset]\nannotation_path = "{tmp_path / "annotations.json"}"\nmedia_dir = "{tmp_path}"\n'
    (study / "evaluate.toml").write_text(f"{sets}{limit}")
    path = write_evaluation(open_study(study), "evaluate.toml", None, tmp_path / "out")
    assert spec.load(path, "evaluate").engine.gpu_memory_gib == written
    alone = replace(open_study(study), memory_gib=None)
    assert spec.load(write_evaluation(alone, "evaluate.toml", None, tmp_path), "evaluate").engine.gpu_memory_gib == mine


def test_what_cannot_share_is_refused(tmp_path: Path, two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProblemError, match=r"STUDY_SETTINGS(.|\n)*the scheduler of slurm"):
        open_study(write_study(tmp_path / "cluster", "resources.trials_per_gpu=2", "platform=slurm"))
    study = write_study(tmp_path / "large", "resources.trials_per_gpu=2")
    text = (study / "train.toml").read_text()
    (study / "train.toml").write_text(text.replace("dp_shard_size = 1", "dp_shard_size = 2"))
    with pytest.raises(ProblemError, match=r"STUDY_SETTINGS(.|\n)*2 processes on a GPU each"):
        open_study(study)
    (study / "train.toml").write_text(text)
    monkeypatch.setattr("vidqa.automl.study.visible_gpus", lambda: [gpus.Gpu("unknown")])
    with pytest.raises(ProblemError, match=r"STUDY_SETTINGS(.|\n)*is unknown"):
        open_study(study)
    monkeypatch.setattr("vidqa.automl.study.visible_gpus", list)
    assert open_study(study).memory_gib is None, "on a CPU there is nothing to share out"


@pytest.mark.parametrize(
    ("computing_s", "needed", "said"),
    [
        (100.0, 20.0, "trials_per_gpu=2 --concurrent 4"),
        (40.0, 20.0, "trials_per_gpu=3 --concurrent 6"),
        (40.0, 30.0, "trials_per_gpu=2 --concurrent 4"),  # a third of the memory is too little
        (100.0, 50.0, ""),
        (3600.0, 20.0, ""),  # start and end are next to nothing
    ],
)
def test_sharing_is_advised_where_starts_and_ends_take_long(
    tmp_path: Path, two_gpus: None, monkeypatch: pytest.MonkeyPatch, computing_s: float, needed: float, said: str
) -> None:
    monkeypatch.setattr(estimate, "peak_within", lambda context, limit: needed if needed < limit else None)
    study = write_study(tmp_path, max_trials=8)
    found = {"start_hours": 60 / 3600, "hours_of_one": (60 + computing_s) / 3600}
    told = estimate.sharing_advice(open_study(study), study / "train.toml", found)
    assert said in told and bool(said) == bool(told)
    shared = write_study(tmp_path / "shared", "resources.trials_per_gpu=2", max_trials=8)
    assert estimate.sharing_advice(open_study(shared), shared / "train.toml", found) == ""
