"""Jobs on a real SLURM with two nodes on this machine; the engine is a stand-in where its work is not the point."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.platforms.conftest import until_complete
from tests.platforms.slurm_cluster import SlurmCluster
from tests.platforms.specs import write_spec_in
from vidqa.core import files
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs import records
from vidqa.jobs import watch as jobs
from vidqa.jobs.launch import Launched, dry_run, launch, retry
from vidqa.jobs.platforms import slurm as slurm_platform
from vidqa.jobs.platforms import slurm_script
from vidqa.jobs.platforms._base import State
from vidqa.jobs.platforms.processes import this_process
from vidqa.jobs.platforms.slurm_commands import SlurmCommands
from vidqa.jobs.records import JobRecord
from vidqa.jobs.resources import Resources

pytestmark = pytest.mark.slurm
WriteSpec = Callable[..., Path]
LIMIT_S = 900  # another's tests may have the machine meanwhile


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Resources]:
    """What a launch is given: a site file with these lines."""

    def wanted(*lines: str, nodes: int = 1) -> Resources:
        path = tmp_path / "site.toml"
        path.write_text("\n".join(["[slurm]", *lines]))
        return Resources(nodes=nodes, site=path)

    return wanted


Site = Callable[..., Resources]


@pytest.fixture
def slurm_stand_in(slurm: SlurmCluster, stand_in: None, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """The stand-in engine on every node, each of another rank."""
    first = slurm_script.task
    monkeypatch.setattr(slurm_script, "task", lambda job: first(job).replace("RANK=0", 'RANK="$SLURM_NODEID"'))
    return slurm


def started(spec: Path, wanted: Resources) -> JobRecord:
    launched: Launched = launch("train", spec, "slurm", wanted)
    assert launched.how == "started", launched
    return launched.record


def ended(record: JobRecord) -> JobRecord:
    record = jobs.wait(record, LIMIT_S)
    assert record.state.is_terminal, f"{record.state} {record.message}\n{record.log.read_text()}"
    return record


def until(record: JobRecord, said: str, times: int = 1) -> None:
    deadline = time.monotonic() + LIMIT_S
    while record.log.read_text(errors="replace").count(said) < times:
        assert time.monotonic() < deadline, f"no {said!r} in:\n{record.log.read_text()}"
        time.sleep(0.05)


def until_seen(record: JobRecord, as_wanted: Callable[[JobRecord], bool]) -> JobRecord:
    deadline = time.monotonic() + LIMIT_S
    while not as_wanted(seen := jobs.observe(record)):
        still = not seen.state.is_terminal and time.monotonic() < deadline
        assert still, f"{seen.state} {seen.message}\n{record.log.read_text()}"
        time.sleep(0.1)
    return seen


def number(record: JobRecord) -> str:
    assert record.reference
    return str(record.reference["slurm_id"])


def test_a_path_that_a_shell_and_slurm_would_read_otherwise(
    slurm_stand_in: SlurmCluster, site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "it's 100%j $HOME"
    folder.mkdir()
    record = ended(started(write_spec_in(folder, "complete"), site()))
    assert record.state == State.COMPLETE and record.log.parent.parent.parent == folder
    assert "manner complete, rank 0" in record.log.read_text()


def test_the_engines_exit_code_is_the_jobs(slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site) -> None:
    record = ended(started(write_spec("fail"), site()))
    assert (record.state, record.exit_code, jobs.exit_code(record)) == (State.ERROR, 3, 3)
    assert record.failure and record.failure["class"] == "data"
    assert "ExitCode=3:0" in slurm_stand_in.ask("scontrol", "show", "job", number(record))
    assert "no longer answers" not in record.log.read_text()  # its node is there: no other attempt


def test_cancel_saves_and_the_job_does_not_come_back(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    record = started(write_spec("hang", processes=2), site(nodes=2))
    until(record, "manner hang", times=2)
    assert jobs.observe(record).state == State.RUNNING
    assert launch("train", write_spec("hang", processes=2), "slurm", site(nodes=2)).how == "attached"
    record = jobs.cancel(record.job_id, LIMIT_S)
    assert (record.state, record.exit_code) == (State.CANCELED, 6), record.log.read_text()
    assert sorted(path.name for path in Path(record.run_dir).glob("saved-*")) == ["saved-by-rank-0", "saved-by-rank-1"]
    assert slurm_stand_in.ask("squeue", "-h") == ""


def test_torchrun_outlives_the_warning_that_slurm_sends_to_every_process(
    slurm: SlurmCluster, stand_in_torchrun: None, write_spec: WriteSpec, site: Site
) -> None:
    record = started(write_spec("hang", processes=2), site("restarts = 0"))
    until(record, "manner hang", times=2)
    slurm.ask("scancel", "--signal=USR1", number(record))
    record = ended(record)
    assert (record.state, record.exit_code) == (State.STOPPED, 6)
    assert sorted(path.name for path in Path(record.run_dir).glob("saved-*")) == ["saved-by-rank-0", "saved-by-rank-1"]
    assert "exit code" not in record.log.read_text()  # torchrun ended well, as its processes did


def test_cancel_takes_a_waiting_job_from_the_queue(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    record = started(write_spec("complete"), site('options = ["--hold"]'))
    assert "JobHeldUser" in until_seen(record, lambda seen: "waits" in seen.message).message
    record = jobs.cancel(record.job_id, LIMIT_S)
    assert (record.state, record.exit_code) == (State.CANCELED, 5)
    assert "manner" not in record.log.read_text()


def test_a_job_canceled_by_hand_is_canceled(slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site) -> None:
    record = started(write_spec("stubborn"), site())
    until(record, "manner stubborn")
    slurm_stand_in.ask("scancel", number(record))
    record = ended(record)
    assert record.state == State.CANCELED and "in SLURM" in record.message


def test_a_suspended_job_says_so_and_can_be_cancelled(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    record = started(write_spec("hang"), site())
    until(record, "manner hang")
    slurm_stand_in.ask("scontrol", "suspend", number(record))
    assert until_seen(record, lambda seen: "suspended" in seen.message).state == State.RUNNING
    record = jobs.cancel(record.job_id, 0.5)
    assert (record.state, record.exit_code) == (State.CANCELED, 5)


def test_slurms_warning_saves_and_another_attempt_waits(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    record = started(write_spec("hang"), site("warning_s = 100"))
    until(record, "manner hang")
    slurm_stand_in.ask("scontrol", "update", f"JobId={number(record)}", "TimeLimit=2")  # a warning before that is lost
    seen = until_seen(record, lambda seen: seen.state == State.PENDING and seen.message.startswith("attempt 2"))
    assert (Path(record.run_dir) / "saved-by-rank-0").exists() and seen.job_id == record.job_id
    slurm_stand_in.start_now(number(record))
    until(record, "manner hang", times=2)
    assert jobs.observe(record).message == "attempt 2"
    assert jobs.cancel(record.job_id, LIMIT_S).exit_code == Exit.NOT_DONE


def test_after_the_last_attempt_it_is_stopped(slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site) -> None:
    record = started(write_spec("hang"), site("restarts = 0"))
    until(record, "manner hang")
    slurm_stand_in.ask("scancel", "--signal=USR1", number(record))
    record = ended(record)
    assert (record.state, record.exit_code) == (State.STOPPED, 6)
    assert "ExitCode=6:0" in slurm_stand_in.ask("scontrol", "show", "job", number(record))


def test_a_node_that_slurm_gives_up_on(slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site) -> None:
    record = started(write_spec("stubborn", processes=2), site("restarts = 0", nodes=2))
    until(record, "manner stubborn", times=2)
    slurm_stand_in.lose("n2")
    record = ended(record)
    slurm_stand_in.bring_back("n2")
    assert record.state == State.ERROR and "NODE_FAIL" in record.message
    assert record.failure and record.failure["class"] == "infrastructure"


def test_a_node_that_is_dead_before_slurm_knows(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    slurm_stand_in.lose("n2", noticed=False)
    record = started(write_spec("stubborn", processes=2), site(nodes=2))  # no rank is done without the others
    until_seen(record, lambda seen: seen.message.startswith("attempt 2"))
    assert "a node of the job no longer answers" in record.log.read_text()
    slurm_stand_in.bring_back("n2")
    until_seen(record, lambda seen: seen.state == State.PENDING)
    slurm_stand_in.start_now(number(record))
    until(record, "manner stubborn, rank 1")
    assert jobs.cancel(record.job_id, 0.5).state == State.CANCELED


def test_a_launcher_that_died_after_submitting(slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site) -> None:
    record = started(write_spec("hang"), site())
    until(record, "manner hang")
    gone = replace(this_process(), started=1)
    lost = records.write(replace(record, reference=None, launcher=gone))
    assert jobs.observe(lost).state == State.RUNNING
    assert jobs.cancel(record.job_id, LIMIT_S).state == State.CANCELED
    never = records.write(replace(lost, job_id="never", launcher=this_process(), state=State.PENDING))
    assert jobs.observe(never).message == "it is being submitted"
    dead = records.write(replace(never, launcher=gone, run_dir=str(Path(record.run_dir).parent / "never")))
    assert jobs.observe(dead).state == State.ERROR


@pytest.mark.parametrize(("left", "state", "code"), [("0", "COMPLETE", 0), ("3", "ERROR", 3), (None, "ERROR", 5)])
def test_a_job_that_slurm_has_forgotten(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site, left: str | None, state: str, code: int
) -> None:
    """The cluster keeps no accounts: what the script left in the run folder tells how it ended."""
    record = ended(started(write_spec("complete"), site()))
    run = Path(record.run_dir)
    said = {"state": state if left else "RUNNING", "exit_code": code if left else None, "message": "said"}
    (run / "status.json").write_text(json.dumps(said))
    if left:
        slurm_script.exit_file(run, "99999").write_text(left)
    forgotten = replace(record, job_id="old", state=State.RUNNING, reference={"slurm_id": "99999"})
    seen = jobs.observe(records.write(forgotten))
    assert (seen.state, jobs.exit_code(seen)) == (state, code)
    assert left or "SLURM knows no job 99999" in seen.message


def test_a_number_that_slurm_has_given_to_another_job(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    other = ended(started(write_spec("complete"), site()))
    elsewhere = str(Path(other.run_dir).parent / "elsewhere")
    reused = {"slurm_id": number(other), "name": "vidqa-old"}
    old = replace(other, job_id="old", state=State.RUNNING, run_dir=elsewhere, reference=reused)
    assert "vanished" in jobs.observe(records.write(old)).message


def test_a_silent_controller_changes_nothing(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = started(write_spec("hang"), site())
    until(record, "manner hang")
    jobs.observe(record)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SLURM_CONF", str(slurm_stand_in.impatient(tmp_path, SlurmctldPort=1)))
        elsewhere.setattr(slurm_platform, "PATIENCE_S", 0.0)
        seen = jobs.observe(records.read(record.job_id))
        assert seen.state == State.RUNNING and "is unavailable" in seen.message
        for asked in (lambda: jobs.cancel(record.job_id, 5), lambda: started(write_spec("complete"), site())):
            with pytest.raises(ProblemError) as raised:
                asked()
            assert [p.code for p in raised.value.problems if p.severity == "error"] == ["PLATFORM_SILENT"]
    assert [each.job_id for each in records.scan()[0]] == [record.job_id]
    assert jobs.cancel(record.job_id, LIMIT_S).exit_code == Exit.NOT_DONE


def test_a_controller_that_is_started_again_is_asked_again(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.impatient(tmp_path)))
    slurm.stop_controller()
    with pytest.raises(ProblemError, match="PLATFORM_SILENT"):
        SlurmCommands().ask("sbatch", "--test-only", stdin="#!/bin/bash\n")
    meanwhile = threading.Timer(2, slurm.start_controller, ["-c"])
    meanwhile.start()
    answer = SlurmCommands().ask("sbatch", "--test-only", stdin="#!/bin/bash\n", patience_s=LIMIT_S)
    meanwhile.join()
    assert not answer.is_unanswered()  # whatever it says of nodes that it does not know yet


def test_a_job_whose_number_was_lost_on_the_way_is_not_submitted_twice(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The controller hears of the job when nobody waits for its answer any more."""
    job, rendered, spec_toml, _ = dry_run("train", write_spec("hang"), "slurm", site())
    assert "#SBATCH --gpus-per-node=1\n" in rendered.files["job.sbatch"]
    for name, text in {**rendered.files, "spec.toml": spec_toml}.items():
        files.write_text(job.run_dir / name, text)
    controller = slurm_stand_in.daemons["slurmctld"]
    controller.send_signal(signal.SIGSTOP)
    meanwhile = threading.Timer(4, controller.send_signal, [signal.SIGCONT])
    meanwhile.start()
    with monkeypatch.context() as hurried:
        hurried.setenv("SLURM_CONF", str(slurm_stand_in.impatient(tmp_path)))
        taken = slurm_platform.submit(job, rendered)
    meanwhile.join()
    assert slurm_stand_in.ask("squeue", "--noheader", "--format=%i %j").split() == [
        taken["slurm_id"],
        f"vidqa-{job.job_id}",
    ]


def test_a_warning_that_comes_when_all_is_done_starts_nothing_again(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    record = started(write_spec("late"), site())
    until_complete(record)
    slurm_stand_in.ask("scancel", "--signal=USR1", number(record))
    record = ended(record)
    assert (record.state, record.exit_code, record.message) == (State.COMPLETE, 0, "done")


def test_an_attempt_of_a_run_that_is_complete_has_nothing_to_do(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    record = started(write_spec("late"), site())
    until_complete(record)
    slurm_stand_in.ask("scontrol", "requeue", number(record))  # as after a preemption or a failed node
    until_seen(record, lambda seen: seen.state == State.PENDING and seen.message.startswith("attempt 2"))
    slurm_stand_in.start_now(number(record))
    record = ended(record)
    assert (record.state, record.exit_code) == (State.COMPLETE, 0)
    assert record.log.read_text().count("manner late") == 1


def test_what_slurm_refuses_is_said_before_anything_is_written(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site, state: Path
) -> None:
    for lines, nodes, words in (
        (['partition = "nowhere"'], 1, "nowhere"),
        ([], 4, "node"),
        (['backend = "pyxis"'], 1, "pyxis"),
    ):
        with pytest.raises(ProblemError) as refused:
            launch("train", write_spec("complete", processes=4), "slurm", site(*lines, nodes=nodes))
        codes = {problem.code for problem in refused.value.problems}
        assert codes & {"PLATFORM_REFUSED", "PLATFORM_SITE_SETTINGS"} and words in str(refused.value)
    assert records.scan() == ([], [])


def test_a_retry_keeps_the_settings_of_its_job_or_takes_others(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site
) -> None:
    first = ended(started(write_spec("killed"), site('memory = "200M"')))
    wanted = site('memory = "300M"')
    second = ended(retry(first).record)
    third = ended(retry(second, wanted.site).record)
    memory = [record.settings["memory"] for record in (first, second, third) if record.settings]
    assert memory == ["200M", "200M", "300M"] and third.run_dir == first.run_dir
    assert "--mem=300M" in (Path(third.run_dir) / slurm_script.SCRIPT).read_text()


def test_without_slurm_the_problem_says_so(
    write_spec: WriteSpec, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProblemError) as raised:
        launch("train", write_spec("complete"), "slurm", site())
    assert "PLATFORM_UNREACHABLE" in {problem.code for problem in raised.value.problems}


def test_no_secret_is_written_and_the_job_has_it(
    slurm_stand_in: SlurmCluster, write_spec: WriteSpec, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    monkeypatch.setenv("NOT_FOR_THE_JOB", "other_planted_secret")
    shell = 'setup = ["echo token of ${#HF_TOKEN} letters, other of ${#NOT_FOR_THE_JOB}"]'
    record = ended(started(write_spec("complete"), site(shell)))
    assert record.state == State.COMPLETE and "token of 17 letters, other of 0" in record.log.read_text()
    assert "planted_secret" not in slurm_stand_in.ask("scontrol", "show", "job", number(record), "--details")
    assert "planted_secret" not in slurm_stand_in.ask("scontrol", "write", "batch_script", number(record), "-")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if b"planted_secret" in path.read_bytes()]
