"""From a spec to a job: names, folders, attaching, resuming, and what --dry-run promises."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from programs import run_here

from tests.jobs.jobs_script import ask
from tests.platforms.conftest import ENOUGH_S
from vidqa.core import environment, files
from vidqa.core.environment import jobs_folder
from vidqa.core.locks import try_lock
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import job_results, records
from vidqa.jobs import launch as launching
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import dry_run, launch, retry
from vidqa.jobs.platforms import local
from vidqa.jobs.platforms._base import Job, Rendered, State
from vidqa.jobs.platforms.local import LOCAL
from vidqa.jobs.problems import PLATFORM_REFUSED
from vidqa.jobs.resources import Resources
from vidqa.spec import load

WriteSpec = Callable[..., Path]
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def finished(spec: Path, resources: Resources | None = None, **options: bool):
    launched = launch("train", spec, "local", resources, **options)
    return launched.how, jobs.wait(launched.record, ENOUGH_S)


def test_the_same_spec_attaches_while_it_runs(stand_in: None, write_spec: WriteSpec) -> None:
    spec = write_spec("hang")
    first = launch("train", spec, "local")
    second = launch("train", spec, "local")
    assert (first.how, second.how) == ("started", "attached")
    assert second.record.job_id == first.record.job_id
    third = launch("train", spec, "local", new_run=True)
    assert third.how == "started" and third.record.run_dir != first.record.run_dir
    for record in (first.record, third.record):
        assert jobs.cancel(record.job_id, ENOUGH_S).state == State.CANCELED


def test_the_same_spec_is_done_when_it_is_done(stand_in: None, write_spec: WriteSpec, tmp_path: Path) -> None:
    spec = write_spec("complete")
    how, record = finished(spec)
    assert how == "started" and record.state == State.COMPLETE
    assert finished(spec) == ("done", record)
    (tmp_path / "model" / "config.json").write_text('{"other": "model"}')
    assert finished(spec)[0] == "started"
    (tmp_path / "annotations.json").write_text("[ ]")
    assert finished(spec)[0] == "started"


def test_a_spec_of_another_action_is_one_problem(write_spec: WriteSpec) -> None:
    with pytest.raises(ProblemError) as refused:
        launch("evaluate", write_spec("complete"), "local")
    assert [(p.code, "a spec for train" in p.message) for p in refused.value.problems] == [("SPEC_ACTION", True)]


def test_the_spec_of_another_action_is_not_loaded(write_spec: WriteSpec) -> None:
    with pytest.raises(ProblemError, match="SPEC_ACTION"):
        load(write_spec("complete"), "evaluate")


def test_after_an_evaluation_comes_the_analysis_of_its_gaps(
    stand_in: None, write_spec: WriteSpec, tmp_path: Path
) -> None:
    record = replace(finished(write_spec("complete"))[1], action="evaluate")
    written = Path(record.run_dir) / "spec.toml"
    written.write_text('[dataset]\nannotation_path = "kpi/annotations.json"\nmedia_dir = "kpi"\n')
    words = shlex.split(job_results.of_wait(record).next[-1])
    assert words[1].endswith("analyze_gaps.py") and {record.run_dir, "kpi/annotations.json", "kpi"} <= set(words)
    written.unlink()
    assert len(job_results.of_wait(record).next) == 1


def test_a_failed_job_is_launched_again(stand_in: None, write_spec: WriteSpec) -> None:
    spec = write_spec("fail")
    first, second = finished(spec), finished(spec)
    assert first[0] == second[0] == "started"
    assert first[1].run_dir != second[1].run_dir


def test_resume_goes_on_in_the_same_run_folder(stand_in: None, write_spec: WriteSpec) -> None:
    _, first = finished(write_spec("killed"))
    how, second = finished(write_spec("killed", more="resume = true"))
    assert how == "started" and second.run_dir == first.run_dir and second.job_id != first.job_id
    run = json.loads((Path(first.run_dir) / "run.json").read_text())
    assert run["jobs"] == [first.job_id, second.job_id]
    assert second.log_start > 0
    _, third = finished(write_spec("killed", more="resume = true"), new_run=True)
    assert third.run_dir != first.run_dir


def test_nothing_to_resume_is_refused_instead_of_starting_over(stand_in: None, write_spec: WriteSpec) -> None:
    with pytest.raises(ProblemError) as refused:
        launch("train", write_spec("fresh", more="resume = true"), "local")
    assert [p.code for p in refused.value.problems] == ["RESUME_NO_CHECKPOINT"]


def test_a_finished_run_asked_to_resume_is_done(stand_in: None, write_spec: WriteSpec) -> None:
    _, first = finished(write_spec("complete"))
    assert launch("train", write_spec("complete", more="resume = true"), "local").how == "done"
    assert first.state == "COMPLETE"


def test_a_run_folder_in_use_is_not_resumed(stand_in: None, write_spec: WriteSpec, tmp_path: Path) -> None:
    first = launch("train", write_spec("hang"), "local").record
    (tmp_path / "model" / "more.json").write_text("{}")  # another model: not the same job, yet the same run
    with pytest.raises(ProblemError) as raised:
        launch("train", write_spec("hang", more="resume = true"), "local")
    assert raised.value.problems[0].code == "JOB_NOT_DONE" and first.job_id in str(raised.value)
    jobs.cancel(first.job_id, ENOUGH_S)


def test_the_jobs_spec_has_absolute_paths(
    stand_in: None, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec("complete")
    spec.write_text(spec.read_text().replace(f"{tmp_path}/", ""))
    monkeypatch.chdir(tmp_path)
    _, record = finished(Path("complete.toml"))
    kept = tomllib.loads((Path(record.run_dir) / "spec.toml").read_text())
    assert kept["custom"]["train_dataset"]["annotation_path"] == str(tmp_path / "annotations.json")
    assert kept["policy"]["model_name_or_path"] == str(tmp_path / "model")
    assert kept["custom"]["val_dataset"]["annotation_path"] == ""
    assert record.run_dir.startswith(str(tmp_path / "runs"))
    assert json.loads((Path(record.run_dir) / "run.json").read_text())["models"] == {
        "policy.model_name_or_path": "model"
    }


def test_dry_run_shows_what_runs_and_changes_nothing(write_spec: WriteSpec, tmp_path: Path, state: Path) -> None:
    job, rendered, spec_toml, problems = dry_run("train", write_spec("complete", processes=2), "local")
    words = shlex.split(rendered.shown)
    assert words[0] == "env" and f"--nproc-per-node={job.processes}" in words and job.processes == 2
    assert words[words.index("-m", words.index("-m") + 1) + 1 :] == [
        "vidqa.engine", "train", "--spec", str(job.spec), "--run-dir", str(job.run_dir)
    ]  # fmt: skip
    assert "HF_HUB_OFFLINE=1" in words
    assert tomllib.loads(spec_toml)["train"]["output_dir"] == str(tmp_path / "runs")
    assert [p.code for p in problems if "GPU" in p.code] == ["PLATFORM_TOO_FEW_GPUS"]
    assert not (tmp_path / "runs").exists() and not list(state.rglob("*.json"))


def test_threads_are_shared_out_on_the_cpu(write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    _, rendered, _, _ = dry_run("train", write_spec("complete", processes=64), "local")
    assert rendered.environment["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    _, rendered, _, _ = dry_run("train", write_spec("complete"), "local")
    assert "OMP_NUM_THREADS" not in rendered.environment


def test_more_processes_than_gpus(
    write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\nprintf 'GPU 0: A (UUID: x)\\nGPU 1: A (UUID: y)\\n'\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with pytest.raises(ProblemError) as raised:
        launch("train", write_spec("complete", processes=3), "local")
    assert "PLATFORM_TOO_FEW_GPUS" in [p.code for p in raised.value.problems]
    assert raised.value.exit_code == Exit.ENVIRONMENT and not list(state.rglob("*.json"))
    for devices, count in (("2,0", 0), ("1,2", 1)):  # there is no GPU 2: CUDA reads on no further
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        assert dry_run("train", write_spec("complete"), "local")[0].gpus == count
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert dry_run("train", write_spec("complete", processes=2), "local")[0].gpus == 2


def test_no_gpus_by_choice_hides_those_that_are_there(write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    made = dry_run("train", write_spec("complete"), "local", Resources(gpus=0))
    assert made.rendered.environment["CUDA_VISIBLE_DEVICES"] == ""
    made = dry_run("train", write_spec("complete"), "local", Resources(gpus=2))
    assert "CUDA_VISIBLE_DEVICES" not in made.rendered.environment


def test_a_retry_uses_the_gpus_that_were_asked_for(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf 'GPU 0: A (UUID: x)\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for asked, gpus in ((0, 0), (None, 1)):
        failed = finished(write_spec("fail", name=f"of-{asked}"), Resources(gpus=asked))[1]
        again = retry(failed, agreed=True).record
        assert (again.requested_gpus, failed.gpus, again.gpus) == (asked, gpus, gpus)
        jobs.wait(again, ENOUGH_S)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("HUGGING_FACE_HUB_TOKEN", environment.hf_token),
        ("HF_ENDPOINT", environment.hf_endpoint),
        ("AWS_ENDPOINT_URL", environment.s3_endpoint),
        ("AWS_ENDPOINT_URL_S3", environment.s3_endpoint),
    ],
)
def test_what_an_upload_reads_reaches_the_job(
    write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, name: str, read: Callable[[], str | None]
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv(name, "http://there")
    rendered = dry_run("train", write_spec("complete"), "local").rendered
    passed = {**rendered.environment, **environment.values(environment.SECRET_NAMES)}
    monkeypatch.delenv(name)
    assert read() is None
    monkeypatch.setenv(name, passed[name])
    assert read() == "http://there"


def test_a_dry_run_of_a_new_run_resumes_nothing(over_at_once: None, write_spec: WriteSpec) -> None:
    _, first = finished(write_spec("killed"))
    spec = write_spec("killed", more="resume = true")
    assert str(dry_run("train", spec, "local").job.run_dir) == first.run_dir
    assert str(dry_run("train", spec, "local", new_run=True).job.run_dir) != first.run_dir


def test_an_unwritable_output_folder(stand_in: None, write_spec: WriteSpec, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(ProblemError) as raised:
        launch("train", write_spec("complete"), "local")
    assert [p.code for p in raised.value.problems] == ["ENV_FILE_REFUSED"]
    assert records.scan() == ([], [])


def test_the_newest_jobs_are_listed_and_the_others_counted(over_at_once: None, write_spec: WriteSpec) -> None:
    _, record = finished(write_spec("complete"))
    for number in range(job_results.MOST_LISTED + 1):
        records.write(replace(record, job_id=f"older{number}", created=f"2020-01-01T00:00:{number:02}+00:00"))
    listed = job_results.of_listing(*jobs.listing())
    assert listed.data["count"] == job_results.MOST_LISTED + 2 and len(listed.data["jobs"]) == job_results.MOST_LISTED
    assert listed.data["jobs"][0]["job_id"] == record.job_id
    assert listed.text.splitlines()[-1] == f"and 2 older ones, in {jobs_folder()}"


def test_no_lines_of_a_log_are_none(stand_in: None, write_spec: WriteSpec) -> None:
    _, record = finished(write_spec("complete"))
    assert [jobs.tail(record, lines) for lines in (1, 0, -1)] == ["the last line", "", ""]


def test_the_retry_script_refuses_what_would_fail_again(stand_in: None, write_spec: WriteSpec) -> None:
    _, record = finished(write_spec("fail"))
    (problem,) = ask("retry", record.job_id)["problems"]
    assert (problem["code"], problem["exit_code"]) == ("NOT_AGREED", Exit.REFUSED)
    assert "--yes" in problem["remedy"] and "--image" not in problem["remedy"]
    assert "DATA_EMPTY" in problem["message"]


def test_a_job_that_was_refused_has_no_checkpoint_to_go_on_from(
    write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its remedy is what the platform said, and settings that a retry would otherwise keep."""

    def submit(job: Job, rendered: Rendered) -> dict:
        raise PLATFORM_REFUSED.error("there", "the daemon says: no")

    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, submit=submit))
    with pytest.raises(ProblemError):
        launch("train", write_spec("complete"), "local")
    (problem,) = ask("status", "latest")["problems"]
    assert problem["code"] == "JOB_FAILED" and "the daemon says: no" in problem["message"]
    assert "checkpoint" not in problem["remedy"] and "--site FILE" in problem["remedy"]


def test_the_remedy_of_an_image_is_not_its_empty_log(over_at_once: None, write_spec: WriteSpec) -> None:
    record = jobs.wait(launch("train", write_spec("killed"), "local").record, ENOUGH_S)
    (record.run.path / "problems.json").unlink()  # as where the engine has not begun
    ended = replace(record, message="ErrImagePull", failure={"class": "image", "evidence": "ErrImagePull"})
    (problem,) = job_results.of_job(ended).problems
    assert "log" not in problem.remedy
    assert f"jobs.py retry {record.job_id}" in problem.remedy and "launch the spec again" in problem.remedy


def test_the_scripts_dry_run_and_list(write_spec: WriteSpec, tmp_path: Path) -> None:
    def script(*words: object) -> tuple[int, dict]:
        ran = run_here([sys.executable, *map(str, words), "--json"], cwd=tmp_path)
        return ran.returncode, json.loads(ran.stdout)

    code, result = script(
        SCRIPTS / "launch.py", "train", "--spec", write_spec("complete"), "--dry-run", "--skip-preflight"
    )
    assert code == 0 and result["data"]["command"][-1].startswith(str(tmp_path / "runs"))
    code, result = script(SCRIPTS / "jobs.py", "list")
    assert (code, result["data"]["jobs"], result["data"]["count"]) == (0, [], 0)
    code, result = script(SCRIPTS / "jobs.py", "status", "none")
    assert code == Exit.USAGE and result["problems"][0]["code"] == "JOB_NOT_FOUND"
    code, result = script(SCRIPTS / "launch.py", "train", "--spec", "absent.toml", "--platform", "mainframe")
    assert code == Exit.USAGE and result["problems"][0]["code"] == "USAGE"


def test_a_slow_cluster_keeps_no_other_launch_waiting(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of a platform is asked outside the lock of launches."""
    held: list[str] = []

    def watched(name: str):
        ask = getattr(LOCAL, name)

        def asked(*words: object) -> object:
            with (jobs_folder() / ".launch.lock").open("a") as lock:
                held.extend([name] * (not try_lock(lock.fileno(), Path(lock.name))))
            return ask(*words)

        return asked

    (jobs_folder()).mkdir(parents=True, exist_ok=True)
    slow = replace(LOCAL, **{name: watched(name) for name in ("check", "submit", "status")})
    monkeypatch.setattr(launching, "platform", lambda _: slow)
    monkeypatch.setattr(jobs, "platform", lambda _: slow)
    spec = write_spec("complete")
    assert finished(spec)[0] == "started" and finished(spec)[0] == "done" and held == []


def test_two_launches_at_one_time_start_one_job(stand_in: None, write_spec: WriteSpec) -> None:
    spec = write_spec("hang")
    with ThreadPoolExecutor(4) as threads:
        launched = list(threads.map(lambda _: launch("train", spec, "local"), range(4)))
    assert sorted(each.how for each in launched) == ["attached"] * 3 + ["started"]
    (job_id,) = {each.record.job_id for each in launched}
    assert jobs.cancel(job_id, ENOUGH_S).state == State.CANCELED


def test_a_run_folder_that_another_launch_creates_meanwhile_is_not_shared(
    over_at_once: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another state folder, as on another machine, and so no common lock."""

    def render(job: Job) -> Rendered:
        job.run_dir.mkdir(parents=True)
        return local.render(job)

    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, render=render))
    with pytest.raises(ProblemError, match=r"BUSY at .*/runs/"):
        launch("train", write_spec("complete"), "local")
    assert records.scan() == ([], [])


def test_a_record_is_read_once_while_it_stays_as_it_is(
    over_at_once: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, record = finished(write_spec("complete"))
    for number in range(50):
        records.write(replace(record, job_id=f"20200101T000000Z-ffffff-{number}", spec_fingerprint="f" * 64))
    read: list[Path] = []
    read_json = files.read_json
    monkeypatch.setattr(records.files, "read_json", lambda path: (read.append(path), read_json(path))[1])
    assert len(records.scan([record.job_id])[0]) == 1 and len(read) <= 1
    assert len(records.scan()[0]) == len(records.scan()[0]) == 51 and len(read) <= 51
    records.write(replace(record, message="another"))
    assert records.scan([record.job_id])[0][0].message == "another"


@pytest.mark.parametrize("home", ["", "~nobody-of-this-name"])
def test_without_a_home_folder_records_are_not_in_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("VIDQA_STATE_DIR", raising=False)
    assert environment.jobs_folder().is_absolute()
