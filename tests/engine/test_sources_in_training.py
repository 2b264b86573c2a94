"""A set that no annotation file holds goes through preflight and trains, each reading the same records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from in_process import train_here
from tiny_world import QUESTIONS, losses, tiny_data, tiny_model, tiny_spec

from vidqa.core.cli import SKILL_ROOT

LOADER = """
import json, os
def records(path):
    for row in json.load(open(path)):
        if "video" in row:
            yield {**row, "video": os.path.join(os.path.dirname(path), row["video"])}
"""


def test_records_of_a_users_function_train_as_those_of_a_file_do(tmp_path: Path) -> None:
    """With absolute names and without a media path."""
    model, root = tiny_model(tmp_path), tiny_data(tmp_path, clips=2, images=0, texts=0)
    (root / "mine.py").write_text(LOADER)
    keys = {"custom.loader": f"{root}/mine.py:records", "custom.train_dataset.media_path": ""}
    keys |= {"custom.vision.video_end": 99.0, "custom.vision.min_pixels": 1024}  # which change nothing here
    for name, more in (("plain", {}), ("loaded", keys)):
        (tmp_path / name).mkdir()
        spec = tiny_spec(
            tmp_path / name, model, root, {"train.epoch": 2, "train.ckpt.enable_checkpoint": False, **more}
        )
        train_here(spec, tmp_path / name / "run")
    assert losses(tmp_path / "plain/run") == losses(tmp_path / "loaded/run") and len(QUESTIONS) == 3
    script = str(SKILL_ROOT / "scripts/preflight.py")
    ran = subprocess.run(
        [sys.executable, script, "--only", "data", "--spec", str(spec), "--json"], capture_output=True, text=True
    )
    said = json.loads(ran.stdout)
    assert said["ok"], said["problems"]
    (root / "mine.py").write_text(LOADER.replace("yield {", "yield 1 / 0, {"))
    ran = subprocess.run(
        [sys.executable, script, "--only", "data", "--spec", str(spec), "--json"], capture_output=True, text=True
    )
    (problem,) = [each for each in json.loads(ran.stdout)["problems"] if each["code"] == "USER_FUNCTION"]
    assert problem["where"] == f"{root}/mine.py:6" and "ZeroDivisionError" in problem["message"]
