"""A medium that hangs whoever reads it is cut off and named, by preflight and by a training run; one whose reader is
killed is not blamed.

Two ways to hang: a named pipe that nobody writes to, and a decode worker that is stopped while it has the file open,
which is what storage that no longer answers looks like from outside.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from clips import write_clip
from decode_workers import workers_of
from forked import Started
from tiny_world import engine_command, tiny_data, tiny_model, tiny_spec

from vidqa.core.problem import Exit
from vidqa.preflight import media_probe
from vidqa.preflight.media_probe import read_rows

pytestmark = pytest.mark.slow
SKILL_ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 10.0  # of one decode; many times what the clips here take on a busy machine
PREFLIGHT, TRAINING = "preflight", "training"
Process = subprocess.Popen[bytes] | Started


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("hanging")
    root = tiny_data(folder, clips=3, images=0, texts=0)
    write_clip(root / "videos/1.mp4", frames=3000, fps=30, width=320, height=240, keyframe_every=3000)
    return SimpleNamespace(model=tiny_model(folder), root=root)


@pytest.fixture(params=[PREFLIGHT, TRAINING])
def started(request: pytest.FixtureRequest, world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """start() begins reading the media of a data set of its own; told(process) waits and gives the error problems."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    root = tmp_path / "data"
    shutil.copytree(world.root, root)
    spec = tiny_spec(tmp_path, world.model, root, {"engine.decode_timeout_s": LIMIT_S, "train.epoch": 1})
    run_dir = tmp_path / "run"
    left = run_dir / "problems.json"
    preflight = [sys.executable, str(SKILL_ROOT / "scripts/preflight.py"), "--spec", str(spec), "--json"]
    words = preflight if request.param == PREFLIGHT else engine_command("train", spec, run_dir)

    said, log = tmp_path / "said.json", tmp_path / "log.txt"

    def start() -> Process:
        start_one = subprocess.Popen if words is preflight else Started
        with said.open("wb") as out, log.open("wb") as err:
            return start_one(words, stdout=out, stderr=err, start_new_session=True)

    def told(process: Process) -> list[tuple[str, str]]:
        try:
            process.wait(timeout=900)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        out = said.read_text()
        assert process.returncode not in (0, None) and "Traceback" not in out, log.read_text()[-3000:]
        found = json.loads(out)["problems"] if words is preflight else json.loads(left.read_text())
        errors = [problem for problem in found if problem["severity"] == "error"]
        return [(f"{problem['code']}: {problem['message']}", problem["where"]) for problem in errors]

    return SimpleNamespace(root=root, spec=spec, start=start, told=told)


def test_a_named_pipe(started: SimpleNamespace) -> None:
    (started.root / "videos/1.mp4").unlink()
    os.mkfifo(started.root / "videos/1.mp4")
    told = started.told(started.start())
    assert named(told) and all("MEDIA_UNREADABLE: " in text for text in named(told)), told


def test_a_decoder_that_hangs(started: SimpleNamespace) -> None:
    process = started.start()
    stopped = stop_worker(process, started.root / "videos/1.mp4")
    told = started.told(process)
    assert named(told) and all("VIDEO_DECODE_TIMEOUT: " in text for text in named(told)), told
    assert not Path(f"/proc/{stopped}").exists()


def test_a_decoder_that_is_killed(started: SimpleNamespace) -> None:
    """As when memory is full: the file is not left out, though bad ones may be, nor is it remembered as broken."""
    spec = started.spec.read_text()
    started.spec.write_text(spec.replace('on_bad_sample = "fail"', 'on_bad_sample = "quarantine"'))
    assert started.spec.read_text() != spec
    process = started.start()
    killer = threading.Thread(target=kill_workers, args=(process, started.root / "videos/1.mp4"))
    killer.start()
    told = started.told(process)
    killer.join()
    assert process.returncode == Exit.ENVIRONMENT and named(told) == [text for text, _ in told]
    assert all("MEDIA_DECODER_KILLED: " in text and "SIGKILL" in text for text in named(told)), told
    assert not list(started.root.parent.rglob("quarantine.json"))
    probe = started.spec.parent / media_probe.NAME
    assert not probe.exists() or str(started.root / "videos/1.mp4") not in {row for row, *_ in read_rows(probe)}


def kill_workers(process: Process, file: Path) -> None:
    """Kills every decode worker below `process` that has `file` open, until the process ends."""
    while process.poll() is None:
        for pid in workers_of(process.pid):
            with suppress(OSError):  # it closed the file, or ended, meanwhile
                if any(os.readlink(handle) == str(file) for handle in Path(f"/proc/{pid}/fd").iterdir()):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def named(told: list[tuple[str, str]]) -> list[str]:
    """What is said of the file that hangs; training says it within its own code for a sample that it cannot use."""
    return [text for text, where in told if "1.mp4" in where]


def stop_worker(process: Process, file: Path) -> int:
    """Stops the decode worker that has `file` open, below `process`; its process id."""
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        for pid in workers_of(process.pid):
            try:
                if any(os.readlink(handle) == str(file) for handle in Path(f"/proc/{pid}/fd").iterdir()):
                    os.kill(pid, signal.SIGSTOP)
                    return pid
            except OSError:  # it closed the file, or ended, meanwhile
                continue
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    raise AssertionError("no worker opened the file")
