"""What platform tests share: a spec that launches, and the local platform with a stand-in for the engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vidqa.platforms import local, records
from vidqa.platforms._base import Job, Rendered
from vidqa.platforms.processes import engine_processes, job_processes, supervisors
from vidqa.platforms.records import JobRecord
from vidqa.platforms.supervisor import kill_job

ENGINE = Path(__file__).with_name("stand_in_engine.py")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder of the test's own; whatever its jobs left running is ended, and noticed."""
    monkeypatch.setenv("VIDQA_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    yield tmp_path / "state"
    for record in records.scan()[0]:
        left = job_processes(record.job_id)
        kill_job(record.job_id)
        assert not left or not record.state.is_terminal, f"{record.job_id} is {record.state} but left {left}"
        assert not record.state.is_terminal or no_supervisor_stays(record.job_id)


def no_supervisor_stays(job_id: str) -> bool:
    """A supervisor writes how its job ended as the last thing it does; ending itself takes it another moment."""
    deadline = time.monotonic() + 10
    while (alive := [s for s in supervisors(job_id) if s.is_alive]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive


@pytest.fixture
def write_spec(tmp_path: Path) -> Callable[..., Path]:
    """Writes a train spec whose stand-in engine has the given manner."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "annotations.json").write_text("[]")

    def write(manner: str, processes: int = 1, more: str = "") -> Path:
        path = tmp_path / f"{manner}.toml"
        path.write_text(
            f"""
            [policy]
            model_name_or_path = "{tmp_path / "model"}"
            [policy.parallelism]
            dp_shard_size = {processes}
            [custom.train_dataset]
            annotation_path = "{tmp_path / "annotations.json"}"
            media_path = "{tmp_path}"
            [logging]
            experiment_name = "{manner}"
            [train]
            output_dir = "{tmp_path / "runs"}"
            {more}
            """
        )
        return path

    return write


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in engine, started without torchrun: fast."""

    def render(job: Job) -> Rendered:
        words = (job.action, "--spec", str(job.spec), "--run-dir", str(job.run_dir))
        rendered = local.render(job)
        return Rendered((sys.executable, str(ENGINE), *words), {**rendered.environment, "RANK": "0"})

    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, render=render))


@pytest.fixture
def stand_in_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in engine under the real torchrun."""

    def render(job: Job) -> Rendered:
        rendered = local.render(job)
        at = rendered.command.index("vidqa.engine")
        command = (*rendered.command[: at - 1], str(ENGINE), *rendered.command[at + 1 :])
        return Rendered(command, rendered.environment)

    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, render=render))


def until_engine_runs(record: JobRecord, processes: int = 1) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        log = record.log.read_text(errors="replace")
        if len(engine_processes(record.job_id)) == processes and log.count("manner") == processes:
            return
        time.sleep(0.05)
    raise AssertionError(f"the engine did not start: {log}")
