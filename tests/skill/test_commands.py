"""Every command that a page shows is one that the real parsers take, with keys that specs have."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from pathlib import Path

import pytest
from skill_pages import PAGES, SCRIPTS, inline_code, parser_of, shell_lines, words_of

from vidqa.core import actions
from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import Problem, ProblemError
from vidqa.spec.layers import entries, parse_set, parse_value
from vidqa.spec.resolve import resolve

SHOWN = [(page, line) for page in PAGES for line in shell_lines(page)]
OF_SCRIPTS = [(page, line) for page, line in SHOWN if not line.startswith("make ")]
OTHERS = (
    "docker",
    "docker/build.sh",
    "hf",
    "kubectl",
    "sbatch",
    "scontrol",
    "squeue",
    "srun",
)  # programs whose options no parser here knows
VALUES = ("SPEC_UNKNOWN_KEY", "SPEC_VALUE", "SPEC_FILE")


def ids(shown: list[tuple[Path, str]]) -> list[str]:
    return [f"{page.name}: {line[:60]}" for page, line in shown]


def check_command(line: str) -> None:
    """Parses a `python scripts/x.py ...` or `python -m vidqa.x ...` line with the real parser. Raises ProblemError."""
    _, first, *words = words_of(line)
    if first == "-m":
        assert (
            words[0] == "pytest"
            or (SKILL_ROOT / "src" / words[0].replace(".", "/")).exists()
            or module_file(words[0]).exists()
        )
        return
    script = SKILL_ROOT / first
    assert script in SCRIPTS or script.is_file(), f"there is no {first}"
    if script not in SCRIPTS:
        return
    options = parser_of(script).parse_args(words)
    if script.stem == "build_spec":
        assert wrong_settings(options.action, options.set) == []


def module_file(name: str) -> Path:
    return SKILL_ROOT / "src" / f"{name.replace('.', '/')}.py"


def wrong_settings(action: str, assignments: list[str]) -> list[str]:
    """What a spec says against `--set` words; values in capitals are the reader's own and not looked at."""
    given = [word for word in assignments if not re.search(r"=[A-Z]+(\.\w+)?$", word)]
    unknown = [found for found in entries(action, parse_set(assignments)) if isinstance(found, Problem)]
    problems = list(unknown)
    try:
        resolve(action, [parse_set(given)])
    except ProblemError as wrong:
        # A command may leave out what an option or another --set gives.
        problems += [p for p in wrong.problems if p.code in VALUES and not p.message.endswith(" is empty")]
    return [str(problem) for problem in problems]


def test_there_are_commands_to_check() -> None:
    assert len(OF_SCRIPTS) > 30
    assert {words_of(line)[1] for _, line in OF_SCRIPTS} >= {f"scripts/{script.name}" for script in SCRIPTS}


@pytest.mark.parametrize("page, line", OF_SCRIPTS, ids=ids(OF_SCRIPTS))
def test_commands_parse(page: Path, line: str) -> None:
    check_command(line)


def test_a_wrong_command_would_be_found() -> None:
    for line in (
        "python scripts/launch.py train --specs s.toml",
        "python scripts/build_spec.py traim",
        "python scripts/jobs.py stop JOB",
    ):
        with pytest.raises(ProblemError):
            check_command(line)
    assert wrong_settings("train", ["train.epochs=3"]) and wrong_settings("train", ["num_epochs=0"])
    assert wrong_settings("train", ["num_epochs=N", "learning_rate=1e-5"]) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SKILL_ROOT)))
def test_commands_and_options_in_the_text_exist(page: Path) -> None:
    """Inline code such as `jobs.py cancel JOB`, `--set learning_rate=1e-5`, `--profile lora` or `key=value`."""
    wrong = []
    known = {option for script in SCRIPTS for option in parser_of(script)._option_string_actions}
    foreign = {"--shm-size", "--help", "--yes"}
    for code in inline_code(page):
        words = words_of(code) if code.count('"') % 2 == 0 and code.count("'") % 2 == 0 else code.split()
        if words and words[0] in OTHERS:
            continue
        wrong += [
            f"{code}: {word}" for word in words if word.startswith("--") and word.split("=")[0] not in known | foreign
        ]
        if words and re.fullmatch(r"(scripts/)?\w+\.py", words[0]) and len(words) > 1:
            assert (SKILL_ROOT / "scripts" / Path(words[0]).name).is_file(), code
        if len(words) > 1 and words[0] == "python" and "..." not in code:
            check_command(code)
        settings = [word for before, word in itertools.pairwise(words) if before == "--set" and "KEY=" not in word]
        if settings and all(wrong_settings(action, settings) for action in actions.names()):
            wrong.append(f"{code}: no spec takes this")
    assert wrong == []


def test_messages_name_scripts_with_their_folder() -> None:
    """So that a remedy can be run as it is written. A script's name alone is the source of a value."""
    bare = re.compile(rf"(?<![\w/])({'|'.join(script.stem for script in SCRIPTS)})\.py")
    wrong = []
    for module in sorted((SKILL_ROOT / "src").rglob("*.py")):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        named = [text for text in texts if id(text) not in docstrings and not bare.fullmatch(text.value)]
        wrong += [f"{module.name}:{text.lineno}: {text.value}" for text in named if bare.search(text.value)]
    assert wrong == []


def test_make_targets_exist() -> None:
    targets = {words_of(line)[1] for _, line in SHOWN if line.startswith("make ")}
    for page in PAGES:
        targets |= {code.split()[1] for code in inline_code(page) if re.fullmatch(r"make [a-z]+", code)}
    assert {"install", "demo", "test", "check"} <= targets
    for target in sorted(targets):
        done = subprocess.run(["make", "-n", target], cwd=SKILL_ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_values_are_read_as_the_pages_say() -> None:
    assert [parse_value(text) for text in ("3", "1e-5", "true", "null", "lora")] == [3, 1e-5, True, None, "lora"]
