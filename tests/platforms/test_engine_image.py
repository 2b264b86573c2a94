"""Which image docker/build.sh records. Pushing takes a registry, so Docker's client is a stand-in that answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from vidqa.core.cli import SKILL_ROOT

IDS = [f"sha256:{number:064}" for number in range(4)]
PUSHED = [f"other/engine@{IDS[1]}", f"here:5000/team/engine2@{IDS[2]}", f"here:5000/team/engine@{IDS[3]}"]
CLIENT = f"""#!/bin/sh
case "$*" in
  build*) cat > /dev/null ;;
  *RepoDigests*) printf '%s\\n' {" ".join(PUSHED)} ;;
  *inspect*) echo {IDS[0]} ;;
esac
"""


@pytest.mark.parametrize(
    ("words", "image"),
    [
        ([], IDS[0]),
        (["--tag", "here:5000/team/engine:0.1"], IDS[0]),
        (["--tag", "here:5000/team/engine:0.1", "--push"], PUSHED[2]),
        (["--tag", "here:5000/team/engine", "--push"], PUSHED[2]),
        (["--tag", "other/engine:2", "--push"], PUSHED[0]),
    ],
)
def test_a_pushed_image_is_recorded_by_the_digest_of_its_own_repository(
    tmp_path: Path, words: list[str], image: str
) -> None:
    client, config = tmp_path / "docker", tmp_path / "config.json"
    client.write_text(CLIENT)
    client.chmod(0o755)
    shutil.copy(SKILL_ROOT / "config.json", config)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(
        [SKILL_ROOT / "docker/build.sh", *words, "--config", config], env=path, check=True, capture_output=True
    )
    assert json.loads(config.read_text())["images"]["engine"]["image"] == image
