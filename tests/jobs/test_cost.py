"""What a run costs: the time that its jobs ran, without the queue, times their GPUs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from vidqa.jobs import cost, records
from vidqa.jobs.cost import Cost, cost_of
from vidqa.jobs.platforms import job_store
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.processes import this_process
from vidqa.jobs.records import JobRecord

START = datetime(2026, 1, 1, tzinfo=UTC)


def after(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def kept(tmp_path: Path, job_id: str, **changes: Any) -> JobRecord:
    """The record of a job in the run folder "r" that used two GPUs."""
    names = ("action", "spec", "inputs_fingerprint", "model")
    texts = {**dict.fromkeys(names, "x"), "spec_fingerprint": "f", "output_dir": str(tmp_path)}
    fields = {**texts, "platform": "slurm", "processes": 2, "gpus": 2, "created": after(0), **changes}
    launcher = this_process()
    return records.write(JobRecord(job_id=job_id, run_dir=str(tmp_path / "r"), launcher=launcher, **fields))


def test_all_jobs_of_a_run_count(tmp_path: Path) -> None:
    kept(tmp_path, "first", state=State.ERROR)
    job_store.write_exit("first", {"exit_code": 5, "ended": after(10)})
    kept(tmp_path, "second", state=State.COMPLETE, created=after(100))
    job_store.write_exit("second", {"exit_code": 0, "ended": after(105)})
    records.write(replace(kept(tmp_path, "other"), run_dir=str(tmp_path / "another")))
    assert cost_of(str(tmp_path / "r")) == Cost(seconds=15, gpu_seconds=30, jobs=2)


def test_a_job_without_gpus_takes_no_gpu_seconds(tmp_path: Path) -> None:
    kept(tmp_path, "j", state=State.COMPLETE, gpus=0)
    job_store.write_exit("j", {"ended": after(10)})
    assert cost_of(str(tmp_path / "r")) == Cost(seconds=10, gpu_seconds=0, jobs=1)


def test_a_job_that_runs_counts_until_now(tmp_path: Path) -> None:
    kept(tmp_path, "j", state=State.RUNNING, created=(datetime.now(UTC) - timedelta(seconds=50)).isoformat())
    assert 50 <= cost_of(str(tmp_path / "r")).seconds < 60


def test_the_queue_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = kept(tmp_path, "j")
    seen = [(State.PENDING, 5), (State.RUNNING, 20), (State.RUNNING, 25), (State.PENDING, 30), (State.RUNNING, 70)]
    for state, seconds in [*seen, (State.COMPLETE, 80)]:
        monkeypatch.setattr(cost, "_microseconds", lambda seconds=seconds: after(seconds))
        record = records.update("j", state=state, spans=cost.updated_spans(record, state))
    assert record == records.read("j")
    job_store.write_exit("j", {"ended": after(80)})
    assert cost.running_s(record) == 10 + 10
    assert [each.job_id for each in records.scan()[0]] == ["j"]
