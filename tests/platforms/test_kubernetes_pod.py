"""The first process of a pod: what it prepares, the exit code it ends with, and the last words it leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vidqa.core.run_folder import RunFolder
from vidqa.jobs.platforms.kubernetes import pod as pod_program
from vidqa.jobs.platforms.kubernetes.pod import begin, has_stopped

SOURCE = Path(__file__).resolve().parents[2] / "src"


def pod(folder: Path, program: str, *, node: int = 0) -> tuple[int, dict, str]:
    """Exit code, last words and output of a pod whose engine is a small program that knows `run`, its run folder."""
    (folder / "given").mkdir(exist_ok=True)
    (folder / "given" / "spec.toml").write_text("[train]\n")
    last = folder / f"last-words-{node}"
    prelude = f"import json, pathlib, sys; run = pathlib.Path({str(folder / 'runs' / 'r')!r})\n"
    words = ["--job", "j", "--run-dir", folder / "runs" / "r", "--given", folder / "given", "--last-words", last]
    command = list(map(str, [*words, "--node", node, "--", sys.executable, "-c", prelude + program]))
    output = folder / "output"
    process = multiprocessing.get_context("fork").Process(target=in_pod, args=(command, output))
    process.start()
    process.join(300)
    return process.exitcode, json.loads(last.read_text()) if last.exists() else {}, output.read_text()


def in_pod(words: list[str], output: Path) -> None:
    """The program of a pod in a fork of this process, which has imported it."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    os.environ.clear()
    os.environ.update(PATH="/usr/bin:/bin")
    code = pod_program.main(words)
    sys.stdout.flush()
    sys.exit(code)


def status(state: str, code: int, message: str = "") -> str:
    said = {"state": state, "exit_code": code, "message": message}
    return f"(run / 'status.json').write_text(json.dumps({said!r}));"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (status("COMPLETE", 0), 0),
        (status("STOPPED", 6), 6),  # torchrun ends with 0 then
        (status("ERROR", 4) + "sys.exit(1)", 4),
        ("sys.exit(1)", 5),
        ("pass", 5),  # ended well and said nothing
        ("sys.exit(6)", 6),  # asked to stop before the engine could say a word
        ("import os; os.kill(os.getpid(), 9)", 137),
        (status("COMPLETE", 0) + "sys.exit(1)", 5),
        (status("COMPLETE", 0) + "sys.exit(6)", 0),  # asked to stop when all was done
        (status("COMPLETE", 0) + "import os; os.kill(os.getpid(), 15)", 0),
    ],
)
def test_the_engines_own_exit_code_is_the_containers(tmp_path: Path, program: str, expected: int) -> None:
    code, words, _ = pod(tmp_path, program)
    assert code == expected
    assert set(words) == {"ended", "status", "problems"}


def test_the_run_folder_is_prepared_and_the_log_kept_twice(tmp_path: Path) -> None:
    code, _, output = pod(
        tmp_path, "print('a line', flush=True); print('another', file=sys.stderr);" + status("COMPLETE", 0)
    )
    run = tmp_path / "runs" / "r"
    assert code == 0 and output.splitlines() == ["a line", "another"]
    assert (run / "log.txt").read_text() == output and (run / "spec.toml").read_text() == "[train]\n"
    assert json.loads((run / "run.json").read_text())["jobs"] == ["j"]
    pod(tmp_path, status("COMPLETE", 0))  # the pod that takes its place
    assert json.loads((run / "run.json").read_text())["jobs"] == ["j"]


def test_last_words_stay_within_what_a_cluster_keeps(tmp_path: Path) -> None:
    problem = {"code": "X", "where": "w", "message": "m" * 850, "remedy": "r", "exit_code": 3, "severity": "error"}
    program = f"(run / 'problems.json').write_text(json.dumps([{problem!r}] * 20));"
    code, words, _ = pod(tmp_path, program + status("ERROR", 3, "ä" * 5000) + "sys.exit(1)")
    assert code == 3 and (tmp_path / "last-words-0").stat().st_size <= 4096
    assert words["status"]["state"] == "ERROR" and words["status"]["message"].startswith("ää")
    code, words, _ = pod(tmp_path, program + status("ERROR", 3, "short") + "sys.exit(1)")
    assert len(words["problems"]) == 4 and words["status"]["message"] == "short"
    code, words, _ = pod(tmp_path, status("E" * 5000, 3, "short") + "sys.exit(1)")
    assert code == 5 and words["status"] == {}


@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_that_takes_a_lost_ones_place_when_all_is_done_has_nothing_to_do(tmp_path: Path, node: int) -> None:
    pod(tmp_path, status("COMPLETE", 0))
    code, words, output = pod(tmp_path, "print('trains again')", node=node)
    assert code == 0 and words["status"]["state"] == "COMPLETE" and "trains again" not in output
    run = tmp_path / "runs" / "r" / "run.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "jobs": ["earlier"]}))  # then it is another job's
    assert "trains again" in pod(tmp_path, "print('trains again')")[2]


@pytest.mark.parametrize(
    ("program", "last", "expected"),
    [
        ("print('here')", "STOPPED", 6),
        ("print('here'); sys.exit(6)", "COMPLETE", 0),  # asked to stop when only its own processes were done
        ("print('here')", "PENDING", 6),  # another attempt has begun over what rank 0 said
    ],
)
def test_another_node_waits_for_what_rank_0_says(tmp_path: Path, program: str, last: str, expected: int) -> None:
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    (run / "status.json").write_text(json.dumps({"state": "RUNNING"}))
    writer = f"import time, json, pathlib; time.sleep(0.7); pathlib.Path({str(run / 'status.json')!r}).write_text("
    writer += f"json.dumps(dict(state={last!r}, exit_code={expected if last != 'PENDING' else None})))"
    with subprocess.Popen([sys.executable, "-c", writer]):
        code, _, _ = pod(tmp_path, program, node=1)
    assert code == expected and (run / "log_node1.txt").exists()


def test_another_node_meets_no_first_node_that_has_stopped(tmp_path: Path) -> None:
    """The store of the attempt before is still there, and would tell it of ranks that are gone."""
    pod(tmp_path, status("STOPPED", 6))
    run = RunFolder(tmp_path / "runs" / "r")
    assert has_stopped(run, "j") and not has_stopped(run, "another")
    begin(run, tmp_path / "given", "j")
    assert not has_stopped(run, "j")


def test_it_is_a_program_of_its_own(tmp_path: Path) -> None:
    """As the manifest of a job starts it: its own process, which ends as the engine's does."""
    run, last = tmp_path / "run", tmp_path / "last-words"
    (tmp_path / "spec.toml").write_text("[train]\n")
    words = ["--job", "j", "--run-dir", run, "--given", tmp_path, "--last-words", last, "--node", 0, "--"]
    command = [sys.executable, "-m", pod_program.__name__, *words, sys.executable, "-c", "print('here')"]
    variables = {"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=variables, timeout=300)
    assert (ran.returncode, ran.stdout) == (5, "here\n") and json.loads(last.read_text())["ended"] == 0


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    code, words, output = pod(tmp_path, "pass")
    assert code == 4 and "cannot be written" in output and words == {}
