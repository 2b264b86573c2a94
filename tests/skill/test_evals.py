"""The tasks of evals/: every command is one that the scripts take, and the words about a search are SKILL.md's."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import run_here
from skill_pages import words_of
from test_commands import check_command

from vidqa.core.cli import SKILL_ROOT

TASKS: list[dict[str, Any]] = json.loads((SKILL_ROOT / "evals/evals.json").read_text(encoding="utf-8"))["tasks"]
by_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task["id"])


def test_there_are_tasks_of_every_branch_and_each_has_its_name() -> None:
    assert len({task["id"] for task in TASKS}) == len({task["sentence"] for task in TASKS}) == len(TASKS) >= 10
    assert {task["automl"] for task in TASKS} == {"auto", "off", "ask", None}
    for task in TASKS:
        assert set(task) == {"id", "sentence", "folder", "automl", "commands", "expected"} and task["expected"]


@by_task
def test_the_commands_are_ones_that_the_scripts_take(task: dict[str, Any]) -> None:
    for command in task["commands"]:
        check_command(command)


@by_task
def test_the_search_is_what_the_words_say_by_the_skill(task: dict[str, Any]) -> None:
    """Words that SKILL.md gives a meaning have that meaning in the sentences, too."""
    skill = (SKILL_ROOT / "SKILL.md").read_text(encoding="utf-8")
    for automl in ("off", "on"):
        quoted = re.search(rf"`{automl}`: (.*?)\.\s", skill, re.DOTALL)
        assert quoted, f"SKILL.md gives no words for {automl}"
        phrases = re.findall(r'"([^"]+)"', " ".join(quoted[1].split()))
        assert len(phrases) >= 4
        if any(phrase in task["sentence"].lower() for phrase in phrases) and task["automl"] != "ask":
            assert task["automl"] == automl
    routed = [command for command in task["commands"] if "route_train" in command]
    for command in routed:
        assert f"--automl {'auto' if task['automl'] == 'ask' else task['automl']} " in command


def test_the_files_for_a_cluster_come_out_of_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is carried out as written, but for launch.py's preflight, which is the command before it."""
    (task,) = [task for task in TASKS if task["id"] == "slurm-files"]
    (tmp_path / "site.toml").write_text(
        '[slurm]\npartition = "gpu"\naccount = "video"\ncluster_paths = ["/lustre/video"]\ncpus_per_task = 64\n'
        'checkout = "/lustre/video/finetune-cosmos-reason"\n'
    )
    monkeypatch.setenv("VIDQA_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for command in task["commands"]:
        _, script, *words = words_of(command)
        done = run_here([sys.executable, str(SKILL_ROOT / script), *words, "--json"], cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        codes = {problem["code"] for problem in json.loads(done.stdout)["problems"]}
        assert not codes & {"PLATFORM_SITE_SETTINGS", "SPEC_DP_MISMATCH"}
    texts = {path.name: path.read_text() for path in (tmp_path / "look").iterdir()}
    assert set(texts) == {"spec.toml", "job.sbatch", "node.sh", "submit.sh"}
    here = (str(SKILL_ROOT), str(tmp_path), str(Path.home()))
    assert [(name, word) for name, text in texts.items() for word in here if word in text] == []
