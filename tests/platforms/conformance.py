"""What every platform does with a job: one list of scenarios, run against whatever the fixture `rig` brings.

    from tests.platforms.conformance import *    # in a test module that has a fixture `rig`

The engine is a stand-in, except in the last scenario, which trains a tiny model, cancels, and goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tiny_world import losses, run_engine, tiny_data, tiny_model, tiny_spec

from tests.platforms.conftest import until_complete, until_engine_runs
from vidqa.core.environment import jobs_folder
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import records
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import Launched, dry_run, launch, retry
from vidqa.jobs.platforms._base import Rendered, State
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources
from vidqa.preflight import launch_gate

WriteSpec = Callable[..., Path]
LAUNCHER = Path(__file__).with_name("stand_in.py")
REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "hf_planted_secret"


@dataclass(frozen=True)
class Rig:
    """A platform to test. `remains` lists what of a job is still there; `shown` is all that its backend tells of one;
    `lose` takes it away behind our back; `ran` checks that what runs is what was rendered."""

    name: str
    wanted: Resources
    remains: Callable[[JobRecord], list[str]]
    shown: Callable[[JobRecord], str]
    lose: Callable[[JobRecord], None]
    ran: Callable[[JobRecord, Rendered], None]
    limit_s: float = 900.0

    def start(self, spec: Path, **options: bool) -> JobRecord:
        launched = launch("train", spec, self.name, self.wanted, **options)
        assert launched.how == "started"
        return launched.record

    def end(self, record: JobRecord) -> JobRecord:
        record = jobs.wait(record, self.limit_s)
        assert record.state.is_terminal, f"still {record.state} after {self.limit_s} s"
        assert self.remains(record) == []
        return record

    def launcher(self, spec: Path) -> subprocess.Popen[str]:
        """A process that launches with the stand-in and says how and what."""
        words = [word for word in ("--image", self.wanted.image, "--site", self.wanted.site) if self.wanted.image]
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        return subprocess.Popen(
            [sys.executable, LAUNCHER, self.name, spec, *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )


def test_a_job_completes_and_its_log_is_followed(rig: Rig, stand_in: None, write_spec: WriteSpec) -> None:
    shown: list[str] = []
    record = jobs.wait(rig.start(write_spec("complete")), rig.limit_s, shown.append)
    assert (record.state, record.exit_code, record.failure) == (State.COMPLETE, 0, None)
    log = "\n".join(shown).splitlines()
    assert log[0].startswith("manner complete") and log[-1] == "the last line" and len(log) == len(set(log))
    assert jobs.tail(record, 1) == "the last line" and record.log.read_text().splitlines() == log
    assert rig.remains(record) == [] and jobs.problems_of(record) == [] and jobs.exit_code(record) == 0
    run = json.loads((Path(record.run_dir) / "run.json").read_text())
    assert run["run_id"] == Path(record.run_dir).name and run["jobs"] == [record.job_id]
    assert run["versions"]["torch"] and len(run["spec_fingerprint"]) == 64
    assert launch("train", Path(record.spec), rig.name, rig.wanted).how == "done"


def test_what_preflight_refuses_is_not_started(rig: Rig, stand_in: None, write_spec: WriteSpec, tmp_path: Path) -> None:
    spec = write_spec("complete")  # its annotations hold no record
    with pytest.raises(ProblemError) as refused:
        launch("train", spec, rig.name, rig.wanted, ready=launch_gate.ready)
    assert "DATA_EMPTY" in {problem.code for problem in refused.value.problems}
    assert records.scan()[0] == [] and not (tmp_path / "runs").exists()
    assert "DATA_EMPTY" in {
        p.code for p in dry_run("train", spec, rig.name, rig.wanted, ready=launch_gate.ready).problems
    }


@pytest.mark.parametrize(
    ("manner", "exit_code", "kind", "evidence"),
    [
        ("fail", Exit.INPUT, "data", "DATA_EMPTY"),
        ("killed", Exit.JOB_FAILED, "infrastructure", "SIGKILL"),
        ("silent", Exit.JOB_FAILED, "program", "its status says RUNNING"),
    ],
)
def test_a_failure_has_the_engines_exit_code_and_a_class(
    rig: Rig, stand_in: None, write_spec: WriteSpec, manner: str, exit_code: int, kind: str, evidence: str
) -> None:
    record = rig.end(rig.start(write_spec(manner)))
    assert (record.state, jobs.exit_code(record)) == (State.ERROR, exit_code)
    assert record.failure and record.failure["class"] == kind and evidence in record.failure["evidence"]
    assert records.update(record.job_id, state=State.COMPLETE) == record
    status = record.run.read_status()
    assert (status["state"], status["exit_code"], status["step"]) == (State.ERROR, record.exit_code, 1)
    if manner == "fail":  # it would fail again
        with pytest.raises(ProblemError) as refused:
            retry(record)
        assert refused.value.exit_code == Exit.REFUSED and evidence in str(refused.value)
        assert rig.end(retry(record, agreed=True).record).retry_of == record.job_id


def test_a_cancelled_job_has_saved_itself(rig: Rig, stand_in: None, write_spec: WriteSpec) -> None:
    record = rig.start(write_spec("hang"))
    until_engine_runs(record)
    record = jobs.cancel(record.job_id, 30)
    assert (record.state, record.exit_code) == (State.CANCELED, Exit.NOT_DONE)
    assert (Path(record.run_dir) / "saved-by-rank-0").exists() and rig.remains(record) == []
    assert jobs.cancel(record.job_id, 0) == record


def test_an_engine_that_does_not_listen_is_ended(rig: Rig, stand_in: None, write_spec: WriteSpec) -> None:
    record = rig.start(write_spec("stubborn"))
    until_engine_runs(record)
    record = jobs.cancel(record.job_id, 0.5)
    assert (record.state, jobs.exit_code(record)) == (State.CANCELED, Exit.JOB_FAILED)
    assert "before it saved" in record.message and rig.remains(record) == []


def test_a_stop_that_comes_when_all_is_done_changes_nothing(rig: Rig, stand_in: None, write_spec: WriteSpec) -> None:
    record = rig.start(write_spec("late"))
    until_complete(record)
    record = jobs.cancel(record.job_id, 30)
    assert (record.state, record.exit_code, record.message) == (State.COMPLETE, 0, "done")
    assert rig.remains(record) == []


def test_retry_goes_on_in_the_run_folder(rig: Rig, stand_in: None, write_spec: WriteSpec) -> None:
    first = rig.start(write_spec("resumable"))
    until_engine_runs(first)
    with pytest.raises(ProblemError) as running:
        retry(first)
    assert running.value.problems[0].code == "USAGE"
    first = jobs.cancel(first.job_id, 30)
    shown: list[str] = []
    second = rig.end(jobs.wait(retry(first).record, rig.limit_s, shown.append))
    assert (second.state, second.retry_of, second.run_dir) == (State.COMPLETE, first.job_id, first.run_dir)
    assert "\n".join(shown).count("manner resumable") == 1  # only what this job wrote
    assert second.log_start > 0 and (second.image, second.nodes) == (first.image, first.nodes)
    with pytest.raises(ProblemError) as done:
        retry(second)
    assert done.value.problems[0].code == "USAGE"


def test_a_job_outlives_its_launcher_and_is_found_again(rig: Rig, write_spec: WriteSpec, stand_in: None) -> None:
    spec = write_spec("hang")
    launcher = rig.launcher(spec)
    how, job_id = (launcher.stdout.readline() if launcher.stdout else "").split()
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    until_engine_runs(records.read(job_id))
    again = launch("train", spec, rig.name, rig.wanted)
    assert (how, again.how, again.record.job_id) == ("started", "attached", job_id)
    assert jobs.cancel(job_id, 30).exit_code == Exit.NOT_DONE


def test_a_launcher_killed_in_between_leaves_a_true_record(rig: Rig, write_spec: WriteSpec, stand_in: None) -> None:
    launcher = rig.launcher(write_spec("hang"))
    deadline = time.monotonic() + 300
    while not list(jobs_folder().glob("*T*.json")) and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    (record,) = records.scan()[0]
    record = jobs.observe(record)
    if not record.state.is_terminal:  # it had been submitted: then it runs, and can be ended
        record = jobs.cancel(record.job_id, 30)
    assert record.state in (State.CANCELED, State.ERROR) and rig.remains(record) == []


def test_two_launches_at_once_start_one_job(rig: Rig, write_spec: WriteSpec, stand_in: None) -> None:
    spec = write_spec("hang")
    launchers = [rig.launcher(spec), rig.launcher(spec)]
    (how, job_id), other = sorted(tuple(launcher.communicate(timeout=120)[0].split()) for launcher in launchers)
    assert (how, other) == ("attached", ("started", job_id))
    until_engine_runs(records.read(job_id))
    assert jobs.cancel(job_id, 30).exit_code == Exit.NOT_DONE


def test_a_job_that_vanished_says_so(rig: Rig, stand_in: None, write_spec: WriteSpec) -> None:
    record = rig.start(write_spec("hang"))
    until_engine_runs(record)
    rig.lose(record)
    record = rig.end(record)
    assert record.state == State.ERROR and "vanished" in record.message
    assert record.failure and record.failure["class"] == "infrastructure"


def test_dry_run_shows_what_runs_and_the_token_reaches_the_engine_without_being_written(
    rig: Rig, stand_in: None, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    spec = write_spec("hang")
    job, rendered, spec_toml, _ = dry_run("train", spec, rig.name, rig.wanted)
    assert records.scan() == ([], []) and not job.run_dir.exists()
    record = rig.start(spec)
    until_engine_runs(record)

    def renamed(text: str) -> str:
        """Objects of a cluster carry the name in lower case."""
        return text.replace(job.job_id, record.job_id).replace(job.job_id.lower(), record.job_id.lower())

    expected = replace(
        rendered,
        command=tuple(map(renamed, rendered.command)),
        files={name: renamed(text) for name, text in rendered.files.items()},
    )
    for name, text in expected.files.items():
        assert (Path(record.run_dir) / name).read_text() == text
    assert (Path(record.run_dir) / "spec.toml").read_text() == spec_toml
    rig.ran(record, expected)
    assert TOKEN not in rig.shown(record)
    jobs.cancel(record.job_id, 30)
    assert f"sha256 {hashlib.sha256(TOKEN.encode()).hexdigest()}" in record.log.read_text()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if TOKEN.encode() in path.read_bytes()]


@pytest.mark.slow
def test_a_real_training_is_cancelled_and_goes_on_as_if_it_had_not_been(rig: Rig, tmp_path: Path) -> None:
    model, data = tiny_model(tmp_path), tiny_data(tmp_path, clips=4)
    changes = {"train.epoch": 10, "train.ckpt.save_freq_in_epoch": 10, "train.ckpt.export_safetensors": False}
    spec, undisturbed = tiny_spec(tmp_path, model, data, changes), tmp_path / "undisturbed"
    run_engine("train", spec, undisturbed)
    first = rig.start(spec)
    metrics = Path(first.run_dir) / "metrics.jsonl"
    deadline = time.monotonic() + rig.limit_s
    while time.monotonic() < deadline and not (metrics.exists() and len(losses(metrics.parent)) >= 3):
        time.sleep(0.02)
    first = jobs.cancel(first.job_id, 60)
    assert (first.state, first.exit_code) == (State.CANCELED, Exit.NOT_DONE), first.message
    done = len(losses(metrics.parent))
    second: Launched = retry(first)
    record = rig.end(second.record)
    assert (record.state, record.run_dir) == (State.COMPLETE, first.run_dir), jobs.tail(record, 30)
    assert 3 <= done < len(losses(metrics.parent))
    assert losses(metrics.parent) == pytest.approx(losses(undisturbed), rel=1e-6)
    assert json.loads((metrics.parent / "run.json").read_text())["jobs"] == [first.job_id, record.job_id]
