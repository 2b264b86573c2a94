"""A loop from its first evaluation to its end by real jobs, killed while it trains; as small as it can be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_world import tiny_model, tiny_spec

from demo.clips import pool_clips, selection_clips, train_clips, write_split
from vidqa.core.cli import SKILL_ROOT
from vidqa.spec import Layer, dump, resolve

ENOUGH_S = 1500.0


def run_deft(verb: str, loop: Path, *words: object) -> subprocess.Popen[str]:
    typed = [sys.executable, SKILL_ROOT / "scripts/run_deft.py", verb, loop, *words, "--json"]
    return subprocess.Popen([*map(str, typed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, log = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 0, log[-4000:] + said
    return json.loads(said)["data"]


def begun(folder: Path) -> Path:
    """A model that knows nothing, trained for some forty steps."""
    sets = {"train": train_clips(6, 0), "selection": selection_clips(0)[:6], "pool": pool_clips(12, 0)}
    for name, clips in sets.items():
        write_split(folder / name, clips)
    model = tiny_model(folder)
    steps = {"train.epoch": 10, "train.ckpt.save_freq": 2, "train.ckpt.save_freq_in_epoch": 0}
    train = tiny_spec(folder, model, folder / "train", {**steps, "train.ckpt.max_keep": 2})
    measured = {
        "dataset.annotation_path": str(folder / "selection/annotations.json"),
        "dataset.media_dir": str(folder / "selection"),
        "model.model_name": str(model),
        "model.dtype": "float32",
        "generation.max_tokens": 2,
        "vision.nframes": 4,
        "num_gpus": 1,
    }
    (folder / "evaluate.toml").write_text(dump(resolve("evaluate", [Layer("test", measured)]).spec))
    words = ["--train-spec", train, "--evaluate-spec", folder / "evaluate.toml"]
    words += ["--selection", folder / "selection", "--pool", folder / "pool"]
    words += ["--set", "audit=report", "--set", "stop.rounds=1", "--set", "words.mine=--per-gap 1 --threshold 0"]
    assert done(run_deft("init", folder / "loop", *words))["due"]["stage"] == "evaluate"
    return folder / "loop"


def training(loop: Path) -> Path | None:
    """The run folder of a training that has saved a checkpoint."""
    return next((path.parents[2] for path in loop.glob("runs/*/checkpoints/step_*/policy")), None)


def kill_job(run: Path) -> None:
    """Every process of a job, at once."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(run) in words:
            os.kill(int(place.name), signal.SIGKILL)


@pytest.mark.slow
def test_a_loop_that_is_killed_while_it_trains_goes_on_to_its_end(tmp_path: Path) -> None:
    loop = begun(tmp_path)
    program = run_deft("run", loop)
    deadline = time.monotonic() + ENOUGH_S
    while (run := training(loop)) is None:
        assert program.poll() is None and time.monotonic() < deadline, program.communicate()
        time.sleep(0.05)
    program.kill()
    program.communicate()
    kill_job(run)
    before = [line for line in (loop / "deft_log.jsonl").read_text().splitlines() if '"finished"' in line]

    told = done(run_deft("run", loop))

    assert told["ending"]["rule"] in ("no progress", "rounds", "regression") and not told["ending"]["waits"]
    lines = (loop / "deft_log.jsonl").read_text().splitlines()
    assert [line for line in lines if '"finished"' in line][: len(before)] == before
    resumes = json.loads((run / "run.json").read_text())["resumes"]
    assert len(resumes) == 1 and resumes[0]["step"] >= 2
    actions = [json.loads(path.read_text())["action"] for path in loop.glob("runs/*/run.json")]
    assert sorted(actions) == ["embed", "evaluate", "evaluate", "train"]
    table = json.loads((loop / "report.json").read_text())
    assert table["rounds"][1]["added"]["mine"] > 0 and table["hours"] > 0
    assert "<img" in (loop / "report.html").read_text()
