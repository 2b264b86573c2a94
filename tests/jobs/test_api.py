"""The functions with which a program runs jobs: a real training that is followed, cancelled, resumed and promoted."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_world import SOURCE, tiny_data, tiny_model, tiny_spec

from tests.platforms.conftest import ENOUGH_S, until_engine_runs
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import api, records
from vidqa.jobs.api import BEGINNING, JobHandle, Position, Row, attach, submit
from vidqa.jobs.platforms._base import State

WriteSpec = Callable[..., Path]
CONTROLLER = Path(__file__).with_name("controller.py")


def steps(rows: Iterator[Row] | list[Row]) -> list[int]:
    return [row.values["step"] for row in rows if "train/loss" in row.values]


@pytest.mark.slow
def test_a_training_is_followed_by_one_program_and_by_the_next(tmp_path: Path) -> None:
    model, data = tiny_model(tmp_path), tiny_data(tmp_path, clips=4)
    endless = {"train.epoch": 100_000, "train.ckpt.export_safetensors": False}
    path = tiny_spec(tmp_path, model, data, endless)
    job, position = followed_and_killed(path)
    assert attach(job.job_id).record().state == State.RUNNING
    assert (submit("train", path, "local").how, submit("train", path, "local").job_id) == ("attached", job.job_id)

    rows = list(itertools.islice(job.metrics(position), 2))
    assert steps(rows) == [position.step + 1, position.step + 2]
    stopped = job.cancel(60)
    assert (stopped.state, stopped.exit_code) == (State.CANCELED, Exit.NOT_DONE), stopped.message
    rows += job.metrics(rows[-1].position)  # over: what was left, and then the end
    again = submit("train", path, "local")
    assert (again.how, again.job_id) == ("ended", job.job_id)

    resumed = job.retry()
    assert resumed.how == "started" and job.retry() == JobHandle(resumed.job_id)
    rows += itertools.islice(resumed.metrics(rows[-1].position), 2)
    assert resumed.cancel(60).exit_code == Exit.NOT_DONE
    whole = steps(job.new_metrics(BEGINNING))
    assert whole == list(range(1, len(whole) + 1)) and steps(rows) == whole[position.step : len(rows) + position.step]
    cost = job.cost()
    assert cost == resumed.cost() and cost.jobs == 2 and cost.seconds > 1 and cost.gpu_seconds == 0

    promoted_by_increments(tmp_path, resumed, len(whole))


def followed_and_killed(path: Path) -> tuple[JobHandle, Position]:
    """A job whose program was killed without warning, and where that program had come to in its metrics."""
    words = [sys.executable, str(CONTROLLER), str(path)]
    variables = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables, start_new_session=True) as program:
        assert program.stdout
        job = attach(program.stdout.readline().strip())
        *_, last = itertools.islice(program.stdout, 3)
        os.killpg(program.pid, signal.SIGKILL)
    return job, Position(**json.loads(last))


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
        assert steps(rung.metrics()) == list(range(taken + 1, taken + more + 1))
        assert job.continue_from(checkpoint, path, changes) == JobHandle(rung.job_id, "done")
        job, taken = rung, taken + more


def test_a_spec_has_one_job_whatever_became_of_it(stand_in: None, write_spec: WriteSpec) -> None:
    path = write_spec("fail")
    first = submit("train", path, "local")
    assert first.how == "started" and first.wait(ENOUGH_S).state == State.ERROR
    assert submit("train", path, "local") == JobHandle(first.job_id, "ended")
    anew = submit("train", path, "local", restart=True)
    assert anew.how == "started" and anew.job_id != first.job_id
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
