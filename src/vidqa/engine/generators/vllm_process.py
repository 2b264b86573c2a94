"""The parent side of the vLLM process: runs `vllm_worker.py` with another interpreter."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from vidqa.contract import environment
from vidqa.contract.cli import note
from vidqa.contract.problem import ProblemError
from vidqa.engine.problems import ENGINE_VLLM_FAILED

PROGRAM = Path(__file__).with_name("vllm_worker.py")
LAST_WORDS_S = 20.0  # between the end of the pipe and that of the process


class Process:
    """A vLLM process with the model of `settings`, in the names of vLLM's EngineArgs. Its output goes to stderr.
    `longest` is its limit of tokens for a prompt and its answer."""

    def __init__(self, python: str, device: torch.device, **settings: Any) -> None:
        self.python, self.numbers = python, itertools.count(1)
        self.pipe, theirs = Pipe()
        with theirs:
            self.process = self._start(theirs, device)
        # A thread always reads, since two processes that both write would block.
        self.failed = ""  # how it ended
        self.heard: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.listener = threading.Thread(target=self._listen, name="vllm-listener", daemon=True)
        self.listener.start()
        try:
            self.tell(settings)
            loaded = self.hear()
            self.longest: int = loaded["longest"]
            note(f"{python}: {', '.join(f'{name} {version}' for name, version in loaded['versions'].items())}")
        except ProblemError:
            self.close()
            raise

    def name(self) -> str:
        """A new unique name."""
        return str(next(self.numbers))

    def tell(self, message: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """Send a message with its arrays. Raises ENGINE_VLLM_FAILED if the process has ended."""
        try:
            self.pipe.send_bytes(json.dumps(message).encode())
            for array in arrays:
                self.pipe.send_bytes(np.ascontiguousarray(array).reshape(-1).data)
        except OSError:
            while True:  # its last messages tell more
                self.hear()

    def hear(self) -> dict[str, Any]:
        """Wait for the next message. Raises ENGINE_VLLM_FAILED if the process has ended."""
        message = {"failed": self.failed} if self.failed else self.heard.get()
        if message is None or "failed" in message:
            self.failed = message["failed"] if message else f"the process ended with exit code {self._wait()}"
            raise ENGINE_VLLM_FAILED.error(self.python, self.failed)
        return message

    def close(self) -> None:
        with suppress(OSError):
            self.pipe.send_bytes(json.dumps({"end": True}).encode())
        self._wait()
        self.listener.join()
        self.pipe.close()

    def _start(self, theirs: Connection, device: torch.device) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                # Isolated: it imports nothing from this folder or PYTHONPATH.
                [self.python, "-I", "-W", "ignore", str(PROGRAM), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=environment.foreign_environment(**_variables(device)),
                process_group=0,  # signals to the engine's group do not reach it; it ends with its pipe
            )
        except OSError as failed:
            self.pipe.close()
            raise ENGINE_VLLM_FAILED.error(self.python, f"it cannot be started: {failed.strerror}") from failed

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.heard.put(json.loads(self.pipe.recv_bytes()))
        self.heard.put(None)

    def _wait(self) -> int:
        """Wait for its exit code and end its child processes."""
        try:
            return self.process.wait(LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _variables(device: torch.device) -> dict[str, str]:
    """Environment variables for vLLM; the user's own values are kept."""
    ours = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if device.type == "cpu":
        ours |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
    variables = {name: value for name, value in ours.items() if not environment.has(name)}
    if device.type == "cuda":
        number = device.index or 0
        visible = environment.visible_gpus()
        variables["CUDA_VISIBLE_DEVICES"] = visible[number] if visible else str(number)
    return variables
