"""The files of a SLURM job, for backends and answers that this machine's SLURM does not have."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vidqa.core import files
from vidqa.core.problem import ProblemError
from vidqa.jobs.platforms import slurm, slurm_script
from vidqa.jobs.platforms._base import Job, State, Submitted
from vidqa.jobs.platforms.engine_process import engine_environment
from vidqa.jobs.platforms.processes import this_process
from vidqa.jobs.platforms.site import validate
from vidqa.jobs.platforms.slurm_commands import SlurmCommands, SlurmJob, accounted, find, slurm_job
from vidqa.jobs.platforms.slurm_script import SlurmSite


def job(**site: object) -> Job:
    return Job(
        job_id="20260101T120000Z-1a2b3c",
        action="train",
        run_dir=Path("/runs/a b/20260101T120000Z-1a2b3c"),
        processes=16,
        gpus=8,
        nodes=2,
        reads=(Path("/data/set"), Path("/models/m")),
        writes=(Path("/runs/a b"), Path("/cache")),
        settings=SlurmSite.model_validate(site),
    )


def program(folder: Path, name: str, *, out: str = "", err: str = "", code: int = 0) -> None:
    """A command of SLURM that answers just this."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{out}\nEND\ncat >&2 <<'END'\n{err}\nEND\nexit {code}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands stand that are found before the machine's own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def submitted(run_dir: Path, **changes: Any) -> Submitted:
    """A job that SLURM has as number 7, and whose launcher is gone."""
    gone = replace(this_process(), started=1)
    place = {"slurm_id": "7", "name": "vidqa-x"}
    there = Submitted("x", run_dir, files.now(), gone, state=State.RUNNING, reference=place)
    return replace(there, **changes)


def words_of_srun(script: str, tmp_path: Path) -> list[str]:
    """What the script gives srun first, by running it with programs that only write down their words."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("srun", "scontrol", "timeout"):
        (tools / name).write_text(f'#!/bin/bash\nprintf "%s\\n" {name} "$@" >> {tmp_path}/said\n')
        (tools / name).chmod(0o755)
    run = tmp_path / "run a"
    run.mkdir()
    script = script.replace("/runs/a b/20260101T120000Z-1a2b3c", str(run))
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert (run / "slurm-7.exit").read_text() == "0\n"
    said = (tmp_path / "said").read_text().split("srun\n")[1]
    return said.replace(str(run), "RUN").splitlines()


def test_apptainer_sees_what_the_spec_names_and_cannot_write_what_it_reads(tmp_path: Path) -> None:
    asked = job(backend="apptainer", image="/images/engine.sif", mounts=["/scratch:/tmp"], cpus_per_task=64)
    words = words_of_srun(slurm_script.sbatch(asked), tmp_path)
    assert words[:3] == ["--export=ALL", "--kill-on-bad-exit=1", "--cpus-per-task=64"]
    mounts = "RUN:RUN,/cache:/cache,/data/set:/data/set:ro,/models/m:/models/m:ro,/runs/a b:/runs/a b,/scratch:/tmp"
    assert words[3:] == ["apptainer", "exec", "--nv", "--bind", mounts, "/images/engine.sif", "bash", "RUN/node.sh"]
    inside = slurm_script.task(asked)
    assert "exec python -m vidqa.jobs.platforms.supervisor" in inside and "PYTHONPATH" not in inside


def test_a_container_sees_what_links_of_a_snapshot_stand_for(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots/1", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "a1b2").write_text("weights")
    (snapshot / "model.safetensors").symlink_to(blobs / "a1b2")
    asked = replace(job(backend="apptainer", image="/images/engine.sif"), reads=(snapshot,))
    bound = words_of_srun(slurm_script.sbatch(asked), tmp_path)
    bound = bound[bound.index("--bind") + 1].split(",")
    assert f"{snapshot}:{snapshot}:ro" in bound and f"{blobs}:{blobs}:ro" in bound


def test_pyxis_takes_its_container_from_srun(tmp_path: Path) -> None:
    asked = replace(job(backend="pyxis", image="/images/other.sqsh"), image="/images/engine.sqsh")
    words = words_of_srun(slurm_script.sbatch(asked), tmp_path)
    assert "--container-image=/images/engine.sqsh" in words and "--no-container-mount-home" in words
    mounts = next(word for word in words if word.startswith("--container-mounts="))
    assert mounts.endswith("RUN:RUN,/cache:/cache,/data/set:/data/set:ro,/models/m:/models/m:ro,/runs/a b:/runs/a b")
    assert words[-2:] == ["bash", "RUN/node.sh"]


def test_what_the_site_says_stands_in_the_directives_and_nothing_else() -> None:
    site = {
        "partition": "gpu",
        "time": "1-00:00:00",
        "gpu_type": "h200",
        "memory": "0",
        "options": ["--exclude=n[7-9]"],
    }
    lines = [line for line in slurm_script.sbatch(job(**site)).splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --partition=gpu", "#SBATCH --time=1-00:00:00", "#SBATCH --gpus-per-node=h200:8"} <= set(lines)
    assert {"#SBATCH --mem=0", "#SBATCH '--exclude=n[7-9]'", "#SBATCH --signal=USR1@120"} <= set(lines)
    bare = slurm_script.sbatch(replace(job(), gpus=0))
    assert not [name for name in ("partition", "account", "time", "gpus", "mem", "exclusive") if f"--{name}" in bare]


def test_nodes_meet_at_the_first_one_and_know_their_rank_by_themselves() -> None:
    several, one = slurm_script.task(job()), slurm_script.task(replace(job(), nodes=1, processes=8))
    assert '"--node-rank=$SLURM_NODEID" "--master-addr=$FIRST_NODE" "--master-port=$MEETING_PORT"' in several
    assert "--nnodes=2" in several and "--nproc-per-node=8" in several
    assert "--standalone" in one and "$" not in one


def test_a_node_whose_address_slurm_does_not_tell_meets_the_others_by_its_name(programs: Path) -> None:
    program(programs, "scontrol", err="scontrol: error", code=1)
    variables = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    script = slurm_script.MEETING + 'echo "$FIRST_NODE"'
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, timeout=300)
    assert done.stdout == "n1\n"


@pytest.mark.parametrize(("interface", "first"), [("lo", "127.0.0.1"), ("none0", "n1")])
def test_several_nodes_talk_by_the_network_that_the_site_names(
    programs: Path, tmp_path: Path, interface: str, first: str
) -> None:
    """By the usual one where the first node has no such network."""
    program(programs, "scontrol", err="scontrol: error", code=1)
    program(programs, "python", out="")
    (programs / "srun").write_text('#!/bin/bash\necho "$FIRST_NODE"\nexec bash "${@: -1}"\n')
    (programs / "python").write_text('#!/bin/bash\necho "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME $@"\n')
    for tool in ("srun", "python"):
        (programs / tool).chmod(0o755)
    asked = replace(job(interface=interface, python="python"), run_dir=tmp_path)
    (tmp_path / "node.sh").write_text(slurm_script.task(asked))
    variables = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0"}
    script = slurm_script.sbatch(asked)
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[0] == first, done
    assert done.stdout.splitlines()[1].startswith(f"{interface} ={interface} -m vidqa.jobs.platforms.supervisor")
    assert f"--master-addr={first}" in done.stdout
    assert "SOCKET_IFNAME" not in slurm_script.task(replace(asked, nodes=1))


@pytest.mark.parametrize(("backend", "refused"), [("venv", []), ("apptainer", ["/d/a:b", "/d/c,d"])])
def test_a_path_that_a_container_cannot_be_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, refused: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no SLURM is asked
    asked = replace(job(backend=backend, image="e.sif"), reads=(Path("/d/a:b"), Path("/d/c,d"), Path("/d/e")))
    found = [problem.where for problem in slurm.check(asked) if problem.code == "PLATFORM_PATH"]
    assert found == refused


@pytest.mark.parametrize(
    ("backend", "image", "told"),
    [
        ("pyxis", "engine.sqsh", "absolute"),
        ("pyxis", "./engine.sqsh", "absolute"),
        ("apptainer", "~/engine.sif", "absolute"),
        ("apptainer", "FOLDER/gone.sif", "no such file"),
        ("pyxis", "FOLDER/engine.sqsh", ""),
        ("pyxis", "/nodes/engine.sqsh", ""),
        ("pyxis", "registry#team/engine:1", ""),
        ("pyxis", "engine:1", ""),
        ("apptainer", "docker://engine:1", ""),
        ("venv", "engine.sqsh", ""),
    ],
)
@pytest.mark.parametrize("named_by", ["--image", "site.toml"])
def test_an_image_that_the_nodes_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, image: str, told: str, named_by: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no SLURM is asked
    (tmp_path / "engine.sqsh").touch()
    monkeypatch.chdir(tmp_path)  # where it is makes it no better: the nodes do not stand here
    image = image.replace("FOLDER", str(tmp_path))
    settings = {"backend": backend, "cluster_paths": ["/nodes"]}
    asked = replace(job(**settings), image=image) if named_by == "--image" else job(**settings, image=image)
    of_image = [problem for problem in slurm.check(asked) if problem.code == "PLATFORM_IMAGE_UNUSED"]
    errors = [problem for problem in of_image if problem.severity == "error"]
    assert [problem.where for problem in errors] == [image] * bool(told)
    assert all(told in problem.message for problem in errors)
    unused = [problem for problem in of_image if problem not in errors]
    assert [problem.severity for problem in unused] == ["warning"] * (backend == "venv")
    assert told != "absolute" or str(Path(image).expanduser().absolute()) in errors[0].remedy


@pytest.mark.parametrize("name", ["HF_ENDPOINT", "AWS_ENDPOINT_URL"])
def test_an_address_with_a_password_is_refused_before_it_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "https://mirror:8443/hub")
    assert f"export {name}=https://mirror:8443/hub" in slurm_script.task(job())
    monkeypatch.setenv(name, "https://me:planted@mirror:8443/hub")
    for made in (slurm_script.task, engine_environment):
        with pytest.raises(ProblemError) as refused:
            made(job())
        (problem,) = refused.value.problems
        assert (problem.code, problem.where) == ("PLATFORM_SITE_SETTINGS", name) and "planted" not in str(problem)


def test_the_problem_of_another_cluster_says_what_to_do() -> None:
    with pytest.raises(ProblemError, match=r"another cluster.*`ssh`"):
        validate(SlurmSite, {"options": ["--clusters=x"]}, "site.toml [slurm]")
    assert SlurmSite(options=["--cluster-constraint=a", "--chdir=/tmp"]).options


@pytest.mark.parametrize(
    "table",
    [
        {"partition": "a b"},
        {"time": "soon"},
        {"ssh": "host; rm"},
        {"setup": ["a\nb"]},
        {"options": ["x"]},
        {"cluster_paths": ["data"]},
        {"options": ["-M x"]},
        {"options": ["--clusters=x"]},
        {"options": ["--cluster=x"]},
        {"warning_s": 5},
        {"interface": "ib0; rm"},
    ],
)
def test_a_setting_that_would_break_the_script_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(ProblemError) as refused:
        validate(SlurmSite, table, "site.toml [slurm]")
    assert [problem.code for problem in refused.value.problems] == ["PLATFORM_SITE_SETTINGS"]


def test_an_option_in_the_way_of_the_script_is_refused_at_launch(programs: Path) -> None:
    """Not when settings are read: a job that an earlier version started with one can still be observed."""
    program(programs, "sbatch")
    for option, own in (
        ("--array=1-4", "array"),
        ("--arr=1-4", "array"),
        ("--output=/tmp/x", "output"),
        ("--wait", "wait"),
    ):
        (problem,) = slurm.check(job(options=["--exclude=n7", option], cpus_per_task=8, python="python"))
        assert problem.code == "PLATFORM_SITE_SETTINGS" and f"sets --{own}" in problem.message
    fine = ["--nodelist=n1", "--exclude=n7", "--ntasks-per-gpu=1", "--wait-all-nodes=1", "--mem-per-cpu=4G"]
    assert slurm.check(job(options=fine, cpus_per_task=8, python="python")) == []


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("2", 120),
        ("24:30", 24 * 60 + 30),
        ("24:00:00", 86400),
        ("1-2", 26 * 3600),
        ("1-2:03", 26 * 3600 + 180),
        ("2-00:00:05", 2 * 86400 + 5),
    ],
)
def test_a_time_is_read_as_sbatch_reads_it(time: str, seconds: int) -> None:
    assert slurm_script.seconds_of(time) == seconds


def test_a_job_has_time_before_it_saves() -> None:
    """Otherwise every attempt ends after the steps of a few seconds."""
    for settings in ({"time": "2"}, {"time": "24:00", "warning_s": 1800}):
        (problem,) = slurm_script.time_problems(SlurmSite(**settings))
        assert problem.code == "PLATFORM_SITE_SETTINGS" and "warning_s" in problem.message
    for settings in ({}, {"time": "3"}, {"time": "0-1"}, {"time": "0"}):
        assert slurm_script.time_problems(SlurmSite(**settings)) == []


def test_a_time_that_looks_like_hours_and_is_minutes_is_a_warning() -> None:
    (problem,) = slurm_script.time_problems(SlurmSite(time="24:00"))
    assert problem.severity == "warning" and "24 minutes" in problem.message and '"24:00:00"' in problem.remedy
    for time in ("24:00:00", "0-24:00", "1440"):
        assert slurm_script.time_problems(SlurmSite(time=time)) == []


def test_a_python_that_is_not_here_is_a_warning(programs: Path) -> None:
    program(programs, "sbatch")
    for site in ({"python": "/none/bin/python"}, {"checkout": "/none"}):
        (problem,) = slurm.check(job(cpus_per_task=8, **site))
        assert (problem.code, problem.severity) == ("PLATFORM_NOT_SEEN", "warning")
        assert problem.where.startswith("/none/")
    assert slurm.check(job(cpus_per_task=8, python="/none/bin/python", cluster_paths=["/none"])) == []


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("FAILED|6:0\n", SlurmJob("FAILED", exit_code=6)),
        ("CANCELLED by 1000|0:15\n", SlurmJob("CANCELLED", exit_code=143)),
        ("NODE_FAIL|1:0\nCOMPLETED|0:0\n", SlurmJob("COMPLETED", exit_code=0)),
        ("", None),
    ],
)
def test_what_the_accounts_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, expected: SlurmJob | None
) -> None:
    (tmp_path / "sacct").write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert accounted(SlurmCommands(), "7", "vidqa-x") == expected


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "slurm_load_jobs error: Protocol authentication error",
        "scontrol: fatal: Could not establish a configuration source",
        "slurm_load_jobs error: words that nobody has heard before",
    ],
)
def test_a_failure_that_names_no_job_is_no_answer(programs: Path, tmp_path: Path, said: str) -> None:
    program(programs, "sacct", err="Slurm accounting storage is disabled", code=1)
    for name in ("scontrol", "squeue"):
        program(programs, name, err=said, code=1)
    with pytest.raises(ProblemError, match="PLATFORM_SILENT"):
        slurm_job(SlurmCommands(), "7", "vidqa-x")
    with pytest.raises(ProblemError, match="PLATFORM_SILENT"):
        find(SlurmCommands(), "vidqa-x")
    for asked in (submitted(tmp_path), submitted(tmp_path, reference=None)):
        seen = slurm.status(asked)
        assert seen.state == State.RUNNING and "is unavailable" in seen.message


def test_a_job_that_slurm_does_not_know_has_vanished(programs: Path, tmp_path: Path) -> None:
    program(programs, "sacct", err="Slurm accounting storage is disabled", code=1)
    program(programs, "scontrol", err="slurm_load_jobs error: Invalid job id specified", code=1)
    assert slurm_job(SlurmCommands(), "7", "vidqa-x") is None
    assert slurm.status(submitted(tmp_path)).state == State.ERROR
    program(programs, "sacct", err="sacct: error: words that nobody has heard before", code=1)
    assert slurm.status(submitted(tmp_path)).state == State.RUNNING


@pytest.mark.parametrize(
    ("state", "seen"),
    [("EXPEDITING", "RUNNING"), ("?", "RUNNING"), ("", "RUNNING"), ("REQUEUED", "PENDING"), ("DEADLINE", "ERROR")],
)
def test_only_a_state_that_is_known_as_an_end_is_one(programs: Path, tmp_path: Path, state: str, seen: str) -> None:
    program(programs, "scontrol", out=f"JobId=7 JobName=vidqa-x JobState={state} Reason=None ExitCode=0:0")
    assert slurm.status(submitted(tmp_path)).state == seen


@pytest.mark.parametrize(("created", "seen"), [(None, "PENDING"), ("2026-01-01T00:00:00+00:00", "CANCELED")])
def test_a_launcher_of_another_machine_is_waited_for_only_so_long(
    programs: Path, tmp_path: Path, created: str | None, seen: str
) -> None:
    program(programs, "squeue")
    elsewhere = replace(this_process(), host="another")
    asked = submitted(tmp_path, launcher=elsewhere, state=State.PENDING, reference=None, cancel_requested="now")
    assert slurm.status(replace(asked, created=created or asked.created)).state == seen


def test_without_accounts_nothing_is_known_and_a_silent_one_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accounted(SlurmCommands(), "7", "vidqa-x") is None
    for said, silent in (("Slurm accounting storage is disabled", False), ("sacct: error: Connection refused", True)):
        (tmp_path / "sacct").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
        (tmp_path / "sacct").chmod(0o755)
        if silent:
            with pytest.raises(ProblemError, match="PLATFORM_SILENT"):
                accounted(SlurmCommands(), "7", "vidqa-x")
        else:
            assert accounted(SlurmCommands(), "7", "vidqa-x") is None
