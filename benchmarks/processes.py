"""Measured programs: started in parallel, ended at their time limit with all their descendants."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SKILL_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(SKILL_ROOT / "src")]

from vidqa.core.environment import child_environment, python_path
from vidqa.jobs.platforms.engine_process import ALLOCATOR

POLL_S = 0.2


@dataclass
class Started:
    """A process and its log. `began` is wall-clock time, comparable with the times in metrics.jsonl."""

    process: subprocess.Popen[bytes]
    log: Path
    began: float
    limit_s: float
    seconds: float | None = None  # once it has ended
    timed_out: bool = False

    @property
    def failure(self) -> str | None:
        """The reason why it gave no result: the end of its log. None if it succeeded."""
        if self.process.returncode == 0 and not self.timed_out:
            return None
        ending = f"over {self.limit_s:.0f} s" if self.timed_out else f"exit code {self.process.returncode}"
        return f"{ending}: {self.log.read_text(errors='replace')[-3000:]}"


def start(command: Sequence[str], log: Path, limit_s: float, gpus: Sequence[int] = (), **environment: str) -> Started:
    """Start a Python program of this project with `gpus` visible, among those of this program (none named: all)."""
    log.parent.mkdir(parents=True, exist_ok=True)
    changes = {
        "PYTHONPATH": python_path(),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4" if gpus else "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_ALLOC_CONF": ALLOCATOR,
        **({"CUDA_VISIBLE_DEVICES": _visible(gpus)} if gpus else {}),
        **environment,
    }
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            env=child_environment(**changes),
            start_new_session=True,
        )
    return Started(process, log, time.time(), limit_s)


def _visible(gpus: Sequence[int]) -> str:
    """CUDA's names of GPUs, given by their index among the GPUs of this program."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return ",".join(names[gpu] if names != [""] else str(gpu) for gpu in gpus)


def start_server(model: Path, data: Path, out: Path, limit_s: float, sets: Sequence[str]) -> tuple[Started, str]:
    """Start a server that may read the files in `data` and names its model "random"; returns it with its address once
    it answers. `sets` are KEY=VALUE of its spec."""
    words = [word for pair in (*sets, f"engine.frame_cache_dir={out / 'cache'}") for word in ("--set", pair)]
    words += ["--allow-path", str(data), "--port", "0", "--name", "random"]
    started = start([str(SKILL_ROOT / "scripts/serve.py"), "--model", str(model), *words], out / "log.txt", limit_s)
    while not (address := re.search(r"answers at (http://\S+)/v1", started.log.read_text(errors="replace"))):
        if started.process.poll() is not None:
            sys.exit(started.failure)
        time.sleep(0.2)
    return started, address[1]


def finish(started: Sequence[Started]) -> None:
    """Wait for all programs; those over their limit are killed, and all are when this program is stopped."""
    try:
        while running := [one for one in started if one.seconds is None]:
            for one in running:
                seconds = time.time() - one.began
                if one.process.poll() is not None:
                    one.seconds = seconds
                elif seconds > one.limit_s:
                    one.timed_out, one.seconds = True, seconds
                    kill_tree(one.process)
            time.sleep(POLL_S)
    finally:
        for one in started:
            if one.process.poll() is None:
                kill_tree(one.process)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants, which may lead sessions of their own (torchrun's workers do)."""
    for pid in reversed(family_of(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def family_of(pid: int) -> list[int]:
    """A process and its descendants, parents first, without those that end meanwhile."""
    pids, new = [pid], [pid]
    while new:
        parent = new.pop()
        try:
            threads = list(Path(f"/proc/{parent}/task").iterdir())
            children = [int(word) for thread in threads for word in (thread / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        pids += children
        new += children
    return pids
