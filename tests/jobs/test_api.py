"""The functions with which a program runs jobs: a real training that is found again, cancelled, resumed, promoted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_world import SOURCE, tiny_data, tiny_model, tiny_spec

from tests.platforms.conftest import ENOUGH_S, until_engine_runs
from vidqa.core.problem import Exit, ProblemError
from vidqa.core.run_folder import METRICS, read_metrics
from vidqa.jobs import api, records
from vidqa.jobs.api import JobHandle, attach, submit
from vidqa.jobs.platforms._base import State

WriteSpec = Callable[..., Path]
CONTROLLER = Path(__file__).with_name("controller.py")


def steps(job: JobHandle) -> list[int]:
    """The steps that the run of a job has logged."""
    file = job.record().run.path / METRICS
    return [row["step"] for row in read_metrics(file) if "train/loss" in row] if file.exists() else []


def until_steps(job: JobHandle, count: int) -> None:
    deadline = time.monotonic() + ENOUGH_S
    while len(steps(job)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(steps(job)) >= count, job.record().log.read_text()[-3000:]


@pytest.mark.slow
def test_a_training_is_begun_by_one_program_and_found_by_the_next(tmp_path: Path) -> None:
    model, data = tiny_model(tmp_path), tiny_data(tmp_path, clips=4)
    endless = {"train.epoch": 100_000, "train.ckpt.export_safetensors": False}
    path = tiny_spec(tmp_path, model, data, endless)
    job = submitted_by_a_killed_program(path)
    assert attach(job.job_id).record().state == State.RUNNING
    assert (submit("train", path, "local").how, submit("train", path, "local").job_id) == ("attached", job.job_id)

    until_steps(job, len(steps(job)) + 2)  # it goes on without that program
    stopped = job.cancel(60)
    assert (stopped.state, stopped.exit_code) == (State.CANCELED, Exit.NOT_DONE), stopped.message
    again = submit("train", path, "local")
    assert (again.how, again.job_id) == ("ended", job.job_id)

    resumed = job.retry()
    assert resumed.how == "started" and job.retry() == JobHandle(resumed.job_id)
    until_steps(resumed, len(steps(job)) + 2)
    assert resumed.cancel(60).exit_code == Exit.NOT_DONE
    assert steps(job) == list(range(1, len(steps(job)) + 1))
    cost = job.cost()
    assert cost == resumed.cost() and cost.jobs == 2 and cost.seconds > 1 and cost.gpu_seconds == 0

    promoted_by_increments(tmp_path, resumed, len(steps(job)))


def submitted_by_a_killed_program(path: Path) -> JobHandle:
    """A job whose program was killed without warning while it ran."""
    words = [sys.executable, str(CONTROLLER), str(path)]
    variables = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables, start_new_session=True) as program:
        assert program.stdout
        job = attach(program.stdout.readline().strip())
        until_steps(job, 3)
        os.killpg(program.pid, signal.SIGKILL)
    return job


def promoted_by_increments(tmp_path: Path, job: JobHandle, taken: int) -> None:
    """Two rungs of a successive halving: each starts at the last checkpoint of the one before and takes its steps."""
    for number, more in enumerate((2, 3)):
        checkpoint = job.checkpoints()[-1]
        changes = {"train.max_num_steps": taken + more, "train.ckpt.save_freq": taken + more}
        changes["train.ckpt.save_freq_in_epoch"] = 0
        path = tmp_path / f"rung-{number}.toml"
        rung = job.continue_from(checkpoint, path, changes)
        record = rung.wait(ENOUGH_S)
        assert record.state == State.COMPLETE, record.log.read_text()[-3000:]
        assert record.run_dir != job.record().run_dir and rung.cost().jobs == 1
        assert steps(rung) == list(range(taken + 1, taken + more + 1))
        assert job.continue_from(checkpoint, path, changes) == JobHandle(rung.job_id, "done")
        job, taken = rung, taken + more


def test_a_spec_has_one_job_whatever_became_of_it(stand_in: None, write_spec: WriteSpec) -> None:
    path = write_spec("fail")
    first = submit("train", path, "local")
    assert first.how == "started" and first.wait(ENOUGH_S).state == State.ERROR
    assert submit("train", path, "local") == JobHandle(first.job_id, "ended")
    anew = submit("train", path, "local", restart=True)
    assert anew.how == "started" and anew.job_id != first.job_id
    assert [(p.code, p.where) for p in anew.problems if "starts from the beginning" in p.message] == [
        ("JOB_NOT_DONE", first.job_id)
    ]
    anew.wait(ENOUGH_S)
    assert len(records.scan()[0]) == 2


def test_retry_of_a_job_that_went_on_already_finds_that(stand_in: None, write_spec: WriteSpec) -> None:
    first = submit("train", write_spec("resumable"), "local")
    until_engine_runs(first.record())
    first.cancel(30)
    second = first.retry()
    assert second.wait(ENOUGH_S).state == State.COMPLETE
    assert first.retry() == JobHandle(second.job_id)  # by a program that was killed before it knew
    with pytest.raises(ProblemError, match="USAGE"):
        second.retry()


def test_a_checkpoint_that_is_not_whole_starts_nothing(stand_in: None, write_spec: WriteSpec, tmp_path: Path) -> None:
    job = submit("train", write_spec("complete"), "local")
    job.wait(ENOUGH_S)
    (tmp_path / "step_3").mkdir()
    with pytest.raises(ProblemError, match="RESUME_NO_CHECKPOINT"):
        job.continue_from(tmp_path / "step_3", tmp_path / "next.toml", {})
    assert len(records.scan()[0]) == 1 and not (tmp_path / "next.toml").exists() and job.checkpoints() == []


def test_a_job_that_nobody_submitted_cannot_be_attached_to() -> None:
    with pytest.raises(ProblemError, match="JOB_NOT_FOUND"):
        api.attach("nobody's")
