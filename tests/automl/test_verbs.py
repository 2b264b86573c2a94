"""run_automl.py, verb by verb, with what it cannot use: one JSON object with a problem, and nothing is changed."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from programs import program
from small_studies import RATE, carry_out, write_study

from vidqa.automl import commands, journal
from vidqa.automl.journal import JOURNAL, only_controller
from vidqa.automl.parameters import Parameter
from vidqa.automl.space import Space
from vidqa.automl.status import status
from vidqa.core.cli import SKILL_ROOT, run
from vidqa.core.problem import ProblemError

VERBS = ("plan", "start", "status", "suggest", "enqueue", "tell", "stop", "report")


@pytest.fixture(scope="module")
def script() -> Any:
    return program(SKILL_ROOT / "scripts/run_automl.py")


def answer(script: Any, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    """Exit code and the object that is printed."""
    capsys.readouterr()
    code = run(script.parser, script.main, [*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def codes(said: dict[str, Any]) -> list[str]:
    assert all(each["message"] and each["remedy"] and each["where"] for each in said["problems"])
    return [each["code"] for each in said["problems"]]


@pytest.mark.usefixtures("quick_trials")
def test_values_by_hand_take_short_names_and_a_study_that_has_ended_says_what_takes_them_up(tmp_path: Path) -> None:
    study = write_study(tmp_path, max_trials=1)
    carry_out(study)
    result = commands.enqueue(study, ["learning_rate=1e-4"], "me")
    assert result.data["values"] == {RATE: 1e-4} and "--trials 2" in result.next[0]
    assert commands.tell(study, [f"{RATE}=1e-4"], [0.5], "me").next == result.next


def test_none_is_a_name_where_the_search_has_it() -> None:
    decay = Parameter("train.optm_decay_type", "categorical", options=("cosine", "none"))
    assert Space((decay,)).as_searched({decay.name: None}) == {decay.name: "none"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_without_a_study(script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str) -> None:
    code, said = answer(script, capsys, verb, "--study", tmp_path / "none")
    assert (code, said["ok"], codes(said)) == (2, False, ["STUDY_MISSING"]) and not (tmp_path / "none").exists()


def test_a_report_before_the_start_names_the_start(
    script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, said = answer(script, capsys, "report", "--study", (study := write_study(tmp_path)))
    assert codes(said) == ["STUDY_MISSING"] and f"start --study {study}" in said["problems"][0]["remedy"]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("suggest", "--count", 0), "USAGE"),
        (("suggest", "--count", -1), "USAGE"),
        (("enqueue",), "USAGE"),
        (("enqueue", "--set", f"{RATE}=-1"), "AUTOML_RANGE"),
        (("enqueue", "--set", "train.wings=1"), "AUTOML_RANGE"),
        (("tell", "--objective", 1.0), "USAGE"),
        (("tell", "--set", f"{RATE}=1e-4"), "USAGE"),
        (("tell", "--set", f"{RATE}=1e-4", "--objective", "nan"), "USAGE"),
        (("tell", "--set", f"{RATE}=1e-4", "--objective", "inf"), "USAGE"),
        (("tell", "--set", f"{RATE}=1e-4", "--objective", "much"), "USAGE"),
        (("start", "--trials", -3), "STUDY_SETTINGS"),
        (("start", "--trials", 3), "STUDY_SETTINGS"),
        (("start", "--set", "max_trials=9"), "USAGE"),
        (("plan", "--trials", 9), "USAGE"),
        (("plan", "--set", "max_trials=9"), "USAGE"),
        (("status", "--trials", 9), "USAGE"),
        (("stop", "--objective", 1), "USAGE"),
        (("report", "--spec", "train.toml"), "USAGE"),
        (("fly",), "USAGE"),
    ],
)
def test_words_that_a_verb_cannot_use(
    script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[Any, ...], wrong: str
) -> None:
    study = write_study(tmp_path, max_trials=4)
    before = (study / "study.toml").read_bytes()
    _, said = answer(script, capsys, words[0], "--study", study, *words[1:])
    assert codes(said) == [wrong] and not said["ok"]
    assert (study / "study.toml").read_bytes() == before
    assert not (study / JOURNAL).exists() and not journal.pending_requests(study)


@pytest.mark.parametrize(
    "words",
    [
        ("--range", f"{RATE}=1e-3..1e-6"),
        ("--range", f"{RATE}=-1..1"),
        ("--range", "train.wings=1,2"),
        ("--range", "model.wings"),
        ("--trials", -1),
        ("--concurrent", 0),
        ("--set", "limits.gpu_hours=-1"),
        ("--set", "resources.trials_per_gpu=0"),
        ("--set", "wings=1"),
        ("--set", "goals.wings=1"),
        ("--set", "evaluation.wings=1"),
        ("--algorithm", "guess"),
        ("--metric", "accuracy"),
        ("--metric", "val/avg_loss:sideways"),
        ("--fix", f"{RATE}=-3"),
        ("--evaluate", "nowhere.toml"),
    ],
)
def test_a_plan_that_cannot_be(
    script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[Any, ...]
) -> None:
    write_study(tmp_path)  # for its training
    code, said = answer(script, capsys, "plan", "--study", tmp_path / "new", "--spec", tmp_path / "train.toml", *words)
    assert code in (2, 3) and codes(said) and "INTERNAL" not in codes(said)


@pytest.mark.usefixtures("quick_trials")
def test_what_has_begun_is_told_of_a_damaged_journal_a_second_controller_and_a_second_stop(
    script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    study = write_study(tmp_path, max_trials=2)
    carry_out(study)
    with only_controller(study):
        assert codes(answer(script, capsys, "start", "--study", study)[1]) == ["BUSY"]
    for _ in range(2):
        code, said = answer(script, capsys, "stop", "--study", study)
        assert (code, said["data"]["state"]) == (0, "finished") and not journal.pending_requests(study)
    whole = (study / JOURNAL).read_bytes()
    (study / JOURNAL).write_bytes(whole.replace(b'"event": "trial"', b'"event": "trail"', 1))
    for verb in ("status", "report", "stop", "start", "suggest", "plan"):
        assert codes(answer(script, capsys, verb, "--study", study)[1]) == ["JOURNAL_BROKEN"], verb


def test_a_controller_that_dies_without_a_word_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = write_study(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ProblemError, match=r"(?s)INTERNAL.*exit code 1.*controller.log"):
        commands.start(study)


def test_a_started_study_can_be_told_of_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller holds the lock before it has written its first event."""
    study = write_study(tmp_path)
    slow = (
        "import sys, time; from pathlib import Path; from vidqa.jobs.launch import unchecked\n"
        "from vidqa.automl.controller import Controller; from vidqa.automl.journal import only_controller\n"
        "from vidqa.automl.study import open_study\n"
        "study = Path(sys.argv[1])\n"
        "with only_controller(study):\n"
        "    time.sleep(0.3)\n"
        "    Controller(open_study(study), unchecked)._create()\n"
        "    sys.stdin.read()\n"
    )
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def begin(words: list[str], **more: Any) -> subprocess.Popen[bytes]:
        environment = more["env"]
        begun.append(popen([sys.executable, "-c", slow, str(study)], stdin=subprocess.PIPE, env=environment))
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", begin)
    (study / "controller.log").write_text("of an earlier controller\n")
    with ThreadPoolExecutor(2) as threads:  # flock excludes threads with handles of their own, too
        starts = [threads.submit(commands.start, study) for _ in range(2)]
    try:
        assert status(study).data["state"] == "searching" and len(begun) == 1
        (refused,) = filter(None, [start.exception() for start in starts])
        assert "BUSY" in str(refused)
        (position,) = [start.result() for start in starts if not start.exception()]
        shown: list[str] = []
        commands.wait(study, 0.0, shown.append, position)
        assert shown == [], "the lines of an earlier controller are not repeated"
        with pytest.raises(ProblemError, match="BUSY"):
            commands.start(study)
    finally:
        begun[0].communicate()
