"""Settings of a place: read strictly, every problem at once, and documented by a generated page."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from vidqa.core.cli import SKILL_ROOT
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs.platforms import NAMES, platform, site
from vidqa.jobs.platforms.docker import DockerSite


def problems(text: str, tmp_path: Path) -> list[tuple[str, str]]:
    file = tmp_path / "site.toml"
    file.write_text(text)
    with pytest.raises(ProblemError) as wrong:
        site.read("docker", file)
    return [(problem.code, f"{problem.where}: {problem.message}") for problem in wrong.value.problems]


def test_without_a_file_there_are_defaults(state: Path) -> None:
    assert site.read("docker") == DockerSite() and site.read("local") is None


def test_the_file_of_the_state_folder_is_read_and_another_one_comes_first(state: Path, tmp_path: Path) -> None:
    state.mkdir(parents=True)
    (state / "site.toml").write_text("[docker]\nshm_gb = 2.0\n")
    assert site.read("docker").shm_gb == 2.0
    other = tmp_path / "other.toml"
    other.write_text('[docker]\nnetwork = "host"\n')
    assert site.read("docker", other) == DockerSite(network="host")


def test_every_wrong_key_and_value_is_named(tmp_path: Path) -> None:
    found = problems('[docker]\nnetwerk = "host"\nshm_gb = "much"\nuser = "me"\n', tmp_path)
    assert [code for code, _ in found] == ["PLATFORM_SITE_SETTINGS"] * 3
    assert '"UID:GID"' in next(text for _, text in found if "'me'" in text)  # what the key means
    assert "network" in next(text for _, text in found if "there is no key 'netwerk'" in text)


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("[doker]\n", "PLATFORM_SITE_SETTINGS", "no table [doker]; near it: docker"),
        ("[docker\n", "PLATFORM_SITE_SETTINGS", "line 1"),
        ("docker = 1\n", "PLATFORM_SITE_SETTINGS", "table"),
        ("[docker]\nread_only = [1]\n", "PLATFORM_SITE_SETTINGS", "read_only"),
        ('[docker]\nread_only = ["data"]\n', "PLATFORM_SITE_SETTINGS", "read_only"),
        ("[docker]\nread_only = " + "[" * 9000, "PLATFORM_SITE_SETTINGS", "recursion"),
        ("[docker]\nshm_gb = inf\n", "PLATFORM_SITE_SETTINGS", "shm_gb: Input should be a finite number"),
    ],
)
def test_a_file_that_is_wrong(text: str, code: str, shown: str, tmp_path: Path) -> None:
    ((found, message),) = problems(text, tmp_path)
    assert found == code and shown in message


def test_a_platform_without_settings_takes_none(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("[local]\nshm_gb = 2.0\n[docker]\nshm_gb = 2.0\n")
    with pytest.raises(ProblemError) as wrong:
        site.read("local", file)
    (problem,) = wrong.value.problems
    assert problem.code == "PLATFORM_SITE_SETTINGS" and "[local]" in problem.where and "shm_gb" in problem.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as missing:
        site.read("docker", tmp_path / "none.toml")
    assert missing.value.problems[0].code == "PLATFORM_SITE_SETTINGS" and missing.value.exit_code == Exit.INPUT
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ProblemError, match="not a regular file"):
        site.read("docker", tmp_path / "pipe.toml")


def test_what_the_template_shows_can_be_used(tmp_path: Path) -> None:
    """With its comment signs taken away, the generated page is a file that every platform reads as its defaults."""
    lines = (SKILL_ROOT / "references/site_template.toml").read_text().splitlines()
    used = [line.removeprefix("# ") for line in lines[2:] if not line.startswith("#     ")]
    file = tmp_path / "site.toml"
    file.write_text("\n".join(used))
    tables = tomllib.loads(file.read_text())
    for name in NAMES:
        model = platform(name).settings
        assert (name in tables) == (model is not None)
        assert site.read(name, file) == (model() if model else None)
