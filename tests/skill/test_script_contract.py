"""What every script keeps to: quick help, one JSON object, known exit codes, no traceback, any folder."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from programs import program, run_here
from skill_pages import SCRIPTS

from vidqa.core import cli
from vidqa.core.cli import SKILL_ROOT, Result
from vidqa.core.problem import INTERNAL, Exit

# A wrong use of each script: its words, its exit code, and the code of its first problem.
WRONG = {
    "analyze_gaps": (
        ["--results-dir", "absent", "--gaps-parquet", "gaps.parquet", "--kpi-ann-path", "absent.json"],
        Exit.INPUT,
        "RESULTS_FOLDER",
    ),
    "assemble_dataset": (
        ["--base", "absent.json", "--add", "absent", "--out", "out"],
        Exit.INPUT,
        "DATA_FILE_MISSING",
    ),
    "augment_samples": (["--annotations", "absent.json", "--out", "out"], Exit.INPUT, "DATA_FILE_MISSING"),
    "build_spec": (["train", "--set", "train.epochs=3"], Exit.INPUT, "SPEC_UNKNOWN_KEY"),
    "compare": (["absent", "absent"], Exit.INPUT, "RESULTS_FOLDER"),
    "convert_dataset": (["--in", "absent.csv", "--to", "llava", "--out", "out"], Exit.INPUT, "DATA_FILE_MISSING"),
    "cut_clips": (["holoassist", "--raw", "absent", "--data", "absent"], Exit.INPUT, "BENCHMARK_DATA"),
    "export": (["absent", "--out", "out"], Exit.USAGE, "EXPORT_NOT_FOUND"),
    "fetch_data": (["nothing", "--out", "out"], Exit.INPUT, "STORAGE_NOT_FOUND"),
    "infer": (["--model", "absent", "--video", "a.mp4"], Exit.INPUT, "SPEC_PARENT_RUN"),
    "inspect_dataset": (["--annotations", "absent.json"], Exit.INPUT, "DATA_FILE_MISSING"),
    "jobs": (["status", "no-such-job"], Exit.USAGE, "JOB_NOT_FOUND"),
    "label_samples": (
        ["--tasks", "absent.json", "--labels", "absent.json", "--out", "out.json"],
        Exit.INPUT,
        "CURATION_INPUT",
    ),
    "launch": (["train", "--spec", "absent.toml"], Exit.INPUT, "SPEC_FILE"),
    "mine_samples": (
        ["--gaps", "absent.parquet", "--pool", "absent", "--query", "absent", "--out", "out"],
        Exit.INPUT,
        "CURATION_INPUT",
    ),
    "preflight": (["--spec", "absent.toml"], Exit.INPUT, "SPEC_FILE"),
    "preview_samples": (["--spec", "absent.toml"], Exit.INPUT, "SPEC_FILE"),
    "score_results": (["absent"], Exit.INPUT, "RESULTS_FOLDER"),
    "serve": (["--model", "absent"], Exit.INPUT, "SPEC_PARENT_RUN"),
    "split_dataset": (["--annotations", "absent.json", "--out", "out"], Exit.INPUT, "DATA_FILE_MISSING"),
    "run_benchmark": (
        ["--data", "absent", "--datasets", "av", "--model", "hf_model://org/name"],
        Exit.INPUT,
        "BENCHMARK_DATA",
    ),
    "run_deft": (["status", "absent"], Exit.USAGE, "DEFT_FOLDER"),
    "upload": (["absent"], Exit.USAGE, "USAGE"),
    "route_train": (["--automl", "sometimes"], Exit.USAGE, "USAGE"),
    "run_automl": (["status", "--study", "absent"], Exit.USAGE, "STUDY_MISSING"),
}
by_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def run(script: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, cwd=cwd, timeout=300)


def help_seconds(script: Path) -> float:
    """CPU time of one `--help`."""
    process = subprocess.Popen([sys.executable, str(script), "--help"], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_every_script_has_a_wrong_use_here() -> None:
    assert {script.stem for script in SCRIPTS} == set(WRONG)


@by_script
def test_help_is_quick(script: Path) -> None:
    """Counted is CPU time, which a machine that does other things at the same time leaves as it is."""
    assert statistics.median(help_seconds(script) for _ in range(3)) < 0.4


@by_script
def test_help_is_short_and_complete(script: Path, tmp_path: Path) -> None:
    done = run(script, "--help", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) <= 40
    assert "exit codes:" in lines and "examples:" in lines and "--json" in done.stdout
    for code in Exit:
        assert f"{int(code)} " in done.stdout.split("exit codes:")[1]


@by_script
def test_wrong_input_is_one_json_object_and_the_same_as_text(script: Path, tmp_path: Path) -> None:
    words, exit_code, problem = WRONG[script.stem]
    done = run(script, *words, "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == exit_code and done.stdout.startswith("{")
    assert set(said) == {"schema", "ok", "data", "problems", "next"}
    assert (said["schema"], said["ok"]) == ("vidqa.result.v1", False)
    assert said["problems"][0]["code"].startswith(problem)
    assert all(said["problems"][0][field] for field in ("where", "message", "remedy"))
    shown = run_here([sys.executable, str(script), *words], cwd=tmp_path)
    assert shown.returncode == exit_code and shown.stdout == ""
    assert said["problems"][0]["message"] in shown.stderr and "Traceback" not in shown.stderr + done.stderr


@pytest.mark.parametrize(
    ("script", "option", "values"),
    [
        ("assemble_dataset", "--group-by", ("[",)),
        ("assemble_dataset", "--replay", ("nan", "-1", "few")),
        ("assemble_dataset", "--seed", ("-1", "1.5")),
        ("augment_samples", "--seed", ("-1",)),
        ("inspect_dataset", "--nframes", ("0", "many")),
        ("inspect_dataset", "--fps", ("0", "nan")),
        ("jobs", "--lines", ("-3", "0", "9" * 400)),
        ("jobs", "--timeout", ("-5", "nan")),
        ("launch", "--gpus", ("-2",)),
        ("launch", "--nodes", ("0",)),
        ("mine_samples", "--threshold", ("nan", "5")),
        ("preflight", "--gpu-memory-gb", ("nan", "0", "inf")),
        ("preflight", "--gpu-arch", ("hopper",)),
        ("preview_samples", "--count", ("-1",)),
        ("serve", "--port", ("99999",)),
    ],
)
def test_a_value_out_of_range_is_a_usage_problem(
    script: str, option: str, values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    used = program(SKILL_ROOT / f"scripts/{script}.py")
    for value in values:
        assert cli.run(used.parser, used.main, [*WRONG[script][0], option, value, "--json"]) == Exit.USAGE
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert problem["code"] == "USAGE"
        assert option in problem["message"] and repr(value) in problem["message"]


@pytest.mark.parametrize(
    ("script", "words", "option"),
    [
        ("jobs", ["list", "--grace", "3"], "--grace"),
        ("jobs", ["status", "--follow"], "--follow"),
        ("jobs", ["logs", "--timeout", "3"], "--timeout"),
        ("jobs", ["cancel", "--yes"], "--yes"),
        ("launch", ["train", "--spec", "a.toml", "--timeout", "3"], "--timeout"),
        ("launch", ["train", "--spec", "a.toml", "--wait", "--engine", "cosmos-rl"], "--wait"),
        ("launch", ["train", "--spec", "a.toml", "--wait", "--dry-run"], "--wait"),
        ("launch", ["train", "--spec", "a.toml", "--new-run", "--engine", "cosmos-rl"], "--new-run"),
        ("launch", ["train", "--spec", "a.toml", "--verify", "--gpus", "4"], "--gpus"),
        ("preflight", ["--spec", "a.toml", "--only", "spec", "--probe-sample", "3"], "--probe-sample"),
        ("preflight", ["--spec", "a.toml", "--only", "data", "--gpu-count", "3"], "--gpu-count"),
        ("preflight", ["--spec", "a.toml", "--only", "model", "--kpi-root", "b"], "--kpi-root"),
        ("preflight", ["--spec", "a.toml", "--only", "environment", "--image", "b"], "--image"),
        ("run_automl", ["stop", "--study", "a", "--trials", "3"], "--trials"),
        ("run_automl", ["plan", "--study", "a", "--metric", "accuracy"], "--metric"),
        ("run_deft", ["next", "a", "--pool", "b"], "--pool"),
        ("run_deft", ["status", "a", "--audit-answers", "b"], "--audit-answers"),
    ],
)
def test_an_option_without_effect_is_a_usage_problem(
    script: str, words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    used = program(SKILL_ROOT / f"scripts/{script}.py")
    assert cli.run(used.parser, used.main, [*words, "--json"]) == Exit.USAGE
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["code"] == "USAGE" and option in problem["message"]


@by_script
def test_a_name_that_can_be_no_file_is_no_bug(script: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words, _, _ = WRONG[script.stem]
    for name in ("~nobody/x", "x" * 300, "file/below"):
        command = [sys.executable, str(script), *(word.replace("absent", name) for word in words), "--json"]
        done = run_here(command, cwd=tmp_path)
        (problem, *_) = json.loads(done.stdout)["problems"]
        assert problem["code"] != "INTERNAL", problem


@by_script
def test_an_unknown_option_is_a_usage_problem(script: Path, tmp_path: Path) -> None:
    done = run_here([sys.executable, str(script), "--no-such-option", "--json"], cwd=tmp_path)
    assert done.returncode == Exit.USAGE
    assert [problem["code"] for problem in json.loads(done.stdout)["problems"]] == ["USAGE"]


@by_script
def test_without_the_libraries_the_remedy_is_named(script: Path, tmp_path: Path) -> None:
    """A Python that lacks the packages, as before `make install`: -S leaves the environment's packages out."""
    words, _, _ = WRONG[script.stem]
    command = [sys.executable, "-S", str(script), *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    said = json.loads(done.stdout)
    if script.stem in ("jobs", "route_train", "run_automl", "upload"):  # found before any package is needed
        assert done.returncode in (Exit.ENVIRONMENT, Exit.USAGE)
        return
    assert done.returncode == Exit.ENVIRONMENT, said
    assert said["problems"][0]["code"] == "ENV_PACKAGE_MISSING" and "make install" in said["problems"][0]["remedy"]


@pytest.mark.parametrize("module", ["vidqa.core.cli", "vidqa.core.files", "vidqa.jobs"])
def test_an_interrupt_is_no_traceback(module: str, tmp_path: Path) -> None:
    """While a script imports its libraries, and later: `module` is where the interrupt comes."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, SKILL_ROOT / "scripts/launch.py", *WRONG["launch"][0]]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == Exit.INTERRUPTED == 130
    assert done.stdout == "" and "interrupted" in done.stderr and "Traceback" not in done.stderr


def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    """As with `| head -1`: nothing is printed about a broken pipe, and the exit code stays."""
    root = tmp_path / "set"
    root.mkdir()
    (root / "annotations.json").write_text("[]")
    command = [
        sys.executable,
        str(SKILL_ROOT / "scripts/build_spec.py"),
        "train",
        "--train-root",
        str(root),
        "--explain",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 0)


OBEYED = ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\r", "\x7f", "\u202e"]


@pytest.mark.parametrize("words", OBEYED)
def test_what_a_terminal_would_obey_is_written_out(words: str, capfd: pytest.CaptureFixture) -> None:
    """In results, problems, next commands and the lines of logs; JSON holds the very words all the same."""
    found = [INTERNAL.at(f"a{words}b", f"c{words}d")]
    result = Result({"name": f"é{words}"}, f"text {words} é\tend\r\n", found, [f"run {words}"])
    assert cli.run(cli.Parser("It shows what it found."), lambda _: result, []) == Exit.INTERNAL
    cli.note(f"log {words} line")
    out, err = capfd.readouterr()
    assert not set("\x1b\x07\x9b\r\x7f\u202e") & set(out + err)
    shown = ascii(words)[1:-1]
    assert f"text {shown} é\tend\n" in out and f"run {shown}" in out
    assert f"a{shown}b" in err and f"c{shown}d" in err and f"log {shown} line" in err
    cli.run(cli.Parser("It shows what it found."), lambda _: result, ["--json"])
    written = capfd.readouterr().out
    assert json.loads(written)["data"]["name"] == f"é{words}" and "é" in written
    assert not set("\x1b\x07\x9b\r\x7f\u202e") & set(written)


@pytest.mark.parametrize("place", ["/dev/full", "/sys/vidqa/x"])
def test_what_the_system_refuses_is_no_bug(capsys: pytest.CaptureFixture[str], place: str) -> None:
    """A disk without room, and a folder that nobody may write."""

    def main(options: Namespace) -> Result:
        if place == "/dev/full":
            Path(place).write_text("x")
        Path(place).parent.mkdir()
        return Result()

    assert cli.run(cli.Parser("Writes.", examples=[]), main, ["--json"]) == Exit.ENVIRONMENT
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["code"] == "ENV_FILE_REFUSED" and problem["message"]
