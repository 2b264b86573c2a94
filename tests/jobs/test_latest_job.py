"""Which job is the latest: of this folder, by the order of launches and not by a clock; and who may not go by it."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobs_script import ask
from tests.platforms.conftest import ENOUGH_S, until_engine_runs
from vidqa.core import files
from vidqa.core.cli import SKILL_ROOT, command
from vidqa.core.environment import jobs_folder
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import records, runs
from vidqa.jobs import watch as jobs
from vidqa.jobs.api import JobHandle
from vidqa.jobs.launch import launch
from vidqa.jobs.platforms import job_store, local
from vidqa.jobs.platforms._base import Job, Observed, Rendered, State
from vidqa.jobs.platforms.processes import job_processes, supervisors
from vidqa.jobs.records import JobRecord

WriteSpec = Callable[..., Path]


def ended(spec: Path, **options: bool) -> JobRecord:
    return jobs.wait(launch("train", spec, "local", **options).record, ENOUGH_S)


def codes(said: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in said["problems"]]


def test_a_working_folder_that_was_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (problem,) = ask("status")["problems"]
    assert (problem["code"], problem["where"]) == ("ENV_FILE_REFUSED", "the working folder")
    (problem,) = ask("list", "x")["problems"]
    assert str(SKILL_ROOT / "scripts/jobs.py") in problem["remedy"]


def test_a_run_folder_names_its_job(over_at_once: None, write_spec: WriteSpec) -> None:
    record = ended(write_spec("complete"))
    for place in (record.run_dir, f"{record.run_dir}/"):
        assert ask("status", place)["data"]["job_id"] == record.job_id
    record.run.add_resume({"from": None, "step": 0, "lost": 7})  # a retry whose checkpoints were gone
    assert ask("status", record.job_id)["data"]["resumes"] == [{"from": None, "step": 0, "lost": 7}]
    assert "resumed   after step 0, from no checkpoint: the attempt before left none, at step 7" in jobs.describe(
        record
    )
    (problem,) = ask("status", str(Path(record.run_dir).parent))["problems"]
    assert problem["code"] == "JOB_NOT_FOUND" and record.job_id in problem["remedy"]
    (problem,) = ask("status", str(Path(record.run_dir) / ".." / ".."))["problems"]
    assert problem["code"] == "JOB_NOT_FOUND" and "not the run folder of a job" in problem["message"]
    shutil.rmtree(record.run_dir)
    assert "which is not on this machine" in jobs.describe(record)


def test_a_run_folder_that_was_continued_names_its_newest_job(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise a cancel by the run folder would report the end of the first job, while another runs on."""
    first = ended(write_spec("killed"))
    assert first.state == State.ERROR
    assert "continued_by" not in ask("status", first.run_dir)["data"]
    second = ended(write_spec("killed", more="resume = true"))
    assert second.run_dir == first.run_dir
    for verb in ("status", "cancel"):
        assert ask(verb, second.run_dir)["data"]["job_id"] == second.job_id
    said = ask("status", first.job_id)
    assert (said["data"]["job_id"], said["data"]["continued_by"]) == (first.job_id, second.job_id)
    assert said["next"][-1].endswith(f"jobs.py status {second.job_id}")
    assert not any(" retry " in step for step in said["next"])
    (problem,) = said["problems"]
    assert problem["code"] == "JOB_FAILED" and problem["remedy"].endswith(f"jobs.py wait {second.job_id}")
    monkeypatch.chdir(Path(first.run_dir).parent)  # where the id of the first is the name of a folder, too
    assert ask("status", first.job_id)["data"]["job_id"] == JobHandle(first.job_id).record().job_id == first.job_id
    moved = Path(first.run_dir).rename(Path(first.run_dir).parent.with_name("moved"))  # its name is no job's
    (problem,) = ask("status", str(moved))["problems"]
    assert problem["code"] == "JOB_NOT_FOUND" and f"move it back to {first.run_dir}" in problem["remedy"]
    for record in (first, second):
        job_store.record_file(record.job_id).rename(tmp_path / record.job_id)
    (problem,) = ask("status", str(moved))["problems"]
    assert "another machine" in problem["message"] and "--parent-run" in problem["remedy"]
    (tmp_path / first.job_id).rename(job_store.record_file(first.job_id))
    (problem,) = ask("retry", first.job_id)["problems"]
    assert problem["code"] == "RESUME_NO_CHECKPOINT" and "is not there" in problem["message"]


def test_a_cancel_of_a_job_that_another_continued_names_that(stand_in: None, write_spec: WriteSpec) -> None:
    record = launch("train", write_spec("hang"), "local").record
    until_engine_runs(record)
    jobs.cancel(record.job_id, ENOUGH_S)
    second = JobHandle(record.job_id).retry()
    said = ask("cancel", record.job_id)
    (problem,) = said["problems"]
    assert (problem["code"], problem["where"], said["ok"]) == ("JOB_NOT_DONE", second.job_id, False)
    assert problem["remedy"].endswith(f"cancel {second.job_id}") and not second.record().state.is_terminal
    assert ask("cancel", second.job_id)["ok"] and ask("cancel", record.job_id)["ok"]


def test_a_log_is_followed_from_its_last_lines_on(stand_in: None, write_spec: WriteSpec) -> None:
    record = ended(write_spec("complete"))
    whole = [f"line {number}" for number in range(9)]
    record.log.write_text("\n".join(whole) + "\n")
    for lines, expected in ((1, whole[-1:]), (2, whole[-2:]), (len(whole) + 9, whole)):
        shown: list[str] = []
        jobs.wait(record, 0, shown.append, lines=lines)
        assert "\n".join(shown).splitlines() == expected
    later = replace(record, log_start=record.log.stat().st_size)  # of a job that has written nothing yet
    shown = []
    jobs.wait(later, 0, shown.append, lines=5)
    assert not shown


def test_latest_is_of_this_folder(
    over_at_once: None, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        made[name] = ended(write_spec("complete", name=name), new_run=True)
    for name, record in made.items():
        monkeypatch.chdir(tmp_path / name)
        for verb in ("status", "wait"):
            assert ask(verb, "latest")["data"]["job_id"] == ask(verb)["data"]["job_id"] == record.job_id
        shown = jobs.describe(record)
        assert str(tmp_path / name) in shown and record.launcher.host in shown and record.spec in shown
    (tmp_path / "nobody's").mkdir()
    monkeypatch.chdir(tmp_path / "nobody's")
    said = ask("logs", "latest")
    assert codes(said) == ["JOB_NOT_FOUND"]
    assert made["theirs"].job_id in said["problems"][0]["message"]
    assert str(tmp_path / "theirs") in said["problems"][0]["message"]
    assert {each["job_id"] for each in ask("list")["data"]["jobs"]} == {each.job_id for each in made.values()}


def test_a_folder_of_runs_is_no_job(stand_in: None, write_spec: WriteSpec) -> None:
    record = launch("train", write_spec("complete"), "local").record
    (problem,) = ask("status", record.output_dir)["problems"]
    assert problem["code"] == "JOB_NOT_FOUND" and problem["remedy"].endswith(f"jobs.py status {record.job_id}")
    assert jobs.find(record.run_dir).job_id == record.job_id
    jobs.wait(record, ENOUGH_S)


@pytest.mark.parametrize("words", [(), ("latest",)])
def test_what_changes_a_job_wants_its_id(stand_in: None, write_spec: WriteSpec, words: tuple[str, ...]) -> None:
    assert codes(ask("cancel", *words)) == ["JOB_NOT_FOUND"]
    record = launch("train", write_spec("hang"), "local").record
    until_engine_runs(record)
    for verb in ("cancel", "retry"):
        said = ask(verb, *words)
        (problem,) = said["problems"]
        assert (problem["code"], problem["exit_code"]) == ("JOB_NOT_FOUND", Exit.USAGE)
        assert f"jobs.py {verb} {record.job_id}" in problem["remedy"]
    assert jobs.find(record.job_id).state == State.RUNNING
    assert jobs.cancel(record.job_id, ENOUGH_S).state == State.CANCELED


def test_a_record_that_cannot_be_read_is_told_beside_the_latest(over_at_once: None, write_spec: WriteSpec) -> None:
    record = ended(write_spec("complete"))
    (jobs_folder() / "perhaps-later.json").write_text("{")
    said = ask("status", "latest")
    assert said["ok"] and said["data"]["job_id"] == record.job_id
    assert codes(said) == ["JOB_RECORD_BROKEN"]


@contextmanager
def clock_ahead(days: int) -> Iterator[None]:
    """The clock of whoever launches, so many days ahead."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=days)

    with pytest.MonkeyPatch.context() as patch:
        for module in (files, runs):
            patch.setattr(module, "datetime", Ahead)
        yield


def test_after_a_clock_that_jumped_the_last_launch_is_the_latest(over_at_once: None, write_spec: WriteSpec) -> None:
    with clock_ahead(days=30):
        jumped = ended(write_spec("killed"))
    back = ended(write_spec("killed"), new_run=True)
    assert jumped.created > back.created and Path(jumped.run_dir).name > Path(back.run_dir).name
    assert ask("status", "latest")["data"]["job_id"] == back.job_id
    assert [record.job_id for record in jobs.listing()[0]] == [back.job_id, jumped.job_id]
    resumed = ended(write_spec("killed", more="resume = true"))
    assert resumed.run_dir == back.run_dir
    assert [record.sequence for record in records.scan()[0]] == [3, 2, 1]


def test_the_launches_of_an_output_folder_are_counted_without_their_records(
    over_at_once: None, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clock_ahead(days=30):
        jumped = ended(write_spec("killed"))
    monkeypatch.setenv("VIDQA_STATE_DIR", str(tmp_path / "another state"))
    back = ended(write_spec("killed"), new_run=True)
    assert ended(write_spec("killed", more="resume = true")).run_dir == back.run_dir != jumped.run_dir


def test_what_an_earlier_version_left_comes_before_all_that_is_counted(
    over_at_once: None, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records and run folders have no sequence, and its records no folder."""
    monkeypatch.chdir(tmp_path)
    older = []
    for days in (60, 30):  # of two, the one whose time is later
        with clock_ahead(days):
            older.append(ended(write_spec("killed"), new_run=True))
    for record in older:
        for path in (job_store.record_file(record.job_id), Path(record.run_dir) / "run.json"):
            kept = json.loads(path.read_text())
            path.write_text(json.dumps({key: kept[key] for key in kept if key not in ("sequence", "folder")}))
    assert ask("status", "latest")["data"]["job_id"] == older[0].job_id
    assert ended(write_spec("killed", more="resume = true")).run_dir == older[0].run_dir
    new = ended(write_spec("killed"), new_run=True)
    assert ask("status", "latest")["data"]["job_id"] == new.job_id
    assert ended(write_spec("killed", more="resume = true")).run_dir == new.run_dir
    monkeypatch.chdir("/")  # below which everything lies
    assert ask("status", "latest")["data"]["job_id"] == older[0].job_id


def test_a_job_whose_record_cannot_be_kept_does_not_run_on(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full from the moment at which the job was started."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def submit(job: Job, rendered: Rendered) -> dict[str, Any]:
        reference = local.submit(job, rendered)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # no file gets another byte
        return reference

    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, submit=submit))
    try:
        with pytest.raises(ProblemError) as full:
            launch("train", write_spec("hang"), "local")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (problem,) = full.value.problems
    assert (problem.code, problem.exit_code) == ("ENV_FILE_REFUSED", Exit.ENVIRONMENT)
    (record,) = records.scan()[0]
    assert record.job_id in problem.message and "was ended" in problem.message
    assert not job_processes(record.job_id) and not supervisors(record.job_id)
    assert jobs.observe(record).state.is_terminal


def test_a_job_whose_record_was_kept_is_started_even_if_nothing_more_can_be_written(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def status(record: JobRecord) -> Observed:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        return Observed(State.RUNNING, None, "it has just begun")

    with monkeypatch.context() as patch:
        patch.setattr(local, "LOCAL", replace(local.LOCAL, status=status))
        try:
            launched = launch("train", write_spec("hang"), "local")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert launched.how == "started" and records.read(launched.record.job_id).reference
    until_engine_runs(launched.record)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        assert [job["state"] for job in ask("list")["data"]["jobs"]] == [ask("status")["data"]["state"]] == ["RUNNING"]
        assert jobs.cancel(launched.record.job_id, ENOUGH_S).state == State.CANCELED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    stored = jobs.observe(records.read(launched.record.job_id))
    assert stored.state == State.STOPPED  # that it was cancelled could not be stored


def test_a_list_looks_at_no_more_jobs_than_it_shows(
    over_at_once: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are over, and nobody has looked since."""
    record = ended(write_spec("complete"))
    launcher = replace(record.launcher, started=0)
    for number in range(3 * jobs.MOST_LISTED):
        over = replace(record, job_id=f"job{number:03}", sequence=number + 2, launcher=launcher, state=State.RUNNING)
        records.write(over)
    looked: list[str] = []

    def status(each: JobRecord) -> Observed:
        looked.append(each.job_id)
        return local.status(each)

    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, status=status))
    newest = [f"job{number:03}" for number in reversed(range(2 * jobs.MOST_LISTED, 3 * jobs.MOST_LISTED))]
    said = ask("list")
    assert [(each["job_id"], each["state"]) for each in said["data"]["jobs"]] == [(name, "COMPLETE") for name in newest]
    assert said["data"]["count"] == 3 * jobs.MOST_LISTED + 1 and looked == newest
    ask("list")
    assert looked == newest
    (problem,) = ask("list", "job001")["problems"]
    assert problem["code"] == "USAGE" and problem["remedy"] == command("jobs", "status", "job001")
    ask("status", "latest")
    assert looked == newest


def test_a_state_folder_that_cannot_be_read_is_not_empty(state: Path) -> None:
    (state / "jobs").parent.mkdir(parents=True, exist_ok=True)
    (state / "jobs").touch()
    for words in (["list"], ["status"], ["status", "some-job"]):
        assert codes(ask(*words)) == ["ENV_FILE_REFUSED"]
    (state / "jobs").unlink()
