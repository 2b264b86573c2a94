"""A few launches that are cancelled at random moments; random_cancels.py does many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platforms import test_docker_conformance, test_local_conformance
from tests.platforms.random_cancels import rounds


def test_on_this_machine(tmp_path: Path) -> None:
    outcomes, wrong = rounds(test_local_conformance.RIG, tmp_path, count=8, seed=1, at_once=4, within_s=2.0)
    assert wrong == [] and outcomes.total() == 8


@pytest.mark.docker
def test_in_containers(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    rig = test_docker_conformance.rig_of(tmp_path, docker_host, docker_image)
    outcomes, wrong = rounds(rig, tmp_path, count=6, seed=2, at_once=3, within_s=4.0)
    assert wrong == [] and outcomes.total() == 6
