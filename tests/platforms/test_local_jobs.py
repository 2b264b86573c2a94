"""What is special about jobs on this machine: processes, their supervisor, torchrun, and records that outlive them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import listening
import pytest

from tests.platforms.conftest import ENOUGH_S, until_engine_runs
from vidqa.core.environment import jobs_folder
from vidqa.core.problem import Exit, ProblemError
from vidqa.core.run_folder import RunFolder
from vidqa.jobs import job_results, records
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import dry_run, launch, retry
from vidqa.jobs.platforms import engine_process, local, processes
from vidqa.jobs.platforms._base import LAUNCHER_ENDED, State, run_folder_log
from vidqa.jobs.platforms.processes import ProcessIdentity, job_processes, supervisors
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

WriteSpec = Callable[..., Path]


def started(spec: Path, **options: bool) -> JobRecord:
    launched = launch("train", spec, "local", **options)
    assert launched.how == "started"
    return launched.record


def ended(record: JobRecord) -> JobRecord:
    return jobs.wait(record, ENOUGH_S)


def test_a_signal_from_outside_is_a_stop(stand_in: None, write_spec: WriteSpec) -> None:
    record = started(write_spec("hang"))
    until_engine_runs(record)
    assert supervisors(record.job_id)[0].send_signal(signal.SIGTERM)
    record = ended(record)
    assert (record.state, record.exit_code) == (State.STOPPED, 6)
    assert jobs.exit_code(record) == 6


def test_a_cancelled_job_is_canceled_whoever_sees_its_end_first(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for it, as `launch --wait` does, and look far more often than the one who cancels."""
    monkeypatch.setattr(local, "LOCAL", replace(local.LOCAL, poll_s=0.001))
    for _ in range(4):
        record = started(write_spec("hang"), new_run=True)
        until_engine_runs(record)
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(jobs.wait, records.read(record.job_id), ENOUGH_S) for _ in range(4)]
            seen = [jobs.cancel(record.job_id, ENOUGH_S), *(each.result() for each in waiting)]
        assert {(each.state, each.exit_code, jobs.exit_code(each)) for each in seen} == {(State.CANCELED, 6, 6)}


def test_a_job_whose_supervisor_is_killed_still_runs_and_can_be_cancelled(
    stand_in: None, write_spec: WriteSpec
) -> None:
    record = started(write_spec("hang"))
    until_engine_runs(record)
    supervisors(record.job_id)[0].send_signal(signal.SIGKILL)
    assert jobs.observe(record).state == State.RUNNING
    record = jobs.cancel(record.job_id, ENOUGH_S)
    assert (record.state, record.exit_code) == (State.CANCELED, 6)
    assert not job_processes(record.job_id)


def test_a_launcher_that_died_before_submitting_leaves_an_error(over_at_once: None, write_spec: WriteSpec) -> None:
    record = ended(started(write_spec("complete")))
    gone = replace(record, job_id="gone", state=State.PENDING, reference=None, exit_code=None)
    Path(gone.run_dir, "status.json").unlink()
    me = ProcessIdentity.of_pid(os.getpid())
    assert me
    assert jobs.observe(records.write(replace(gone, launcher=me))).state == State.PENDING
    reused = replace(gone, launcher=replace(me, started=me.started - 1))
    seen = jobs.observe(records.write(reused))
    assert (seen.state, seen.message, seen.failure["class"]) == (State.ERROR, LAUNCHER_ENDED, "infrastructure")
    (problem,) = jobs.problems_of(seen)
    assert problem.remedy.startswith("start it again: ") and "retry gone" in problem.remedy
    records.write(replace(reused, job_id="begun", launcher=replace(me, boot="an earlier one")))
    Path(gone.run_dir, "status.json").unlink()
    reused.log.write_text("a line of an engine")
    assert jobs.observe(records.read("begun")).message.endswith("without an exit code: the machine has restarted")


def test_a_launcher_that_ends_while_we_look_has_started_its_job(
    over_at_once: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ended(started(write_spec("complete")))
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as launcher:
        identity = ProcessIdentity.of_pid(launcher.pid)
        assert identity

        def none_yet(_: str, supervisor: ProcessIdentity | None = None) -> list[ProcessIdentity]:
            launcher.communicate()
            return []

        monkeypatch.setattr(local, "engine_processes", none_yet)
        changes = {"job_id": "new", "state": State.PENDING, "reference": None, "launcher": identity}
        assert jobs.observe(records.write(replace(record, **changes))).state == State.PENDING


def test_a_supervisor_that_has_just_begun_is_not_taken_for_gone(over_at_once: None, write_spec: WriteSpec) -> None:
    """For a moment it has no environment yet in which the job's name could be read."""
    record = ended(started(write_spec("complete")))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        found = ProcessIdentity.of_pid(process.pid)
        assert found
        new = {"job_id": "new", "state": State.PENDING, "launcher": replace(record.launcher, started=0)}
        begun = records.write(replace(record, **new, reference=found.as_dict()))
        assert jobs.observe(begun).state == State.PENDING
        process.kill()
        process.wait()
        assert jobs.observe(begun).state.is_terminal


def test_a_supervisor_whose_launcher_died_before_it_starts_nothing(tmp_path: Path) -> None:
    """Nobody can find it before its program runs: a job that is taken for gone must not start afterwards."""
    module = [sys.executable, "-m", "vidqa.jobs.platforms.supervisor"]
    words = [*module, "job", tmp_path / "exit.json", "touch", tmp_path / "up"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ENOUGH_S)
    assert (done.returncode, list(tmp_path.glob("*"))) == (1, []) and done.stdout + done.stderr == ""
    subprocess.run(words, input="\n", text=True, timeout=ENOUGH_S, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {"exit.json", "up"}


def test_gpus_that_are_not_here_start_no_job(stand_in: None, write_spec: WriteSpec) -> None:
    with pytest.raises(ProblemError, match="PLATFORM_TOO_FEW_GPUS at --gpus"):
        launch("train", write_spec("complete"), "local", Resources(gpus=1))
    assert records.scan() == ([], [])


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("", "", "the same cores"),
        ("0,1", "1,2", "GPU 1"),
        ("0", "1", ""),
        ("", "0", ""),
        ("GPU-bb,0", "1", "GPU 1"),
        ("1", "GPU-aa,GPU-cc", ""),
        ("GPU-aa11", "GPU-aa", "GPU 0"),
    ],
)
def test_a_job_on_the_devices_of_a_running_job_is_a_warning(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, first: str, second: str, shared: str
) -> None:
    monkeypatch.setattr(local, "_installed_gpus", lambda _: ["GPU-aa11", "GPU-bb22", "GPU-cc33"])
    problems = []
    for devices in (first, second):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        spec = write_spec("hang", processes=len(devices.split(",")))
        launched = launch("train", spec, "local", new_run=True)
        problems.append([problem for problem in launched.problems if problem.code == "JOB_NOT_DONE"])
        until_engine_runs(launched.record)
    first_job, second_job = (record.job_id for record in reversed(records.scan()[0]))
    assert problems[0] == [] and len(problems[1]) == bool(shared)
    for problem in problems[1]:
        assert shared in problem.message
        assert problem.where == first_job and f"cancel {first_job}" in problem.remedy and problem.severity == "warning"
    for job_id in (first_job, second_job):
        jobs.cancel(job_id, ENOUGH_S)
    assert not [p for p in dry_run("train", write_spec("hang"), "local").problems if p.code == "JOB_NOT_DONE"]


def test_a_container_on_the_same_gpu_is_a_warning(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its job runs as far as can be known: no daemon answers."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-docker")
    monkeypatch.setattr(local, "_installed_gpus", lambda _: ["GPU-aa11", "GPU-bb22"])
    over = ended(started(write_spec("complete")))
    here = {"state": State.RUNNING, "settings": {}, "platform": "docker", "devices": ("1",)}
    records.write(replace(over, job_id="contained", **here))
    records.write(replace(over, job_id="elsewhere", **(here | {"devices": None})))
    for devices, shared in (("0", []), ("GPU-bb", ["contained"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        problems = dry_run("train", write_spec("hang"), "local").problems
        assert [problem.where for problem in problems if problem.code == "JOB_NOT_DONE"] == shared


def test_a_machine_that_hides_environments_runs_no_job(
    stand_in: None, write_spec: WriteSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started that could not be observed, and nobody waits for ever."""
    monkeypatch.setattr(local, "supervisors", lambda job_id: [])
    monkeypatch.setattr(local, "FOUND_S", 0.2)
    with pytest.raises(ProblemError, match="PLATFORM_UNREACHABLE"):
        launch("train", write_spec("complete"), "local")
    (record,) = records.scan()[0]
    assert record.state == State.ERROR and not job_processes(record.job_id) and not supervisors(record.job_id)


def test_a_reused_pid_is_not_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        found = ProcessIdentity.of_pid(process.pid)
        assert found and found.is_alive
        earlier = replace(found, started=found.started - 1)
        assert not earlier.is_alive and not earlier.send_signal(signal.SIGKILL)
        other_boot = replace(found, boot="another")
        assert not other_boot.send_signal(signal.SIGKILL)
        assert process.poll() is None
        assert found.send_signal(signal.SIGKILL)
        process.wait()
        assert not found.is_alive and not found.send_signal(signal.SIGKILL)


def test_a_job_of_another_machine_is_left_as_it_is(over_at_once: None, write_spec: WriteSpec) -> None:
    record = ended(started(write_spec("complete")))
    far = replace(record.launcher, host="elsewhere")
    record = records.write(replace(record, job_id="far", state=State.RUNNING, launcher=far))
    seen = jobs.observe(record)
    assert seen.state == State.RUNNING and "elsewhere" in seen.message
    with pytest.raises(ProblemError, match="PLATFORM_UNREACHABLE at far"):
        jobs.cancel("far", ENOUGH_S)


def test_a_broken_record_is_named_and_the_others_are_listed(over_at_once: None, write_spec: WriteSpec) -> None:
    record = ended(started(write_spec("complete")))
    (jobs_folder() / "broken.json").write_text("{")
    listed, problems = jobs.listing()
    assert [r.job_id for r in listed] == [record.job_id]
    assert [(p.code, p.severity) for p in problems] == [("JOB_RECORD_BROKEN", "warning")]


def test_a_log_that_was_rotated_is_read_from_its_beginning(over_at_once: None, write_spec: WriteSpec) -> None:
    first = ended(started(write_spec("killed")))
    first.log.write_text("a line of the first job\n" * 100)
    record = retry(first).record
    record.log.write_text("one\nexitcode: -15\n")
    shown: list[str] = []
    for lines in (None, 1):
        jobs.wait(record, 0, shown.append, lines=lines)
    assert shown == ["one\nexitcode: -15", "exitcode: -15"]
    assert engine_process.tail(run_folder_log, record) == "one\nexitcode: -15\n"


def test_two_ranks_under_torchrun_save_and_stop(stand_in_torchrun: None, write_spec: WriteSpec) -> None:
    record = started(write_spec("hang", processes=2))
    until_engine_runs(record, processes=2)
    assert listening.addresses(supervisors(record.job_id)[0].pid) == {"127.0.0.1"}
    record = jobs.cancel(record.job_id, ENOUGH_S)
    assert (record.state, record.exit_code) == (State.CANCELED, 6)
    assert sorted(path.name for path in Path(record.run_dir).glob("saved-*")) == ["saved-by-rank-0", "saved-by-rank-1"]
    assert not job_processes(record.job_id)


def test_nothing_is_imported_from_the_folder_of_the_launch(
    stand_in_torchrun: None, write_spec: WriteSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the supervisor, nor by torchrun, nor by a rank; nor through an empty part of PYTHONPATH."""
    (tmp_path / "here").mkdir()
    for name in ("subprocess", "torch", "hashlib"):
        (tmp_path / "here" / f"{name}.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path}:")
    record = ended(started(write_spec("complete", processes=2)))
    assert record.state == State.COMPLETE, record.log.read_text()
    assert "planted" not in record.log.read_text()


def test_torchrun_ending_with_1_does_not_hide_the_engines_exit_code(
    stand_in_torchrun: None, write_spec: WriteSpec
) -> None:
    record = ended(started(write_spec("fail")))
    assert (record.state, record.exit_code) == (State.ERROR, 3)


def test_a_worker_killed_under_torchrun_is_told_from_its_log(stand_in_torchrun: None, write_spec: WriteSpec) -> None:
    record = ended(started(write_spec("killed")))
    assert record.state == State.ERROR and "SIGKILL" in record.message
    assert record.failure and record.failure["class"] == "infrastructure"  # nothing says that memory was full


def test_a_killed_job_says_why_and_is_launched_again_without_asking(stand_in: None, write_spec: WriteSpec) -> None:
    record = ended(started(write_spec("killed")))
    shown = job_results.of_job(record)
    assert shown.code == Exit.OK and ["retry", record.job_id] == shlex.split(shown.next[-1])[2:]
    (problem,) = shown.problems
    assert problem.code == "JOB_FAILED" and shown.next[-1] in problem.remedy and "SIGKILL" in problem.message
    left = RunFolder(Path(record.run_dir))
    assert left.read_problems() == [problem] == job_results.of_wait(record).problems
    said = left.read_status()
    assert (said["state"], said["exit_code"], said["message"]) == (State.ERROR, 5, record.message)
    again = retry(record).record
    assert again.retry_of == record.job_id
    ended(again)


def test_a_job_that_would_fail_again_is_not_offered_to_be(stand_in: None, write_spec: WriteSpec) -> None:
    shown = job_results.of_job(ended(started(write_spec("fail"))))
    assert [p.code for p in shown.problems] == ["DATA_EMPTY"] and not [n for n in shown.next if " retry " in n]


def test_ranks_below_a_supervisor_are_found_without_a_look_at_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, processes.JOB_VARIABLE: "below", "RANK": "0"}
    shell = ["bash", "-c", "bash -c 'sleep 100 & wait' & wait"]
    inside, outside = (subprocess.Popen(shell, env=environment, start_new_session=True) for _ in range(2))
    try:
        all_ranks, deadline = set[int](), time.monotonic() + 60
        while len(all_ranks) < 2 and time.monotonic() < deadline:
            all_ranks = {process.pid for process in processes.engine_processes("below")}
        assert all_ranks == {inside.pid, outside.pid}
        supervisor = processes.ProcessIdentity.of_pid(os.getpid())
        monkeypatch.setattr(Path, "iterdir", None)  # as the whole of /proc is listed
        assert {process.pid for process in processes.engine_processes("below", supervisor)} == all_ranks
        (below,) = processes.engine_processes("below", processes.ProcessIdentity.of_pid(inside.pid))
        assert processes.parent(below.pid) == inside.pid
    finally:
        for process in (inside, outside):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
