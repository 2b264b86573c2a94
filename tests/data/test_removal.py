"""The one function that removes: only what lies in the folder that owns it, and links instead of what they lead to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vidqa.core.files import name_error, remove
from vidqa.core.problem import ProblemError


def test_files_folders_and_links_below_the_owner_are_removed(tmp_path: Path) -> None:
    owner, own = tmp_path / "owner", tmp_path / "own.txt"
    (owner / "a/b").mkdir(parents=True)
    (owner / "a/b/c.txt").write_text("c")
    own.write_text("mine")
    (owner / "a/out").symlink_to(tmp_path)
    (owner / "link").symlink_to(own)
    (owner / "folder").symlink_to(tmp_path)
    for name in ("link", "folder", "a", "not there", "no/folder"):
        remove(owner / name, owner=owner)
    assert list(owner.iterdir()) == [] and own.read_text() == "mine"


def test_an_owner_that_is_a_link_owns_what_it_leads_to(tmp_path: Path) -> None:
    """As checkpoints that a user has put on another disk."""
    (tmp_path / "disk/step_1").mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    remove(tmp_path / "checkpoints/step_1", owner=tmp_path / "checkpoints")
    assert list((tmp_path / "disk").iterdir()) == []


OUTSIDE = ["{out}", "../out", "a/../../out", "link/out", "", ".", "..", "a/..", "{owner}", "../owner2/x"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_what_lies_outside_stays(tmp_path: Path, path: str) -> None:
    owner = tmp_path / "owner"
    for folder in ("owner/a", "out", "owner2/x"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "own.txt").write_text("mine")
    (owner / "link").symlink_to(tmp_path)
    before = sorted(str(file) for file in tmp_path.rglob("*"))
    target = owner / path.format(out=tmp_path / "out", owner=owner)
    for written in (target, Path(os.path.relpath(tmp_path), *target.relative_to(tmp_path).parts)):
        with pytest.raises(ProblemError, match="REMOVAL_OUTSIDE"):
            remove(written, owner=owner)
    assert sorted(str(file) for file in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["a", "a/b.mp4", ".hidden", "a b", "ä", "..a", "a..", "a\\b", "a" * 255, "ab:c"])
def test_names_below_a_folder(name: str) -> None:
    assert name_error(name) == ""


ELSEWHERE = ["", "/a", "//a", "a//b", "a/", ".", "..", "a/./b", "a/../b", "C:a", "C:/a", "a\0", "\ud800", "ä" * 128]


@pytest.mark.parametrize("name", [*ELSEWHERE, 5, None])
def test_names_that_lead_elsewhere(name: object) -> None:
    assert "name" in name_error(name)
